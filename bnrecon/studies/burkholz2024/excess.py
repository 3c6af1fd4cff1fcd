"""LBFGS with a few more features than equations (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.intervals import decide_within
from bnrecon.reproduction.parts import Decisions, only, read_reported, read_text
from bnrecon.studies.burkholz2024.run_tables.row import Cell, results_of
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable, list_rows
from bnrecon.studies.burkholz2024.run_tables.verdicts import EQUIVALENT, SMALLER, farthest_ends

TEXT = read_text(__file__)
REPORTED = read_reported(__package__)["excess"]
N, LESS_THAN = REPORTED["n"], REPORTED["parameters"]


def decide(cells: Sequence[Cell]) -> Decisions:
    """Decide what adding features gains; only at the paper's size."""
    above = [cell for cell in cells if _excess(cell) > 0]
    few = [cell for cell in above if cell.result is None or _above(cell.result) < LESS_THAN[1]]
    results, few_results = results_of(above), results_of(few)
    if not few_results:
        return []
    losses = [None if cell.result is None else cell.result.loss for cell in above]
    layers = [layer for result in results for layer in result.layers]
    few_losses = [result.loss for result in few_results]
    farthest = max(few_results, key=lambda result: abs(result.loss.mean))
    largest = max(layer.equations for result in few_results for layer in result.layers)
    whole = len(few_results) == len(few) and largest == N
    verdicts = {
        "Sect. 3.1": decide_within(losses, EQUIVALENT) if largest == N else SMALLER,
        "Sect. 3.2": decide_within(few_losses, EQUIVALENT) if whole else SMALLER,
    }
    return verdicts, {
        "equivalent": EQUIVALENT,
        "n": largest,
        "printed": N,
        "less": LESS_THAN,
        "finished": len(results),
        "widths": len(above),
        "first": _excess(above[0]),
        "share": _excess(above[0]) / largest,
        "worst": max(layer.relative_error for layer in layers),
        "losses": _spell(results),
        "few": "; ".join(
            f"{_above(cell.result)} ({_excess(cell)} above n): {cell.result.loss}"
            for cell in few
            if cell.result
        ),
        "farthest": f"{farthest.loss}, {_above(farthest)} features above",
    }


def _above(result: RunResult) -> int:
    """The features of the largest layer beyond n - c2 + 1."""
    layer = max(result.layers, key=lambda layer: layer.equations)
    return layer.width - (layer.equations - layer.shape[0] + 1)


def _excess(cell: Cell) -> int:
    return cell.config.features.excess or 0


def _spell(results: Sequence[RunResult]) -> str:
    least, most = farthest_ends([result.loss for result in results])
    return TEXT.sentence("no loss" if least == most == 0 else "losses", least=least, most=most)


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw loss of accuracy and layer errors against the excess of features."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.9))
    results = results_of(cells)
    excess = [_excess(cell) for cell in cells]
    losses = [result.loss for result in results]
    means, halves = zip(*((loss.mean, loss.bar) for loss in losses), strict=True)
    style = {"marker": "o", "color": PALETTE[0]}
    left.errorbar(excess, means, halves, capsize=3, label="LBFGS", **style)
    left.axhline(0, color="grey", linewidth=1, linestyle=":")
    left.set_ylabel("target minus rebuilt accuracy, points\n(below 0: rebuilt is better)")
    errors = [sorted(layer.relative_error for layer in result.layers) for result in results]
    worst, median = [row[-1] for row in errors], [row[len(row) // 2] for row in errors]
    right.semilogy(excess, worst, label="worst layer", **style)
    style = {"marker": ".", "linestyle": "--", "color": PALETTE[0]}
    right.semilogy(excess, median, label="median layer", **style)
    right.set_ylabel("relative error of a layer")
    n = max(layer.equations for result in results for layer in result.layers)
    seeds = max(len(result.seeds) for result in results)
    left.set_title(f"(a) {seeds} source seeds, 95% intervals")
    right.set_title("(b)")
    for axes in (left, right):
        axes.set_xscale("symlog", linthresh=40)
        axes.set_xlim(-3, 440)
        axes.set_xticks(excess)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        scale = "axis linear up to 40, then logarithmic"
        axes.set_xlabel(f"excess features per layer, c1 - n (n = {n:,};\n{scale})")
        axes.legend()
    return figure


DROPPED = ["max. error as assembled", "layers not converged"]
PART = RunTable(
    TEXT,
    list_rows(
        "excess features",
        ("target=vgg18", "data=cifar10", "features=he_normal", "solver=lbfgs"),
        {
            "smoke": ("scale=smoke",),
            "laptop": ("scale=laptop", "target.width=16", "evaluate=collapsed"),
            "paper": ("scale=paper", "target.width=64"),
        },
        {str(excess): (f"features.excess={excess}",) for excess in (0, 40, 80, 120, 400)},
    ),
    draw,
    decide,
    only("excess features", "0", "40", "80", drop=DROPPED),
)
