"""Where accuracy is lost on a whole network: at the LU, after LBFGS, or in a float64 solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.parts import only, read_text, refuse_compared
from bnrecon.reproduction.request import option_name
from bnrecon.studies.burkholz2024.reconstruction import PAPERS_EPOCHS, WAYS, Targets, of_205_epochs
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Row
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

# By name: the way of Tables 1 and 2 with the same settings, and the solver's options.
DEFAULTS = "LU, LBFGS with PyTorch's settings, n - c2 + 1"
ONE_STEP = "LU, one LBFGS step, n - c2 + 1"
RUNS: Mapping[str, tuple[str, Sequence[str]]] = {
    DEFAULTS: ("paper", ("solver=lu_lbfgs_defaults", "features.width=minimum")),
    ONE_STEP: ("paper", (*WAYS["paper"], "solver.max_iterations=1")),
    "LU, LBFGS with bnrecon's settings, n - c2 + 1": ("paper", WAYS["paper"]),
    "solver=auto, n - c2 + 1": ("minimum", WAYS["minimum"]),
    "solver=auto, 1.5 n": ("exact", WAYS["exact"]),
}
WIDTHS = {"smoke": 4, "laptop": 32, "paper": 64}


def rows(scale: str, options: Sequence[str]) -> list[Row]:
    """One row per target and way to solve its layers."""
    refuse_compared(options, {"solver", "solver.max_iterations", "features.width"})
    values = {option_name(option): option.partition("=")[2] for option in options}
    width = values.get("target.width", "")
    targets = [Targets(int(width) if width.isdecimal() else WIDTHS[scale])]
    if scale == "laptop" and not values.keys() & {"target.width", "train.epochs", "train.seed"}:
        targets.append(of_205_epochs("paper", ("relu",)))
    return [
        Row(
            {"target": f"width {target.width}{epochs}", "solver and width": name}
            | {"target width": str(target.width)},
            (
                *("target=vgg18", "data=cifar10", "features=he_normal"),
                *solver,
                *target.options(scale, way),
                *options,
            ),
        )
        for target in targets
        for epochs in [f", {PAPERS_EPOCHS} epochs" if target.scale == "paper" else ""]
        for name, (way, solver) in RUNS.items()
        if name != ONE_STEP or not target.scale  # hours, for one seed of width 64
    ]


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw loss of accuracy, and the largest error of a layer, in float64 and in the network."""
    done = [(cell, cell.result) for cell in cells if cell.result is not None]
    targets = list(dict.fromkeys(cell.row.labels["target width"] for cell, _ in done))
    size = (PAGE, 0.5 + 1.7 * len(targets))
    figure, grid = new_figure(len(targets), 2, size, sharey="row", squeeze=False)
    for number, (width, pair) in enumerate(zip(targets, grid, strict=True)):
        of_width = [(c, r) for c, r in done if c.row.labels["target width"] == width]
        _draw_target(pair[0], pair[1], of_width)
        letters = "abcdef"[2 * number : 2 * number + 2]
        seeds = " or ".join(map(str, sorted({result.loss.n for _, result in of_width})))
        titles = f"loss, seeds: {seeds}", "all layers and seeds"
        for letter, axes, what in zip(letters, pair, titles, strict=True):
            axes.set_title(f"({letter}) width {width}: {what}")
    grid[-1][0].set_xlabel("target minus rebuilt accuracy, points")
    grid[-1][1].set_xlabel("largest relative error of a layer")
    grid[0][1].legend()
    figure.suptitle(f"bars: 95% intervals; {_tested([result for _, result in done])}", fontsize=8)
    return figure


def _draw_target(left: Axes, right: Axes, done: Sequence[tuple[Cell, RunResult]]) -> None:
    results = [result for _, result in done]
    lines = range(len(results))
    losses = [result.loss for result in results]
    bars = [loss.bar for loss in losses]
    left.errorbar([loss.mean for loss in losses], lines, xerr=bars, fmt="o", capsize=3)
    left.axvline(0, color="grey", linewidth=1, linestyle=":")
    left.set_yticks(lines, [cell.row.labels["solver and width"] for cell, _ in done])
    left.invert_yaxis()
    assembled = [result.largest_assembled_error for result in results]
    solved = [max(layer.relative_error for layer in result.layers) for result in results]
    right.plot(assembled, lines, "s", color=PALETTE[3], label="in the float32 network")
    right.plot(solved, lines, "o", color=PALETTE[0], label="in float64, as solved")
    right.set_xscale("log")


def _tested(results: Sequence[RunResult]) -> str:
    """How many images the real source networks saw, and that the collapsed form saw the others."""
    counts = [(result.evaluation.images, result.target.images) for result in results]
    real = " or ".join(f"{tested:,}" for tested in sorted({tested for tested, _ in counts}))
    collapsed = any(tested < images for tested, images in counts)
    others = "; the others: its collapsed form" if collapsed else ""
    return f"images through the source: {real} of {counts[0][1]:,}{others}"


DROPPED = ["target width", "accuracy: target", "max. layer error", "layers not converged"]
EXCERPT = only(drop=DROPPED)
PART = RunTable(
    read_text(__file__),
    rows,
    draw,
    excerpt=lambda x: EXCERPT(x).replace(r", n - c2 \+ 1", "", regex=True),
)
