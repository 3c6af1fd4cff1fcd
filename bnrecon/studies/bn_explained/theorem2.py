"""Theorem 2 and Corollary 1: does a hyperplane that moves closer to z move closer to x?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import COLUMN, PALETTE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import decide
from bnrecon.studies.bn_explained.small_networks import SLOPES, activate
from bnrecon.studies.bn_explained.translation import (
    THRESHOLDS,
    compare_pairs,
    counterexamples,
    opposite_sides,
)

__all__ = ["PART"]

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


CAPTION = (
    "Random networks on 2-D inputs (three clusters around random centres) with batch statistics; "
    "distances to folded hyperplanes F are exact, facet by facet. A pair is an input and two "
    "thresholds around the batch mean, where the hyperplane H is nearer to z than H'. They lie on "
    "one side of z or on two. Theorem 2 says that F is then nearer to x than F'. Violated: it is "
    "not. Where no input reaches a threshold, F or F' is empty; such pairs are counted apart. Last "
    "rows: counterexamples, with the distances of z to H and H', then of x to F and F'. Last "
    "columns: is the batch mean the best of 41 thresholds for the mean squared distance of the "
    "batch to F in the input space, the ratio of its value to the smallest, and for how many units "
    "it is smaller than in the same network with zero bias and no normalization. There F contains "
    "x = 0, and sometimes only this point (last column). Figure: a counterexample with one leaky "
    "ReLU and thresholds on two sides of z; arrows are distances in the input space, and in the "
    "layer's input space (vertical)."
)


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
    style = {"arrowstyle": "<->", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    length = np.abs(np.subtract(end, start)).max()
    axes.annotate(
        f"{length:g}",
        middle,
        offset,
        textcoords="offset points",
        color=colour,
        ha="center",
        va="center",
    )


def _towards(random: pd.DataFrame) -> str:
    """Nearer for more than half of the units, over seeds: networks of one seed share inputs."""
    shares = random["nearer_than_zero"].astype(float).groupby(random["seed"]).mean()
    return decide([mean_interval(list(shares)) - 0.5])


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 2, its repaired form, and Corollary 1."""
    random = rows[rows["kind"] == "random"]
    if random.empty:
        return []
    same, same_violated = int(random["same"].sum()), int(random["same_violated"].sum())
    other, violated = int(random["other"].sum()), int(random["other_violated"].sum())
    error = random[["on_line", "on_point"]].max().max()
    best = int((random["best_threshold"] == 0).sum())
    lines = random[~random["zero_is_point"].astype(bool)]
    example = rows[rows["kind"] == "different sides"]
    if not example.empty:
        example = example[example["near"] > example["far"]]
    numbers = "".join(
        f" (counterexample: {row.layer_near:g} < {row.layer_far:g}, but {row.near:g} > {row.far:g})"
        for row in example.itertuples()
    )
    return [
        Claim(
            "Theorem 2",
            "A hyperplane nearer to z(x) is folded to one nearer to x.",
            "false as stated" if violated + len(example) else "confirmed",
            f"false for {violated} of {other} pairs on two sides of z{numbers}; erratum 23.",
        ),
        Claim(
            "Theorem 2, repaired",
            "The same, for hyperplanes on one side of z, with inputs on F'.",
            "confirmed" if same_violated == 0 else "contradicted",
            f"{same_violated} of {same} pairs violate it.",
        ),
        Claim(
            "Corollary 1",
            "z lies on a hyperplane if and only if x lies on the folded one.",
            "confirmed" if error < 1e-8 else "contradicted",
            f"largest error {error:.0e} in both directions, over {len(random)} networks.",
        ),
        Claim(
            "Sect. 1",
            '"BN adapts the layer/DN input space spline partition to minimize the total least '
            "squares (TLS) distance between the spline partition boundaries and the layer/DN "
            'inputs".',
            "confirmed" if best == len(random) else "false as stated",
            f"right for a layer (Theorem 1); in the network's input space the batch mean is the "
            f"best of {THRESHOLDS} thresholds for {best} of {len(random)} units, its mean squared "
            f"distance {random['loss_ratio'].median():.2f} times the smallest (median).",
        ),
        Claim(
            "Sect. 3.2",
            "The batch mean translates folded hyperplanes towards the data.",
            _towards(random),
            f"the mean squared distance of the batch to F is smaller than with zero bias in all "
            f"layers for {random['nearer_than_zero'].sum():.0f} of {len(random)} units, and for "
            f"{lines['nearer_than_zero'].sum():.0f} of the {len(lines)} where F with zero bias is "
            "more than the point x = 0. Decided by the 95% interval of the share over seeds.",
        ),
    ]


PART = Experiment(
    "Theorem 2, Corollary 1",
    "Translating a hyperplane in a layer's input space and in the network's",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
