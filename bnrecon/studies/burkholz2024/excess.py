"""LBFGS with a few more features than equations (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.intervals import decide_within
from bnrecon.reproduction.study import read_reported
from bnrecon.studies.burkholz2024.loss_axes import draw_losses
from bnrecon.studies.burkholz2024.run_tables.row import Cell
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable, list_rows
from bnrecon.studies.burkholz2024.run_tables.verdicts import EQUIVALENT

__all__ = ["PART"]

REPORTED = read_reported(__package__)["excess"]
N, MINIMUM, LESS_THAN = REPORTED["n"], REPORTED["minimum_width"], REPORTED["parameters"]
BEYOND = [MINIMUM + extra - N for extra in LESS_THAN]


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """What adding some features gains; open while the widths are not the paper's."""
    few = [cell for cell in cells if 0 < (cell.config.features.excess or 0) <= LESS_THAN[1]]
    found = [cell for cell in few if cell.result is not None]
    if not found:
        return []
    largest = max(layer.equations for cell in found if cell.result for layer in cell.result.layers)
    losses = [cell.result.loss for cell in found if cell.result is not None]
    whole = len(found) == len(few)
    above = [cell for cell in cells if (cell.config.features.excess or 0) > 0]
    results = [cell.result for cell in above if cell.result is not None]
    errors = [layer.relative_error for result in results for layer in result.layers]
    return [
        Claim(
            "Sect. 3.1",
            "'Solving an overparameterized linear system with LBFGS that focuses on solving γ1 and "
            "fixes γ2 to almost arbitrary values reduces the approximation error greatly and "
            "enables near perfect reconstruction.' Read here as: with more features than n the "
            f"loss is within ±{EQUIVALENT} points (here n = {largest:,}).",
            decide_within(
                [None if cell.result is None else cell.result.loss for cell in above], EQUIVALENT
            ),
            f"LBFGS alone, γ2 = 1: {len(results)} of {len(above)} widths from c1 - n = "
            f"{above[0].config.features.excess} on; errors of a layer at most "
            f"{max(errors):.1e}; {_spell(results)}.",
        ),
        Claim(
            "Sect. 3.2",
            f'If the width exceeds the minimum "by less than {LESS_THAN[0]} or {LESS_THAN[1]} '
            'parameters per layer, we do not observe any performance degradation" with LBFGS '
            f"alone (n = {N:,} in print). Read here as: the loss is within ±{EQUIVALENT} points.",
            decide_within(losses, EQUIVALENT) if whole and largest == N else "open",
            f"with {', '.join(str(cell.config.features.excess) for cell in found)} features more "
            f"than n, n = {largest:,} at most: "
            f"{_spell([cell.result for cell in found if cell.result is not None])}. "
            "Part excess_layers has the errors of single layers with the paper's shares of n.",
        ),
    ]


def _spell(results: Sequence[RunResult]) -> str:
    losses = [result.loss for result in results]
    ends = [end for loss in losses for end in (loss.ends if loss.n > 1 else (loss.mean,))]
    return f"losses of {min(ends):z.2f} to {max(ends):z.2f}, with the ends of their intervals"


def draw(cells: Sequence[Cell]) -> Figure:
    """Loss of accuracy and layer errors against the excess of features."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.9))
    excess = [cell.config.features.excess or 0 for cell in cells]
    draw_losses(left, excess, cells, "LBFGS", PALETTE[0])
    errors = [
        sorted(layer.relative_error for layer in cell.result.layers)
        for cell in cells
        if cell.result is not None
    ]
    right.semilogy(
        excess, [row[-1] for row in errors], marker="o", color=PALETTE[0], label="worst layer"
    )
    right.semilogy(
        excess,
        [row[len(row) // 2] for row in errors],
        marker=".",
        linestyle="--",
        color=PALETTE[0],
        label="median layer",
    )
    right.set_ylabel("relative error of a layer")
    n = max(layer.equations for cell in cells if cell.result for layer in cell.result.layers)
    seeds = max(len(cell.result.seeds) for cell in cells if cell.result)
    left.set_title(f"(a) {seeds} source seeds, 95% intervals")
    right.set_title("(b)")
    for axes in (left, right):
        axes.set_xscale("symlog", linthresh=40)
        axes.set_xticks(excess)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel(f"excess features per layer, c1 - n; n = {n:,}")
        axes.legend()
    return figure


PART = RunTable(
    "Sect. 3.2",
    "LBFGS with a few more features than equations",
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
    f'The paper adds "less than {LESS_THAN[0]} or {LESS_THAN[1]} parameters per layer" to the '
    f"minimum width {MINIMUM:,}, so that c1 - n is less than {BEYOND[0]} or {BEYOND[1]}, "
    f"{100 * BEYOND[0] / N:.2f}% or {100 * BEYOND[1] / N:.2f}% of its n = {N:,}; here c1 - n is "
    "counted. There the rows of 0 and 40 lie within. At n = 2,304 the same shares are 1 to 4 "
    "features, and 40 are already 1.7%: part excess_layers has equal shares.",
    draw,
    claims=claims,
)
