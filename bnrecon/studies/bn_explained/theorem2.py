"""Theorem 2 and Corollary 1: does a hyperplane that moves closer to z move closer to x?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
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
        same, other = int(group["same"].sum()), int(group["other"].sum())
        lines.append(
            {
                "activation": activation,
                "units before": widths,
                "same side": str(same),
                "violated": f"{group['same_violated'].sum():.0f}",
                "same side, F' empty": f"{group['same_empty'].sum():.0f}",
                "different sides": str(other),
                "violated there": f"{group['violated'].sum():.0f} "
                f"({100 * group['violated'].sum() / max(other, 1):.0f}%)",
                "Corollary 1, largest error": f"{group[['on_line', 'on_point']].max().max():.0e}",
                "batch mean is best": f"{(group['best_threshold'] == 0).sum()} of {len(group)}",
                "median loss to the best": f"{group['loss_ratio'].median():.2f}",
                "better than zero bias": f"{group['nearer_than_zero'].sum():.0f} of {len(group)}",
            }
        )
    for row in rows[rows["kind"] != "random"].itertuples():
        line = {"activation": row.activation, "units before": f"{row.widths}, {row.kind}"}
        column = "same side, F' empty" if row.empty else "violated there"
        distances = f"{row.layer_near:g} < {row.layer_far:g}, but {row.near:g} and {row.far:g}"
        lines.append(line | {column: distances})
    return pd.DataFrame(lines).fillna("")


CAPTION = (
    "Random networks on 2-D inputs with batch statistics; distances to folded hyperplanes F are "
    "exact, facet by facet. A pair is an input and two thresholds around the batch mean, where the "
    "hyperplane H is nearer to z than H'. Theorem 2 says that F is then nearer to x than F'. "
    "Violated: it is not. F' is empty where no input reaches its threshold. Last rows: "
    "counterexamples, with the distances of z to H and H' and of x to F and F'. Last columns: in "
    "the input space, is the batch mean the best of 41 thresholds for the mean squared distance of "
    "the batch to F, its ratio to the best one, and for how many units it is better than a "
    "threshold of 0. The figure is a counterexample: one leaky ReLU, x = 0."
)


def draw(_rows: pd.DataFrame) -> Figure:
    """The counterexample: the unit's output along the first input, and both thresholds."""
    figure, axes = new_figure()
    network, _, thresholds = opposite_sides()
    inputs = np.linspace(-6, 2, 401)
    axes.plot(inputs, activate(inputs, network.slope), color="black", label="⟨w, z(x)⟩")
    for threshold, name, colour in zip(thresholds, ("μ", "μ'"), PALETTE, strict=False):
        place = threshold if threshold > 0 else threshold / network.slope
        axes.axhline(threshold, color=colour, linestyle=":")
        label = f"{name} = {threshold:g}: x = {place:g}"
        axes.plot([place], [threshold], "o", color=colour, label=label)
    axes.plot([0], [0], "k*", label="input x = 0")
    axes.set_xlabel("input")
    axes.set_ylabel("pre-activation of layer 2")
    axes.legend()
    return figure


def _towards(random: pd.DataFrame) -> str:
    """Nearer for significantly more than half of the units (two standard errors)."""
    share, n = float(random["nearer_than_zero"].astype(float).mean()), len(random)
    return "confirmed" if share > 0.5 + 1 / n**0.5 else "not confirmed"


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 2, its repaired form, and Corollary 1."""
    random = rows[rows["kind"] == "random"]
    if random.empty:
        return []
    same, same_violated = int(random["same"].sum()), int(random["same_violated"].sum())
    other, violated = int(random["other"].sum()), int(random["violated"].sum())
    error = random[["on_line", "on_point"]].max().max()
    best = int((random["best_threshold"] == 0).sum())
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
            "wrong in print" if violated + len(example) else "confirmed",
            f"false for {violated} of {other} pairs on different sides of z{numbers}; erratum 23.",
        ),
        Claim(
            "Theorem 2, repaired",
            "The same, for hyperplanes on one side of z of which the farther one is reached.",
            "confirmed" if same_violated == 0 else "not confirmed",
            f"{same_violated} of {same} pairs violate it.",
        ),
        Claim(
            "Corollary 1",
            "z lies on a hyperplane if and only if x lies on the folded one.",
            "confirmed" if error < 1e-8 else "not confirmed",
            f"largest error {error:.0e} in both directions, over {len(random)} networks.",
        ),
        Claim(
            "Sect. 1",
            '"BN adapts the layer/DN input space spline partition to minimize the total least '
            'squares distance" to the layer/DN inputs.',
            "confirmed" if best == len(random) else "wrong in print",
            f"right for a layer (Theorem 1); in the network's input space the batch mean is the "
            f"best of {THRESHOLDS} thresholds for {best} of {len(random)} units, its mean squared "
            f"distance {random['loss_ratio'].median():.2f} times the smallest (median).",
        ),
        Claim(
            "Sect. 3.2",
            "The batch mean translates folded hyperplanes towards the data.",
            _towards(random),
            f"the mean squared distance of the batch to F is smaller than with zero bias for "
            f"{random['nearer_than_zero'].sum():.0f} of {len(random)} units.",
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
