"""Pictures: a canvas for all of them, and a run's layers from its result.json alone."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from bnrecon.runtime import files

__all__ = [
    "COLUMN",
    "PAGE",
    "PALETTE",
    "canvas",
    "image",
    "is_whole",
    "layer_errors",
    "new_figure",
    "style",
]


PALETTE = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#64b5cd")
STYLE = Path(__file__).parent / "bnrecon.mplstyle"
COLUMN, PAGE = 3.4, 7.0  # inches: a figure across one column, and across both


def style() -> contextlib.AbstractContextManager[None]:
    """The style that every figure is made and saved in; the caller's own settings come back after it."""
    return matplotlib.style.context([STYLE])


def new_figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (COLUMN, 2.6), **options: Any
) -> tuple[Figure, Any]:
    """A figure of ``size`` inches and its axes, known to no window or global state.

    ``options`` go to ``Figure.subplots``. Draw within ``style()``.

    >>> with style():
    ...     figure, axes = new_figure()
    ...     lines = axes.plot([1, 2])
    >>> image(figure, "png")[1:4]
    b'PNG'
    """
    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def image(figure: Figure, kind: str) -> bytes:
    """A figure as a file of this kind (png, svg): the same bytes for the same drawing."""
    file = io.BytesIO()
    with style():
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


@contextlib.contextmanager
def canvas(
    file: io.BytesIO, kind: str, rows: int = 1, columns: int = 1, **options
) -> Iterator[tuple]:
    """A figure and its axes to draw on, written to ``file`` as ``kind`` (png, svg) at the end: the same bytes for the same drawing.

    >>> file = io.BytesIO()
    >>> with canvas(file, "png") as (figure, axes):
    ...     lines = axes.plot([1, 2])
    >>> file.getvalue()[1:4]
    b'PNG'
    """
    with matplotlib.rc_context({"svg.hashsalt": "bnrecon"}):
        figure, axes = plt.subplots(rows, columns, layout="constrained", **options)
        try:
            yield figure, axes
            figure.savefig(
                file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
            )
        finally:
            plt.close(figure)


def is_whole(path: Path) -> bool:
    """Whether a picture is there and can be read to its end."""
    try:
        files.require_regular(path)
        with Image.open(path) as picture:
            picture.load()
    except (OSError, SyntaxError, ValueError):  # Damaged is a ValueError
        return False
    return True


def layer_errors(path: Path, result: dict[str, Any]) -> None:
    """Draw every layer's relative error, a point a seed: float64 parameters, and as assembled in the network's arithmetic."""
    names = list(dict.fromkeys(layer["name"] for layer in result["layers"]))
    config = result["config"]
    picture = io.BytesIO()
    with canvas(picture, "png", figsize=(max(5.0, 0.42 * len(names) + 2), 4.2)) as (_, axes):
        series = (
            ("assembled_error", "as assembled in float32", "#c44e52", "s"),
            ("relative_error", "float64 parameters", "#4c72b0", "o"),
        )
        for key, label, colour, marker in series:
            points = [
                (names.index(layer["name"]), max(layer[key], 1e-17)) for layer in result["layers"]
            ]
            axes.plot(
                *zip(*points, strict=True),
                marker,
                color=colour,
                alpha=0.7,
                markersize=5,
                linestyle="none",
                label=label,
            )
        tolerance = config["solver"]["tolerance"]
        axes.axhline(
            tolerance,
            color="grey",
            linewidth=1,
            linestyle=":",
            label=f"solver's tolerance {tolerance:g}",
        )
        axes.set_yscale("log")
        axes.set_xticks(
            range(len(names)),
            [name.removeprefix("features.") for name in names],
            rotation=60,
            ha="right",
            fontsize=8,
        )
        axes.set_ylabel("relative error ‖W′ − W‖ / ‖W‖")
        target = f"{config['target']['name']} of width {config['target']['width']} on {config['data']['name']}"
        axes.set_title(
            f"{target}, {config['features']['name']}, {len(result['seeds'])} seeds", fontsize=10
        )
        axes.legend(fontsize=8)
    files.write_bytes(path, picture.getvalue())
