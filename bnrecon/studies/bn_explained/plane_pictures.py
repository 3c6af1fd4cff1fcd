"""Rows of lines and points in the plane, and how they are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bnrecon.partition import Folds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDS = ["x0", "y0", "x1", "y1"]
EARLIER = "0.75"  # grey, of the lines of earlier layers


def line_rows(folds: Folds, **labels: Any) -> list[dict[str, Any]]:
    """A row for each segment, with its layer and unit counted from 1."""
    return [
        {"kind": "line", **labels, "layer": int(layer) + 1, "unit": int(unit) + 1}
        | dict(zip(ENDS, ends.ravel().tolist(), strict=True))
        for layer, unit, ends in zip(folds.layer, folds.unit, folds.ends, strict=True)
    ]


def point_rows(points: np.ndarray, **labels: Any) -> list[dict[str, Any]]:
    """A row for each point (n, 2)."""
    return [{"kind": "point", **labels, "x0": x, "y0": y} for x, y in points.tolist()]


def picture_rows(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows with all columns of a picture, which is empty while its seed is not computed."""
    return rows.reindex(columns=list(dict.fromkeys([*rows, *ENDS, *columns])))


def draw_lines(axes: Axes, rows: pd.DataFrame, **options: Any) -> Any:
    """Draw the segments of these rows; the collection is returned for a colour bar."""
    from matplotlib.collections import LineCollection

    ends = rows[ENDS].to_numpy(dtype=float).reshape(-1, 2, 2)
    style: dict[str, Any] = {"linewidths": 0.7, "colors": EARLIER, "capstyle": "round"} | options
    if "array" in style:
        del style["colors"]
    return axes.add_collection(LineCollection(list(ends), **style))


def draw_points(axes: Axes, rows: pd.DataFrame, window: np.ndarray) -> None:
    """Draw the training data as black dots, and show the plane's window (k, 2) without ticks."""
    axes.plot(rows["x0"], rows["y0"], "k.", markersize=2.5, markeredgewidth=0, zorder=3)
    low, high = window.min(0), window.max(0)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)
