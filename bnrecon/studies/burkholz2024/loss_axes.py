"""Axes with the loss of accuracy, for tables whose rows are steps of one quantity."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from bnrecon.studies.burkholz2024.run_tables.row import Cell

__all__ = ["draw_losses"]


def draw_losses(
    axes: Axes, values: Sequence[float], cells: Sequence[Cell], label: str, colour: str
) -> None:
    """Draw target minus rebuilt accuracy, with 95% intervals, against the rows' values."""
    losses = [cell.result.loss for cell in cells if cell.result is not None]
    axes.errorbar(
        values,
        [loss.mean for loss in losses],
        [loss.half_width or 0 for loss in losses],
        marker="o",
        capsize=3,
        color=colour,
        label=label,
    )
    axes.axhline(0, color="grey", linewidth=1, linestyle=":")
    axes.set_ylabel("target minus rebuilt accuracy, points\n(below 0: rebuilt is better)")
