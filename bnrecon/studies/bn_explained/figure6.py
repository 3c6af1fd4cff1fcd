"""Figure 6: decision boundaries from different mini-batches, and the margins that training leaves.

A toy problem in the plane; every mini-batch gives its own mu, sigma and decision boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.bn_explained.boundary_jitter import (
    INITIAL,
    SAMPLES,
    SIZES,
    TRAININGS,
    draw_boundaries,
    expected_ratio,
    measure_seed,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PART"]

SEEDS = {"smoke": 2, "laptop": 10, "paper": 30}
UPDATES = {"smoke": 20, "laptop": 1000, "paper": 1000}
BATCHES = {"smoke": 3, "laptop": 24, "paper": 100}
GRID = {"smoke": 30, "laptop": 100, "paper": 200}
DRAWN = {"smoke": 2, "laptop": 20, "paper": 20}
MEASURES = {"changed": "window that changes class", "distance": "distance of the boundary"}
FORMATS = {"changed": ".2%", "distance": ".3f"}
SMALL, LARGE, GROUPED = TRAININGS
COLOURS = {0: "#d55e00", 1: "#009e73"}  # red and green that colour-blind readers tell apart


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The figure's boundaries, and one task per seed."""
    own = {"updates": UPDATES[scale]}
    drawn = Task("boundaries", draw_boundaries, {"seed": 0, "batches": DRAWN[scale]} | own)
    own |= {"batches": BATCHES[scale], "grid": GRID[scale]}
    seeds = range(SEEDS[scale])
    return [drawn, *(Task(f"seed {seed}", measure_seed, {"seed": seed} | own) for seed in seeds)]


def _by_seed(rows: pd.DataFrame, state: str, measure: str) -> pd.DataFrame:
    """A measure (seeds, sizes), for the seeds that have it for both sizes."""
    part = rows[(rows["kind"] == "statistics") & (rows["state"] == state)]
    return part.pivot(index="seed", columns="batch", values=measure).dropna()


def _ratio(rows: pd.DataFrame, state: str, measure: str) -> Interval:
    """Of mini-batches of 16 to those of 256, by seed."""
    found = _by_seed(rows, state, measure)
    return mean_interval(list(found[SIZES[0]] / found[SIZES[1]]))


def _gain(rows: pd.DataFrame, state: str, measure: str) -> Interval:
    """A margin minus the one after training with B = 256, by seed."""
    own, large = (_by_seed(rows, name, measure)[SIZES[0]] for name in (state, LARGE))
    return mean_interval(list((own - large).dropna()))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per state of the network and size of its mini-batches."""
    found = rows[rows["kind"] == "statistics"]
    if found.empty:
        drawn = rows[rows["kind"] == "boundary"]
        return drawn.groupby(["state", "batch"], sort=False).size().reset_index(name="boundaries")
    lines = []
    for state in found["state"].unique():
        for size in SIZES:
            part = found[(found["state"] == state) & (found["batch"] == size)]
            line: dict[str, object] = {"trained with": state, "mini-batches of": size}
            for measure, title in MEASURES.items():
                values = _by_seed(found, state, measure)[size]
                line[title] = f"{mean_interval(list(values)):{FORMATS[measure]}}"
                ratio = f"{_ratio(found, state, measure):.2f}" if size == SIZES[0] else ""
                line[f"{measure}, ratio"] = ratio
            line["one-sided"] = f"{part['one_sided'].sum()} of {part['batches'].sum()}"
            for name in ("accuracy", "nearest"):
                shown = f"{mean_interval(list(part[name].dropna())):.3f}"
                line[name] = shown if size == SIZES[0] else ""
            lines.append(line)
    return pd.DataFrame(lines)


def _caption(rows: pd.DataFrame) -> str:
    one = rows[rows["kind"] == "statistics"].head(1)
    measured = "".join(
        f" The table has means over {row.batches} mini-batches of each size, with the 95% interval "
        "over seeds of data, weights and mini-batches; ratios are taken seed by seed."
        for row in one.itertuples()
    )
    return (
        f"Two interleaved half circles, {SAMPLES} training points; two hidden layers of 32 units "
        "with batch normalization (γ = 1, β = 0) and leaky ReLU, an output without bias; 1000 "
        "steps of SGD with momentum at paper and laptop scale. Figure: decision boundaries (blue), "
        "the exact zero sets of the output with μ and σ of one mini-batch each, and with those of "
        "the training set (black). The paper does not say which mini-batches its network is "
        "trained with: here both sizes. Weights are the same within a column."
        f"{measured} A window that changes class: the share of a grid whose class differs from "
        "that by the training set's μ and σ. Distance: symmetric mean distance of the boundary "
        f"to the training set's. For small deviations Eq. 13 gives a ratio of "
        f"{expected_ratio():.2f} (√16, and the factor for mini-batches without replacement). "
        "One-sided: mini-batches whose outputs have one sign. Nearest: the mean distance to the "
        "training set's boundary of the 5% nearest training points, negative where misclassified. "
        f"{GROUPED}: the normalization of B = 16 with gradients over 256 points, so that against "
        "B = 256 the normalization's noise alone differs."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's panels: a row per size of the mini-batches, a column per state."""
    lines = rows[rows["kind"] == "boundary"]
    states = list(lines["state"].unique()) or [INITIAL]
    options = {"sharex": True, "sharey": True, "squeeze": False}
    figure, grid = new_figure(len(SIZES), len(states), (PAGE, 3.6), **options)
    for axes_row, size in zip(grid, SIZES, strict=True):
        for axes, state in zip(axes_row, states, strict=True):
            shown = lines[lines["state"] == state]
            _draw_panel(axes, rows, shown[shown["batch"] == size])
            for path in shown[shown["batch"] == SAMPLES].get("path", ()):
                axes.plot(*_polyline(path), color="black", linewidth=0.9, zorder=3)
            if size == SIZES[0]:
                axes.set_title(state if state == INITIAL else f"trained with {state}")
        axes_row[0].set_ylabel(f"mini-batches of {size}")
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, lines: pd.DataFrame) -> None:
    for row in rows[rows["kind"] == "points"].itertuples():
        x, y = _coordinates(row.path).T
        axes.plot(x, y, "o^"[int(row.label)], color=COLOURS[row.label], ms=1.6, mew=0, zorder=1)
    for path in lines.get("path", ()):
        axes.plot(*_polyline(path), color=PALETTE[0], linewidth=0.5, alpha=0.75)
    for path in rows[rows["kind"] == "window"].get("path", ()):
        (left, bottom), (right, top) = (_coordinates(path)[corner] for corner in (0, 2))
        axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(True)


