"""Where accuracy is lost on a whole network: one LBFGS step, all of them, or a float64 solver."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.run_table import Cell, Row, RunTable

__all__ = ["PART"]

MINIMUM = "features.width=minimum"
LBFGS = ("solver=lu_lbfgs", MINIMUM)
OVERSAMPLED = "bnrecon, 1.5 n"
RUNS = {
    "LU, one LBFGS step": (*LBFGS, "solver.max_iterations=1"),
    "LU, LBFGS: the paper's": LBFGS,
    "LU, LBFGS up to 20,000 steps": (*LBFGS, "solver.max_iterations=20000"),
    "bnrecon, minimum width": ("solver=auto", MINIMUM),
    OVERSAMPLED: ("solver=auto",),
}
SCALES = {
    "smoke": ("scale=smoke",),
    "laptop": ("scale=laptop", "target.width=32"),
    "paper": ("scale=paper", "target.width=64"),
}


def rows(scale: str, options: Sequence[str]) -> list[Row]:
    """A row for each way to solve the same layers."""
    refuse_compared(options, {"solver", "solver.name", "solver.max_iterations", "features.width"})
    return [
        Row(
            {"solver and width": name},
            (
                *("target=vgg18", "data=cifar10", "features=he_normal"),
                *overrides,
                *SCALES[scale],
                # Table 1 has the last run too, and there evaluate=auto means the same.
                *(("evaluate=collapsed",) if scale == "laptop" and name != OVERSAMPLED else ()),
                *options,
            ),
        )
        for name, overrides in RUNS.items()
    ]


def draw(cells: Sequence[Cell]) -> Figure | None:
    """Loss of accuracy, and the largest error of a layer, in float64 and in the network."""
    results = [cell.result for cell in cells if cell.result is not None]
    if not results:
        return None
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.4), sharey=True)
    places = range(len(results))
    losses = [result.loss for result in results]
    left.errorbar(
        [loss.mean for loss in losses],
        places,
        xerr=[loss.half_width or 0 for loss in losses],
        fmt="o",
        capsize=3,
    )
    left.axvline(0, color="grey", linewidth=1, linestyle=":")
    left.set_yticks(places, [cell.row.labels["solver and width"] for cell in cells])
    left.invert_yaxis()
    left.set_xlabel("target minus rebuilt accuracy, %")
    right.plot(
        [max(layer.assembled_error for layer in result.layers) for result in results],
        places,
        "s",
        color=PALETTE[3],
        label="in the float32 network",
    )
    right.plot(
        [max(layer.relative_error for layer in result.layers) for result in results],
        places,
        "o",
        color=PALETTE[0],
        label="in float64, as solved",
    )
    right.set_xscale("log")
    right.set_xlabel("largest relative error of a layer")
    right.legend()
    for letter, axes in zip("ab", (left, right), strict=True):
        axes.set_title(f"({letter})", loc="left")
    return figure


PART = RunTable(
    "Sect. 3.1",
    "What the steps of the paper's solver are worth on a whole network",
    rows,
    "The same target and he_normal features, solved to different accuracy. LBFGS starts from the "
    "float32 LU and makes at most 2,000 iterations where nothing else is said; the paper states no "
    "limit.",
    draw,
)
