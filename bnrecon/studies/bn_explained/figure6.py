"""Figure 6: decision boundaries from different mini-batches, and the margins that training leaves.

A toy problem in the plane; every mini-batch gives its own mu, sigma and decision boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.experiment import Task
from bnrecon.reproduction.texts import Decisions, part
from bnrecon.studies.bn_explained.boundary_jitter import (
    GROUPS,
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

SEEDS = {"smoke": 2, "laptop": 10, "paper": 30}
UPDATES = {"smoke": 20, "laptop": 1000, "paper": 1000}
BATCHES = {"smoke": 2, "laptop": 24, "paper": 100}
GRID = {"smoke": 30, "laptop": 100, "paper": 200}
DRAWN = {"smoke": 1, "laptop": 20, "paper": 20}
MEASURES = {"changed": ".2%", "distance": ".3f"}
SMALL, LARGE = TRAININGS
COLOURS = {0: "#d55e00", 1: "#009e73"}  # red and green that colour-blind readers tell apart


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The figure's boundaries, and one task per seed."""
    own = {"updates": UPDATES[scale]}
    drawn = Task("boundaries", draw_boundaries, {"seed": 0, "batches": DRAWN[scale]} | own)
    own |= {"batches": BATCHES[scale], "grid": GRID[scale]}
    seeds = range(SEEDS[scale])
    return [drawn, *(Task(f"seed {seed}", measure_seed, {"seed": seed} | own) for seed in seeds)]


def _by_seed(rows: pd.DataFrame, state: str, measure: str) -> pd.DataFrame:
    """A measure of the boundary (seeds, sizes), for the seeds that have it for both sizes."""
    part = rows[(rows["kind"] == "jitter") & (rows["state"] == state)]
    return part.pivot(index="seed", columns="batch", values=measure).dropna()


def _ratio(rows: pd.DataFrame, state: str, measure: str) -> Interval:
    """Of mini-batches of 16 to those of 256, by seed."""
    found = _by_seed(rows, state, measure)
    return mean_interval(list(found[SIZES[0]] / found[SIZES[1]]))


def _margins(rows: pd.DataFrame, state: str, measure: str = "nearest") -> pd.Series:
    """A margin by seed."""
    part = rows[(rows["kind"] == "margins") & (rows["state"] == state)]
    return part.set_index("seed")[measure].dropna()


def _gain(
    rows: pd.DataFrame, state: str, measure: str = "nearest", confidence: float = 0.95
) -> Interval:
    """A margin minus the one after training with B = 256, by seed."""
    difference = (_margins(rows, state, measure) - _margins(rows, LARGE, measure)).dropna()
    return mean_interval(list(difference), confidence)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per state of the network."""
    found = rows[rows["kind"] != "boundary"]
    if "jitter" not in set(found["kind"]):
        drawn = rows[rows["kind"] == "boundary"]
        return drawn.groupby(["state", "batch"], sort=False).size().reset_index(name="boundaries")
    lines = []
    for state in (INITIAL, *TRAININGS, *GROUPS):
        line = {"trained with": "not trained" if state == INITIAL else state}
        for measure, form in MEASURES.items():
            values = _by_seed(found, state, measure)
            for size in SIZES:
                line[f"{measure}, B = {size}"] = _interval(values.get(size, ()), form)
            ratios = [] if values.empty else values[SIZES[0]] / values[SIZES[1]]
            line[f"{measure}, ratio"] = _interval(ratios, ".2f")
        line["margin"] = _interval(_margins(found, state), ".3f")
        line["smallest"] = _interval(_margins(found, state, "smallest"), ".3f")
        line["margin, gain"] = f"{_gain(found, state):.4f}" if state in (SMALL, *GROUPS) else ""
        line["accuracy"] = f"{100 * _margins(found, state, 'accuracy').mean():.1f}%"
        lines.append(line)
    return pd.DataFrame(lines)


def _interval(values: Sequence[float], form: str) -> str:
    """Mean and interval; nothing for no values."""
    return f"{mean_interval(list(values)):{form}}" if len(values) else ""


def fill_caption(rows: pd.DataFrame) -> dict[str, Any]:
    """What the caption names."""
    numbers = rows["batches"].dropna().unique() if "batches" in rows else ()
    measured = "".join(
        f"Table: means over {batches:.0f} mini-batches of each size, 95% intervals over n draws of "
        "data, weights and mini-batches, ratios by draw. "
        for batches in numbers
    )
    expected = expected_ratio()
    return {"points": SAMPLES, "measured": measured, "expected": expected, "groups": len(GROUPS)}


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's panels: a row per size of the mini-batches, a column per state."""
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
    keys = [
        Line2D([], [], color=PALETTE[0], linewidth=0.8, label="boundary by one mini-batch"),
        Line2D([], [], color="black", linewidth=0.9, label="by the training set"),
        *(
            Line2D([], [], marker="o^"[label], color=colour, ms=2.5, lw=0, label=f"class {label}")
            for label, colour in COLOURS.items()
        ),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
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


def decide(rows: pd.DataFrame) -> Decisions:
    """Less variability with larger mini-batches; both sides of a boundary; margins."""
    rows = rows[rows["kind"].isin(["jitter", "margins"])]
    if rows["seed"].nunique() < 2:  # what is finished decides nothing
        return {}, {}
    states = {INITIAL: INITIAL} | {state: f"trained with {state}" for state in TRAININGS}
    ratios = {state: [_ratio(rows, state, name) for name in MEASURES] for state in states}
    every = (ratio - 1 for pair in ratios.values() for ratio in pair)
    first = rows[rows["state"] == INITIAL].groupby("batch")[["one_sided", "batches"]].sum()
    one_sided = first["one_sided"].sum()
    verdicts: dict[str, bool | str] = {
        "variability": intervals.decide(every, least=2),
        "sides": "false as stated" if one_sided else "open",
    }
    numbers: dict[str, Any] = {
        "expected": expected_ratio(),
        "ratios": "; ".join(
            f"{name} {ratios[state][0]:.2f} and {ratios[state][1]:.2f}"
            for state, name in states.items()
        ),
        "one_sided": ", ".join(
            f"{row.one_sided:.0f} of {row.batches:.0f} mini-batches of {row.Index:.0f}"
            for row in first.itertuples()
        ),
        "margin": _margins(rows, LARGE).mean(),
        "noisier": _gain(rows, SMALL),
        "groups": len(GROUPS),
    }
    # For each amount of noise: what a large one does says nothing on a small one.
    together = 1 - 0.05 / len(GROUPS)
    for state in GROUPS:
        gains = {name: _gain(rows, state, name, together) for name in ("nearest", "smallest")}
        verdicts[state], numbers[state] = intervals.decide([gains["nearest"]], least=2), gains
    return verdicts, numbers


PART = part(__file__, tasks, summarize, draw, decide, fill_caption)
