"""The figure of sparse and pruned sources: losses and layer errors by the share kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.studies.burkholz2024.pruned_limits import least_error
from bnrecon.studies.burkholz2024.pruned_loss import LOSS, loss_of
from bnrecon.studies.burkholz2024.pruned_settings import (
    ADDED,
    DERIVED,
    FIRST,
    LABELS,
    OVERSAMPLING,
)

__all__ = ["draw"]

COLOURS = dict(zip(LABELS, PALETTE, strict=False))
MARKERS = dict(zip(LABELS, "osD^vX", strict=True))
SHADES = ("black", "#9a9a9a", "#dca000", "#00a3a3")  # none of the methods'
TARGET_COLOURS = dict(zip((FIRST, *ADDED), SHADES, strict=True))
EXACT = 1e-6  # layer errors below this are the solver's tolerance
LOWEST = -1.0  # point of accuracy lost that the figure still shows
TICKS = {-1: "−1", -LOSS: "−0.1", 0: "0", LOSS: "0.1", 1: "1", 10: "10", 100: "100"}


def draw(rows: pd.DataFrame) -> Figure:
    """A panel of losses for each target, the median layer error, and one against the other.

    Args:
        rows: of the tasks, with a column ``activation``.
    """
    targets = list(rows.groupby("activation", sort=False))
    panels = len(targets) + 2
    columns = 2 if panels == 4 else 3
    lines = -(-panels // columns)
    figure, grid = new_figure(lines, columns, (PAGE, 2.4 * lines + 0.7))
    axes = list(np.ravel(grid))
    for unused in axes[panels:]:
        unused.remove()
    for place, (name, own) in enumerate(targets):
        _draw_losses(axes[place], own)
        title = f"({'abcdefgh'[place]}) {name}, {own['target_accuracy'].iloc[0]:.2f}%"
        axes[place].set_title(title)
        if place % columns == 0:
            axes[place].set_ylabel("accuracy lost, points")
    errors, against = axes[len(targets) : panels]
    _draw_errors(errors, rows)
    errors.set_title(f"({'abcdefgh'[panels - 2]}) layer errors")
    _draw_against(against, rows)
    against.set_title(f"({'abcdefgh'[panels - 1]}) loss by layer error")
    for panel in axes[: panels - 1]:
        panel.axvline(1, color="grey", linewidth=0.8)
        panel.set_xlim(0.25, OVERSAMPLING + 0.05)
        panel.set_xlabel("κ: features kept, over n")
    _add_legend(figure, axes[0], rows)
    return figure


def _draw_losses(axes: Axes, rows: pd.DataFrame) -> None:
    """Losses of one target with their intervals, by method and share."""
    for place, method in enumerate(LABELS):
        own = rows[rows["method"] == method].groupby("share")
        shares = np.array([float(str(share)) for share, _ in own])
        losses = [loss_of(group) for _, group in own]
        axes.errorbar(
            shares + 0.005 * (place - 2.5),  # so that intervals do not cover each other
            [loss.mean for loss in losses],
            [loss.half_width or 0 for loss in losses],
            capsize=1.5,
            elinewidth=0.7,
            label=LABELS[method],
            **_style(method),
        )
    _scale_losses(axes)


def _style(method: str) -> dict[str, Any]:
    return {
        "color": COLOURS[method],
        "marker": MARKERS[method],
        "markersize": 3,
        "linewidth": 1,
    }


def _scale_losses(axes: Axes) -> None:
    """Linear around 0, logarithmic from the small loss on, which is dotted."""
    axes.set_yscale("symlog", linthresh=LOSS, linscale=0.5)
    axes.set_ylim(LOWEST, 110)
    axes.set_yticks(list(TICKS), list(TICKS.values()))
    axes.yaxis.minorticks_off()
    axes.axhline(LOSS, color="black", linewidth=0.8, linestyle=":")


def _draw_errors(axes: Axes, rows: pd.DataFrame) -> None:
    """Median errors, averaged over seeds and targets, and what is known of them."""
    for method in LABELS:
        errors = rows[rows["method"] == method].groupby("share")["median_error"].mean()
        axes.plot(errors.where(errors > EXACT), **_style(method))
    for method, (error, exact) in DERIVED.items():
        shares = np.linspace(0.2, exact - 1e-4, 400)
        derived = [error(float(share)) for share in shares]
        axes.plot(shares, derived, "--", color=COLOURS[method], linewidth=0.9)
    axes.plot([], [], "k--", linewidth=0.9, label="derived")
    shares = np.linspace(0.2, 0.9999, 400)
    least = [least_error(float(share), OVERSAMPLING) for share in shares]
    axes.plot(shares, least, "k:", linewidth=1, label="no choice is below")
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 12)  # room for the legend
    axes.set_ylabel("median relative error")
    axes.legend(loc="upper right", fontsize=6)


def _draw_against(axes: Axes, rows: pd.DataFrame) -> None:
    """Mean losses against mean errors: whether the layers' errors decide, or method and target."""
    means = rows.assign(loss=rows["target_accuracy"] - rows["accuracy"])
    by_target = means[means["median_error"] > EXACT].groupby("activation", sort=False)
    for name, of_target in by_target:
        colour = TARGET_COLOURS[str(name)]
        for method, own in of_target.groupby("method"):
            points = own.groupby("share")[["median_error", "loss"]].mean()
            axes.plot(*points.to_numpy().T, linestyle="", **_style(str(method)) | {"color": colour})
        axes.plot([], [], linewidth=4, color=colour, label=name)  # a method has each shape
    _scale_losses(axes)
    axes.set_xscale("log")
    axes.set_xlabel("median relative error")
    axes.legend(loc="lower right", fontsize=6)


def _add_legend(figure: Figure, panel: Axes, rows: pd.DataFrame) -> None:
    seeds = rows["seed"].nunique()
    several = "s, 95% intervals" if seeds > 1 else ""
    figure.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        title=f"features kept by (largest n = {rows['n'].max():,}, grey; {seeds} seed{several}; "
        f"of a target's own weights one choice;\ndotted: a loss of {LOSS}; "
        "axes end at −1)",
        title_fontsize=7,
    )
