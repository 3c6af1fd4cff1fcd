"""Figure 6: decision boundaries from different mini-batches, and margins after training.

A toy problem in the plane; every mini-batch gives its own mu, sigma and decision boundary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.partition import Slice, rectangle
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, below, join, part, sweep
from bnrecon.studies.bn_explained import planar, toy_classifier
from bnrecon.studies.bn_explained.batch_statistics import finite_population

SIZES = (16, 256)  # of the figure's mini-batches
SAMPLES = 1024  # of the training set
WIDTHS = (32, 32)
INITIAL = "initialization"
TRAININGS = {f"B = {size}": (size, 1) for size in SIZES}
# Gradients over 256 points, normalized in groups of B: only the normalization's noise differs.
GROUPS = {f"{256 // size} groups of {size}": (size, 256 // size) for size in (64, 16, 8)}
MARGINS = ("nearest", "smallest")  # of the nearest 5% of the points, of the nearest point
COMPARISONS = len(GROUPS) * len(MARGINS)
BEYOND = 0.3  # margin of the window around the data
STEP = 1 / 300  # along a boundary, in the window's larger side
NEAREST = 0.05  # share of the training points whose distance is the margin
POINTS = 256  # drawn training points
SEEDS = {"smoke": 2, "laptop": 10, "paper": 30}
UPDATES = {"smoke": 20, "laptop": 1000, "paper": 1000}
BATCHES = {"smoke": 2, "laptop": 24, "paper": 100}
GRID = {"smoke": 30, "laptop": 100, "paper": 200}
DRAWN = {"smoke": 1, "laptop": 20, "paper": 20}
MEASURES = {"changed": ".2%", "distance": ".3f"}
SMALL, LARGE = TRAININGS
COLOURS = {0: "#d55e00", 1: "#009e73"}  # red and green that colour-blind readers tell apart


def expected_ratio() -> float:
    """How much larger small deviations are for mini-batches of 16 than of 256 (Eq. 13).

    The root of 256 / 16, times the factors for mini-batches without replacement.

    >>> round(expected_ratio(), 2)
    4.58
    """
    small, large = (finite_population(size, SAMPLES) / size for size in SIZES)
    return (small / large) ** 0.5


def measure_seed(seed: int, updates: int, batches: int, grid: int) -> pd.DataFrame:
    """Variability of the boundary and margins, for a seed's training set, weights and mini-batches.

    Kind ``margins`` has a row per state of the network, from ``margins``. Kind ``jitter`` has one
    per state and size of the mini-batches: ``changed`` is the share of probes, ``grid`` along each
    side of the window, whose class differs from that by the full data's statistics, ``distance``
    the mean ``distance_between`` the boundaries of a mini-batch and of the full data; ``without``
    mini-batches have no boundary in the window, and in ``one_sided`` all outputs have one sign.
    """
    data = toy_classifier.two_moons(SAMPLES, seed)
    plane = _window(data[0])
    low, high = plane.window.min(0), plane.window.max(0)
    sides = [np.linspace(a, b, grid) for a, b in zip(low, high, strict=True)]
    probes = torch.from_numpy(np.stack(np.meshgrid(*sides), -1).reshape(-1, 2))
    rows: list[dict] = []
    for state, network in _networks(data, updates, seed, (INITIAL, *TRAININGS, *GROUPS)).items():
        boundary = planar.decision_boundary(network, data[0], plane)
        with torch.no_grad():
            outputs, full = toy_classifier.run_batches(network, data[0][None], probes)
        rows.append({"kind": "margins", "state": state} | margins(outputs[0], data, boundary))
        for size in SIZES if state not in GROUPS else ():
            drawn = _mini_batches(data[0], size, batches, seed)
            with torch.no_grad():
                outputs, beside = toy_classifier.run_batches(network, drawn, probes)
            single = [planar.decision_boundary(network, batch, plane) for batch in drawn]
            step = STEP * (high - low).max()
            apart = [planar.distance_between(one, boundary, step) for one in single]
            one_sided = (outputs > 0).all(1) | (outputs < 0).all(1)
            row = {"kind": "jitter", "state": state, "batch": size, "batches": batches}
            row |= {"changed": float(((beside > 0) != (full > 0)).double().mean())}
            row |= {"distance": float(pd.Series(apart).mean())}  # of those that have a boundary
            row |= {"without": sum(not len(one) for one in single)}
            rows.append(row | {"one_sided": int(one_sided.sum())})
    return pd.DataFrame(rows).assign(seed=seed)


def margins(
    outputs: torch.Tensor, data: toy_classifier.Data, boundary: np.ndarray
) -> dict[str, float]:
    """Distances of the training points to the boundary, negative where they are misclassified.

    From the outputs (N,) at points (N, 2) with classes (N,), and a boundary (S, 2, 2):
    ``accuracy``; the mean distance of the 5% ``nearest`` points, and the ``smallest``, NaN without
    a boundary.
    """
    right = ((outputs > 0) == (data[1] > 0)).numpy()
    accuracy = {"accuracy": float(right.mean())}
    if not len(boundary):
        return accuracy | {"nearest": float("nan"), "smallest": float("nan")}
    signed = np.sort(np.where(right, 1, -1) * planar.distances_to(data[0].numpy(), boundary))
    count = round(NEAREST * len(signed))
    return accuracy | {"nearest": float(signed[:count].mean()), "smallest": float(signed[0])}


def draw_boundaries(seed: int, updates: int, batches: int) -> pd.DataFrame:
    """One row per boundary, for the window and for each class's points, as text in ``path``.

    The first boundary of a state, with ``batch`` N, is the full data's.
    """
    data = toy_classifier.two_moons(SAMPLES, seed)
    plane = _window(data[0])
    points, labels = (values[:POINTS] for values in data)
    rows: list[dict] = [{"kind": "window", "path": _text(plane.window)}]
    for label in (0, 1):
        rows.append({"kind": "points", "label": label, "path": _text(points[labels == label])})
    drawn = [data[0]]
    for size in SIZES:
        drawn += _mini_batches(data[0], size, batches, seed)
    for state, network in _networks(data, updates, seed, (INITIAL, *TRAININGS)).items():
        for inputs in drawn:
            path = _text(planar.decision_boundary(network, inputs, plane))
            rows.append({"kind": "boundary", "state": state, "batch": len(inputs), "path": path})
    return pd.DataFrame(rows).assign(seed=seed)


def _window(points: torch.Tensor) -> Slice:
    low, high = points.min(0).values - BEYOND, points.max(0).values + BEYOND
    return planar.input_plane(rectangle(low.numpy(), high.numpy()))


def _networks(
    data: toy_classifier.Data, updates: int, seed: int, states: Iterable[str]
) -> dict[str, nn.Sequential]:
    """Each state's network: at initialization, or trained from there."""
    first = toy_classifier.draw_classifier(WIDTHS, seed)
    networks = {state: copy.deepcopy(first) for state in states}
    for state, network in networks.items():
        if state != INITIAL:
            toy_classifier.train(network, data, *(TRAININGS | GROUPS)[state], updates, seed)
    return networks