def _coordinates(path: str) -> np.ndarray:
    """The points (n, 2) of a row's text."""
    return np.array(path.split(), dtype=float).reshape(-1, 2)


def _polyline(path: str) -> np.ndarray:
    """Segments as one line (2, n) that is interrupted between them."""
    ends = _coordinates(path).reshape(-1, 2, 2)
    return np.concatenate([ends, np.full((len(ends), 1, 2), np.nan)], 1).reshape(-1, 2).T


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Less variability with larger mini-batches; both sides of a boundary; margins."""
    found = rows[rows["kind"] == "statistics"]
    if found.empty or found["seed"].nunique() < 2:  # what is finished decides nothing
        return []
    states = (INITIAL, SMALL, LARGE)
    ratios = {(state, m): _ratio(found, state, m) for state in states for m in MEASURES}
    numbers = "; ".join(
        f"{state if state == INITIAL else 'trained with ' + state}: "
        f"{ratios[state, 'changed']:.2f} and {ratios[state, 'distance']:.2f}"
        for state in states
    )
    first = found[found["state"] == INITIAL].groupby("batch")[["one_sided", "batches"]].sum()
    sides = ", ".join(
        f"{row.one_sided} of {row.batches} mini-batches of {size}"
        for size, row in zip(first.index, first.itertuples(), strict=True)
    )
    noise, plain = (_gain(found, state, "nearest") for state in (GROUPED, SMALL))
    smallest = _gain(found, GROUPED, "smallest")
    large = mean_interval(list(_by_seed(found, LARGE, "nearest")[SIZES[0]]))
    return [
        Claim(
            "Figure 6",
            "Larger batch sizes clearly produce smaller variability in the decision boundary, both "
            "at initialization and after training.",
            _verdict(list(ratios.values()), 1.0),
            "mini-batches of 16 to those of 256, ratio of the share of the window that changes "
            f"class and of the boundary's distance: {numbers}. Eq. 13 gives "
            f"{expected_ratio():.2f} for small deviations.",
        ),
        Claim(
            "Sect. 4, Figure 6",
            "Before training the decision boundary passes through the data in every mini-batch.",
            "wrong in print" if first["one_sided"].sum() else "open",
            f"at initialization {sides} are on one side of their own boundary (erratum 27).",
        ),
        Claim(
            "Sect. 5, Figure 6",
            "The noise of the normalization increases the margin between boundary and data.",
            _verdict([noise], 0.0),
            f"after as many updates, normalization over 16 instead of 256 points, gradients over "
            f"256: the mean distance of the nearest 5% of the training points changes by "
            f"{noise:.4f}, from {large:.4f}, the smallest by {smallest:.4f}; mini-batches of 16, "
            f"whose gradients are noisier, too: {plain:.4f}.",
        ),
    ]


def _verdict(values: Sequence[Interval], threshold: float) -> str:
    """Confirmed where every interval is above the threshold; not where one is below it."""
    bounds = [(v.mean - (v.half_width or 0), v.mean + (v.half_width or 0)) for v in values]
    if all(low > threshold for low, _ in bounds):
        return "confirmed"
    return "not confirmed" if any(high < threshold for _, high in bounds) else "open"


PART = Experiment(
    "Figure 6",
    "Decision boundaries from different mini-batches",
    tasks,
    summarize,
    _caption,
    draw,
    claims=claims,
)
