"""Where accuracy is lost on a whole network: one LBFGS step, all of them, or a float64 solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.run_table import Cell, Row, RunTable
from bnrecon.studies.burkholz2024.reconstruction_grid import WAYS, Targets

__all__ = ["PART"]

# By name: the way of Tables 1 and 2 whose runs these are, and what differs from it.
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "LU, one LBFGS step, n - c2 + 1": ("paper", ("solver.max_iterations=1",)),
    "paper's solver, n - c2 + 1": ("paper", ()),
    "solver=auto, n - c2 + 1": ("minimum", ()),
    "solver=auto, 1.5 n": ("exact", ()),
}
WIDTHS = {"smoke": 4, "laptop": 32, "paper": 64}


def rows(scale: str, options: Sequence[str]) -> list[Row]:
    """A row for each way to solve the same layers."""
    refuse_compared(options, {"solver", "solver.name", "solver.max_iterations", "features.width"})
    targets = Targets(WIDTHS[scale])
    return [
        Row(
            {"solver and width": name},
            (
                *("target=vgg18", "data=cifar10", "features=he_normal"),
                *WAYS[way],
                *targets.options(scale, way),
                *overrides,
                *options,
            ),
        )
        for name, (way, overrides) in RUNS.items()
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
    left.set_xlabel("target minus rebuilt accuracy, points")
    right.plot(
        [result.largest_assembled_error for result in results],
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
    seeds = " or ".join(map(str, sorted({loss.n for loss in losses})))
    left.set_title(f"(a) loss of accuracy, {seeds} seeds")
    right.set_title("(b) all layers and seeds")
    figure.suptitle(_tested(results), fontsize=8)
    return figure


def _tested(results: Sequence[RunResult]) -> str:
    """How many images the real source networks were tested on, and that the others were not."""
    found = [(result.evaluation.images, result.target.images) for result in results]
    real = ", ".join(f"{tested:,}" for tested, _ in found)
    collapsed = any(tested < images for tested, images in found)
    others = "; the others: its collapsed form" if collapsed else ""
    return f"images through the source, from top: {real} of {found[0][1]:,}{others}"


PART = RunTable(
    "Sect. 3.1",
    "Effect of LU, LBFGS and refinement on a network's accuracy",
    rows,
    "The same target and he_normal features, solved to different accuracy. LBFGS starts from the "
    "float32 LU and makes at most 2,000 iterations where nothing else is said; the paper states no "
    "limit. Where no layer is at the limit it ended by itself, so that a higher limit would change "
    'nothing. (a) All but the images of "evaluated on", those with the smallest margin between '
    "the target's two largest logits, go through the collapsed form, which is composed in float64: "
    "what float32 costs the real network shows on those images alone. (b) The largest error of a "
    "layer in the float32 network has that cost.",
    draw,
)
