"""The figure of ``scratch``: accuracies of trained normalizations beside trained weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import COLUMN, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval

__all__ = ["draw"]

ASIDE = 0.12  # of the two starts, in places


def draw(accuracies: pd.DataFrame, starts: Mapping[str, str], weights: Sequence[float]) -> Figure:
    """Means over seeds with 95% intervals where there are three seeds; crosses are trainings.

    Args:
        accuracies: test accuracy in percent by (inner, excess, seed), a column for each start.
        starts: the columns, and what they are called.
        weights: test accuracies of networks whose weights are trained.
    """
    figure, axes = new_figure(1, 1, (COLUMN, 2.9))
    places = list(accuracies.groupby(["inner", "excess"], sort=False))
    for (start, label), colour, side in zip(starts.items(), PALETTE, (-ASIDE, ASIDE), strict=False):
        for place, (_, own) in enumerate(places):
            values = own[start].dropna()
            if values.empty:
                continue
            value, at = mean_interval(list(values)), place + side
            axes.plot([at] * len(values), values, "x", color=colour, markersize=3, alpha=0.6)
            name = f"scales start {'at ' if label == '1' else ''}{label}" if place == 0 else None
            axes.errorbar(
                at, value.mean, _bar(value), color=colour, marker="o", capsize=2, label=name
            )
    if weights:
        axes.axhline(
            sum(weights) / len(weights), color="grey", linestyle="--", label="all weights trained"
        )
    axes.set_xticks(
        range(len(places)), [f"{inner}\nn + {excess:.0f}" for (inner, excess), _ in places]
    )
    axes.set_xlim(-0.5, max(len(places), 1) - 0.5)
    axes.set_xlabel("between the convolutions; features")
    axes.set_ylabel("test accuracy (%)")
    figure.legend(loc="outside upper center", ncols=1)
    return figure


def _bar(value: Interval) -> float:
    """Half of the interval; none for two values, whose interval would hide the others."""
    return value.half_width if value.half_width is not None and value.n > 2 else 0.0
