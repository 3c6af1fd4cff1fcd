"""The figure of ``scales``: accuracies of the four settings, and by the relative step."""

from __future__ import annotations

import math
from fractions import Fraction

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.studies.random_features.scales_settings import (
    MATCHED,
    ONES,
    SLOWED,
    WEIGHTS,
    at_step,
    step_of,
)

__all__ = ["draw"]

SCALES_COLOUR, WEIGHTS_COLOUR = PALETTE[1], PALETTE[0]
SETTINGS = {
    ONES: ("scales,\nstart 1", SCALES_COLOUR),
    SLOWED: ("weights,\nshort steps", WEIGHTS_COLOUR),
    MATCHED: ("scales,\nmatched start", SCALES_COLOUR),
    WEIGHTS: ("weights", WEIGHTS_COLOUR),
}


def draw(rows: pd.DataFrame) -> Figure:
    """Both panels, with 95% intervals over seeds."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.7))
    _settings(left, rows)
    _steps(right, rows)
    for axes in (left, right):
        axes.set_ylabel("test accuracy (%)")
    return figure


def _settings(axes: Axes, rows: pd.DataFrame) -> None:
    """A point each, with its mean in numbers."""
    for place, (setting, (_, colour)) in enumerate(SETTINGS.items()):
        found = rows[rows["setting"] == setting]
        if found.empty:
            continue
        value = mean_interval(list(found["accuracy"]))
        axes.errorbar(place, value.mean, _bar(value), color=colour, marker="o", capsize=2)
        axes.annotate(f"{value.mean:.1f}", (place, value.mean), (5, -3), textcoords="offset points")
        axes.set_title(f"(a) {_conditions(found)}")
    axes.set_xticks(range(len(SETTINGS)), [label for label, _ in SETTINGS.values()])
    axes.set_xlim(-0.5, len(SETTINGS) - 0.4)


def _steps(axes: Axes, rows: pd.DataFrame) -> None:
    """Accuracy by relative step, and where scales that start at 1 stand."""
    view = rows.assign(step=rows["setting"].map(step_of)).dropna(subset="step")
    for name, kind, colour, aside in (
        ("scales", MATCHED, SCALES_COLOUR, 2**-0.08),
        ("weights", WEIGHTS, WEIGHTS_COLOUR, 2**0.08),
    ):
        steps = sorted(set(view["step"]))
        own = {step: view[view["setting"] == at_step(kind, step)]["accuracy"] for step in steps}
        known = {step: mean_interval(list(found)) for step, found in own.items() if len(found)}
        axes.errorbar(
            [step * aside for step in known],
            [value.mean for value in known.values()],
            [_bar(value) for value in known.values()],
            color=colour,
            marker="o",
            capsize=2,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("relative step along the gradient (weights: 1)")
    if view.empty:
        return
    steps = sorted(set(view["step"]))
    axes.set_xticks(steps, [str(Fraction(step)) for step in steps])
    short = 1 / (27 * int(view["width"].iloc[0]))
    axes.axvline(short, color="grey", linestyle=":", label="scales that start at 1")
    axes.legend()
    axes.set_title(f"(b) {_conditions(view)}")


def _bar(value: Interval) -> float:
    """The half-width; NaN, which draws none, for a single seed."""
    return math.nan if value.half_width is None else value.half_width


def _conditions(rows: pd.DataFrame) -> str:
    """Width, epochs and number of seeds."""
    width, epochs = (int(rows[name].iloc[0]) for name in ("width", "epochs"))
    seeds = rows.groupby("setting")["seed"].nunique().max()
    return f"width {width}, {epochs} epochs, n = {seeds}"