def _mini_batches(points: torch.Tensor, size: int, count: int, seed: int) -> torch.Tensor:
    """Mini-batches (count, size, 2), each drawn without replacement."""
    generator = np.random.Generator(np.random.Philox(key=(seed, size)))
    chosen = [generator.permutation(len(points))[:size] for _ in range(count)]
    return points[torch.from_numpy(np.stack(chosen))]


def _text(coordinates: np.ndarray | torch.Tensor) -> str:
    return " ".join(f"{value:.3f}" for value in np.asarray(coordinates).ravel())


def _by_seed(rows: pd.DataFrame, state: str, measure: str) -> pd.DataFrame:
    """A measure of the boundary (seeds, sizes), for the seeds that have it for both sizes."""
    rows = rows[(rows["kind"] == "jitter") & (rows["state"] == state)]
    return rows.pivot(index="seed", columns="batch", values=measure).dropna()


def _ratio(rows: pd.DataFrame, state: str, measure: str) -> Interval:
    """A measure for mini-batches of 16 over that of 256, by seed."""
    by_size = _by_seed(rows, state, measure)
    return mean_interval(list(by_size[SIZES[0]] / by_size[SIZES[1]]))


def _margins(rows: pd.DataFrame, state: str, measure: str = "nearest") -> pd.Series:
    """A margin by seed."""
    rows = rows[(rows["kind"] == "margins") & (rows["state"] == state)]
    return rows.set_index("seed")[measure].dropna()


