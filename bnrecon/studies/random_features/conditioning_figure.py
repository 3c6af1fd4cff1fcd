"""The picture of Figure 2: error against size, for each solver."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.studies.random_features.averages import intervals_by
from bnrecon.studies.random_features.conditioning_settings import EXCESS, IDENTIFIED
from bnrecon.studies.random_features.feature_matrices import COLOURS

__all__ = ["draw_figure"]

STYLES = dict(zip(EXCESS, ("-", "--", ":"), strict=True))  # as in the paper
APART = 0.5  # channels by which the distributions are set apart
PANELS = (
    ("lbfgs", "(a) LBFGS, at most 2,000 iterations"),
    (None, "(b) condition number"),
    ("svd_lbfgs", "(c) SVD, LBFGS"),
    ("svd_lu_lbfgs", "(d) SVD, solve, LBFGS"),
    ("lbfgs_long", "(e) LBFGS, at most 50,000"),
    ("auto", "(f) bnrecon, in float64"),
)


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The paper's panels a to d; LBFGS with a larger limit; bnrecon. Float32 shares one axis."""
    figure, grid = new_figure(2, 3, (PAGE, 4.9))
    float32 = []
    for axes, (solver, title) in zip(grid.flat, PANELS, strict=True):
        axes.set_title(title)
        axes.set_xlabel("channels c0 = c2")
        axes.set_xticks(sorted(rows["channels"].unique()))
        axes.set_ylabel("log10 rmse" if solver else "log10 condition number")
        _draw_lines(axes, rows, solver)
        if solver not in (None, "auto"):
            float32.append(axes)
    for axes in float32[1:]:
        axes.sharey(float32[0])
    zeros = rows[rows["rmse"] == 0]
    _mark_zeros(float32, zeros[zeros["solver"] != "auto"])
    _mark_zeros([grid.flat[-1]], zeros[zeros["solver"] == "auto"])
    _legend(figure, rows)
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame, solver: str | None) -> None:
    """Errors above 0 of a solver, or condition numbers, which are the same for all solvers."""
    part = rows[rows["solver"] == (solver or "auto")]
    values = part["rmse" if solver else "condition_number"]
    part = part.assign(value=np.log10(values.where(values > 0))).dropna(subset="value")
    for (label, excess), group in part.groupby(["features", "excess"], sort=False):
        line = intervals_by(group, "channels", "value")
        if solver is None:  # as in the paper: no point where it cannot be identified
            line["mean"] = line["mean"].where(line["mean"] <= np.log10(IDENTIFIED))
        axes.errorbar(
            line.index + _aside(label),
            line["mean"],
            line["half_width"],
            color=COLOURS[label],
            linestyle=STYLES[excess],
            marker=".",
        )


def _aside(label: str) -> float:
    """How far a distribution's points stand from their size, so that they do not cover others."""
    names = list(COLOURS)
    return APART * (names.index(label) - (len(names) - 1) / 2)


def _mark_zeros(panels: list[Axes], zeros: pd.DataFrame) -> None:
    """A row below all errors, named 0, with an open circle wherever a seed's error is 0."""
    low, high = panels[0].get_ylim()
    row = low - 0.12 * (high - low)
    ticks = [tick for tick in panels[0].get_yticks() if low <= tick <= high]
    labels = [f"{tick:g}" for tick in ticks]
    for axes in panels:
        solver = PANELS[list(axes.figure.axes).index(axes)][0]
        for label, group in zeros[zeros["solver"] == solver].groupby("features", sort=False):
            places = [size + _aside(label) for size in sorted(group["channels"].unique())]
            axes.plot(
                places, [row] * len(places), "o", color=COLOURS[label], markerfacecolor="none"
            )
        axes.axhline((row + low) / 2, color="grey", linewidth=0.5)
        axes.set_yticks([row, *ticks], ["rmse 0", *labels])
        axes.set_ylim(row - 0.08 * (high - low), high)


def _legend(figure: Figure, rows: pd.DataFrame) -> None:
    axes = figure.axes[0]
    lines = [axes.plot([], [], color=COLOURS[label])[0] for label in rows["features"].unique()]
    lines += [axes.plot([], [], STYLES[excess], color="black")[0] for excess in EXCESS]
    labels = [*rows["features"].unique(), *(f"{excess} excess features" for excess in EXCESS)]
    title = f"means of {rows['seed'].nunique()} seeds, 95% intervals"
    figure.legend(lines, labels, title=title, loc="outside upper center", ncols=5)
