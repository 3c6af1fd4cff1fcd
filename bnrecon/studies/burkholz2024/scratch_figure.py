"""The figure of ``scratch``: accuracies of trained normalizations beside trained weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import COLUMN, PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval

__all__ = ["draw"]

ASIDE = 0.12  # of the two starts, in places


def draw(
    accuracies: pd.DataFrame, starts: Mapping[str, str], weights: Mapping[int, Sequence[float]]
) -> Figure:
    """Means over seeds with 95% intervals where there are three seeds; crosses are trainings.

    Args:
        accuracies: test accuracy in percent by (epochs, inner, excess, seed), a column for each
            start.
        starts: the columns, and what they are called.
        weights: by epochs, test accuracies of networks whose weights are trained.
    """
    lengths = sorted({*accuracies.index.get_level_values("epochs"), *weights})
    width = COLUMN if len(lengths) < 2 else PAGE
    figure, grid = new_figure(1, max(len(lengths), 1), (width, 2.9), sharey=True, squeeze=False)
    for letter, epochs, axes in zip("abcdef", lengths, grid[0], strict=False):
        known = epochs in accuracies.index.get_level_values("epochs")
        own = accuracies.xs(epochs, level="epochs") if known else accuracies.iloc[:0]
        _panel(axes, own, starts, weights.get(epochs, ()))
        axes.set_title(f"({letter}) {epochs} epochs")
    grid[0][0].set_ylabel("test accuracy (%)")
    handles = {
        label: handle
        for axes in grid[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=1 if width == COLUMN else 3
    )
    return figure


def _panel(
    axes: Axes, accuracies: pd.DataFrame, starts: Mapping[str, str], weights: Sequence[float]
) -> None:
    places = list(accuracies.groupby(["inner", "excess"], sort=False))
    for (start, label), colour, side in zip(starts.items(), PALETTE, (-ASIDE, ASIDE), strict=False):
        for place, (_, own) in enumerate(places):
            values = own[start].dropna()
            if values.empty:
                continue
            value, at = mean_interval(list(values)), place + side
            axes.plot([at] * len(values), values, "x", color=colour, markersize=3, alpha=0.6)
            name = f"scales start {'at ' if label == '1' else ''}{label}"
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


def _bar(value: Interval) -> float:
    """Half of the interval; none for two values, whose interval would hide the others."""
    return value.half_width if value.half_width is not None and value.n > 2 else 0.0
