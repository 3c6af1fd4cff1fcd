"""Theorem 2 and Corollary 1: does a hyperplane that moves closer to z move closer to x?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import COLUMN, PALETTE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.experiment import Task
from bnrecon.reproduction.texts import Decisions, part
from bnrecon.studies.bn_explained.small_networks import SLOPES, activate
from bnrecon.studies.bn_explained.translation import (
    THRESHOLDS,
    compare_pairs,
    counterexamples,
    opposite_sides,
)

WIDTHS = {"smoke": ((4,), (3, 2)), "laptop": ((8,), (5, 5)), "paper": ((8,), (5, 5), (4, 4, 4))}
SEEDS = {"smoke": 3, "laptop": 40, "paper": 200}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The counterexamples, and a task for each activation and network."""
    random = [
        Task(
            f"{activation}, {widths}",
            compare_pairs,
            {"activation": activation, "widths": list(widths), "seeds": SEEDS[scale]},
        )
        for activation in SLOPES
        for widths in WIDTHS[scale]
    ]
    return [Task("counterexamples", counterexamples), *random]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and network."""
    lines = []
    random = rows[rows["kind"] == "random"]
    for (activation, widths), group in random.groupby(["activation", "widths"], sort=False):
        lines.append(
            {
                "activation": activation,
                "units before": widths,
                "one side: pairs": f"{group['same'].sum():.0f}",
                "violated": f"{group['same_violated'].sum():.0f}",
                "F or F' empty": f"{group['same_empty'].sum():.0f}",
                "two sides: pairs": f"{group['other'].sum():.0f}",
                "violated there": f"{group['other_violated'].sum():.0f}",
                "empty there": f"{group['other_empty'].sum():.0f}",
                "Corollary 1, largest error": f"{group[['on_line', 'on_point']].max().max():.0e}",
                "batch mean is best": f"{(group['best_threshold'] == 0).sum()} of {len(group)}",
                "median loss to the best": f"{group['loss_ratio'].median():.2f}",
                "nearer than zero bias": f"{group['nearer_than_zero'].sum():.0f} of {len(group)}",
                "zero bias: F a point": f"{group['zero_is_point'].sum():.0f}",
            }
        )
    for row in rows[rows["kind"] != "random"].itertuples():
        line = {"activation": row.activation, "units before": f"{row.widths}, {row.kind}"}
        reached = "none on F, F'" if row.empty else f"{row.near:g} > {row.far:g}"
        column = "F or F' empty" if row.empty else "violated there"
        lines.append(line | {column: f"{row.layer_near:g} < {row.layer_far:g}, but {reached}"})
    return pd.DataFrame(lines).fillna("")


def draw(_rows: pd.DataFrame) -> Figure:
    """The counterexample: the unit's output along the first input, and both thresholds."""
    figure, axes = new_figure(size=(COLUMN, 2.8))
    network, point, thresholds = opposite_sides()
    x, z = point[0], network(point[None])[0, 0]
    inputs = np.linspace(-6, 2, 401)
    axes.plot(inputs, activate(inputs, network.slope), color="black", label="⟨w, z(x)⟩")
    for threshold, name, colour in zip(thresholds, ("", "'"), PALETTE, strict=False):
        place = threshold if threshold > 0 else threshold / network.slope
        label = f"μ{name} = {threshold:g}, F{name}: x = {place:g}"
        axes.axhline(threshold, color=colour, linestyle=":")
        axes.plot([place], [threshold], "o", color=colour, label=label)
        side = np.sign(threshold - z)
        _arrow(axes, (x, threshold), (place, threshold), colour, (0, 6 * side))
        _arrow(axes, (x, z), (x, threshold), colour, (-14 * side, 0))
    axes.plot([x], [z], "k*", label=f"input x = {x:g}")
    axes.set_ylim(-1.0, 2.2)
    axes.set_xlabel("input")
    axes.set_ylabel("⟨w, z(x)⟩, layer 2")
    axes.legend(loc="upper left")
    return figure


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    offset: tuple[float, float],
) -> None:
    """A two-headed arrow with its length at its middle, moved by points."""
    style: dict[str, Any] = {"arrowstyle": "<->", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    words: dict[str, Any] = {
        "textcoords": "offset points",
        "color": colour,
        "ha": "center",
        "va": "center",
    }
    axes.annotate(f"{np.abs(np.subtract(end, start)).max():g}", middle, offset, **words)


def _towards(random: pd.DataFrame) -> str:
    """Nearer for more than half of the units, over seeds: networks of one seed share inputs."""
    shares = random["nearer_than_zero"].astype(float).groupby(random["seed"]).mean()
    return intervals.decide([mean_interval(list(shares)) - 0.5])


def decide(rows: pd.DataFrame) -> Decisions:
    """Theorem 2, its repaired form, and Corollary 1."""
    random = rows[rows["kind"] == "random"]
    if random.empty:
        return {}, {}
    example = rows[rows["kind"] == "different sides"]
    if not example.empty:
        example = example[example["near"] > example["far"]]
    lines = random[~random["zero_is_point"].astype(bool)]
    columns = ("same", "same_violated", "other", "other_violated", "nearer_than_zero")
    numbers = {name: int(random[name].sum()) for name in columns} | {
        "example": "".join(
            f" (counterexample: {row.layer_near:g} < {row.layer_far:g}, but {row.near:g} > "
            f"{row.far:g})"
            for row in example.itertuples()
        ),
        "error": random[["on_line", "on_point"]].max().max(),
        "networks": len(random),
        "thresholds": THRESHOLDS,
        "best": int((random["best_threshold"] == 0).sum()),
        "loss_ratio": random["loss_ratio"].median(),
        "nearer_lines": lines["nearer_than_zero"].sum(),
        "lines": len(lines),
    }
    as_printed = not numbers["other_violated"] + len(example)
    return {
        "Theorem 2": as_printed or "false as stated",
        "Theorem 2, repaired": numbers["same_violated"] == 0,
        "Corollary 1": bool(numbers["error"] < 1e-8),
        "Sect. 1": numbers["best"] == len(random) or "false as stated",
        "Sect. 3.2": _towards(random),
    }, numbers


PART = part(__file__, tasks, summarize, draw, decide)