def _gain(rows: pd.DataFrame, state: str, measure: str) -> Interval:
    """A margin minus the one after training with B = 256, by seed; 95% for all of them together."""
    difference = (_margins(rows, state, measure) - _margins(rows, LARGE, measure)).dropna()
    return mean_interval(list(difference), 1 - 0.05 / COMPARISONS)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per state of the network."""
    if "jitter" not in set(rows["kind"]):  # only the figure's boundaries are computed
        return pd.DataFrame()
    lines = []
    for state in (INITIAL, *TRAININGS, *GROUPS):
        line = {"trained with": "not trained" if state == INITIAL else state}
        for measure, form in MEASURES.items():
            values = _by_seed(rows, state, measure)
            for size in SIZES:
                line[f"{measure}, B = {size}"] = _interval(values.get(size, ()), form)
            ratios = [] if values.empty else values[SIZES[0]] / values[SIZES[1]]
            line[f"{measure}, ratio"] = _interval(ratios, ".2f")
        line["margin"] = _interval(_margins(rows, state), ".3f")
        line["smallest"] = _interval(_margins(rows, state, "smallest"), ".3f")
        gain = _gain(rows, state, "nearest") if state in (SMALL, *GROUPS) else ""
        line["margin, gain"] = f"{gain:.4f}" if gain else ""
        line["accuracy"] = f"{100 * _margins(rows, state, 'accuracy').mean():.1f}%"
        lines.append(line)
    return pd.DataFrame(lines)


def _interval(values: Sequence[float], form: str) -> str:
    """Mean and interval; empty without values."""
    return f"{mean_interval(list(values)):{form}}" if len(values) else ""


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's panels: a row per size of the mini-batches, a column per state."""
    lines = rows[rows["kind"] == "boundary"]
    states = list(lines["state"].unique()) or [INITIAL]
    options = {"sharex": True, "sharey": True, "squeeze": False}
    figure, grid = new_figure(len(SIZES), len(states), (PAGE, 3.3), **options)
    for axes_row, size in zip(grid, SIZES, strict=True):
        for axes, state in zip(axes_row, states, strict=True):
            shown = lines[lines["state"] == state]
            _draw_panel(axes, rows, shown[shown["batch"] == size])
            for path in shown[shown["batch"] == SAMPLES].get("path", ()):
                axes.plot(*_polyline(path), color="black", linewidth=0.9, zorder=3)
            if size == SIZES[0]:
                axes.set_title(state if state == INITIAL else f"trained with {state}")
        axes_row[0].set_ylabel(f"mini-batches of {size}")
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=PALETTE[0], linewidth=0.8, label="boundary by one mini-batch"),
        Line2D([], [], color="black", linewidth=0.9, label="by the training set"),
    ]
    for label, colour in COLOURS.items():
        style: dict[str, Any] = {"marker": "o^"[label], "color": colour, "ms": 2.5, "lw": 0}
        keys.append(Line2D([], [], label=f"class {label}", **style))
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, lines: pd.DataFrame) -> None:
    for row in rows[rows["kind"] == "points"].itertuples():
        x, y = _coordinates(row.path).T
        axes.plot(x, y, "o^"[int(row.label)], color=COLOURS[row.label], ms=1.6, mew=0, zorder=1)
    for path in lines.get("path", ()):
        style: Any = {"color": PALETTE[0], "linewidth": 0.5, "alpha": 0.75, "rasterized": True}
        axes.plot(*_polyline(path), **style)
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


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide variability with larger mini-batches, both sides of a boundary, and margins."""
    numbers: dict[str, Any] = {"points": SAMPLES, "expected": expected_ratio()}
    numbers |= {"comparisons": COMPARISONS, "measured": ""}
    if "batches" in rows:
        batches = f"{rows['batches'].max():.0f} mini-batches"
        numbers["measured"] = f"Means over {batches} of each size, 95% intervals."
    rows = rows[rows["kind"].isin(["jitter", "margins"])]
    if rows["seed"].nunique() < 2:  # too little to decide
        return {}, numbers
    ratios = [_ratio(rows, state, name) for state in (INITIAL, *TRAININGS) for name in MEASURES]
    first = rows[rows["state"] == INITIAL].groupby("batch")[["one_sided", "batches"]].sum()
    one_sided = first["one_sided"].sum()
    verdicts: dict[str, bool | str] = {
        "variability": intervals.decide((ratio - 1 for ratio in ratios), least=2),
        "sides": "needs a condition" if one_sided else "undecided",
    }
    numbers |= {
        "ratios": span([ratio.mean for ratio in ratios], ".1f"),
        "one_sided": ", ".join(
            f"{row.one_sided:.0f} of {row.batches:.0f} mini-batches of {row.Index:.0f}"
            for row in first.itertuples()
        ),
        "margin": _margins(rows, LARGE).mean(),
    }
    # For each amount of noise: a large one says nothing about a small one.
    for state in GROUPS:
        numbers[state] = {name: _gain(rows, state, name) for name in MARGINS}
        for name, gain in numbers[state].items():
            verdicts[f"{name}, {state}"] = intervals.decide([gain], least=2)
    return verdicts, numbers


SHOWN = {"seed": 0, "batches": DRAWN, "updates": UPDATES}
MEASURED = {"updates": UPDATES, "batches": BATCHES, "grid": GRID}
TASKS = join(
    sweep(draw_boundaries, "boundaries", {}, SHOWN),
    sweep(measure_seed, "seed {seed}", {"seed": SEEDS}, MEASURED),
)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
