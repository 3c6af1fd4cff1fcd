"""Figures: their common style and palette, and the figure of a run's layer errors."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.reporting.result import RunResult
from bnrecon.reporting.run_tables import description

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # matplotlib takes a third of a second to load: import it only to draw
    Axes = Figure = Any

PALETTE = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#64b5cd")
STYLE = Path(__file__).parent / "bnrecon.mplstyle"
COLUMN, PAGE = 3.4, 7.0  # inches: a figure across one column, and across both
NOTE = 0.12  # height of a note in inches


def style() -> contextlib.AbstractContextManager[None]:
    """The style of every figure, for a block; the caller's style is restored afterwards."""
    import matplotlib.style

    return matplotlib.style.context([STYLE])


def new_figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (COLUMN, 2.6), **options: Any
) -> tuple[Figure, Any]:
    """A figure of ``size`` inches and its axes, without a window or global state.

    ``options`` go to ``Figure.subplots``. Draw within ``style()``.

    >>> with style():
    ...     figure, axes = new_figure()
    ...     lines = axes.plot([1, 2])
    >>> image(figure, "png")[1:4]
    b'PNG'
    """
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def legend_entries(panels: Iterable[Axes]) -> dict[str, Any]:
    """The legend entries of panels, by label, each that of the first panel with it."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def draw_legend(figure: Figure, columns: int = 1, side: str = "upper", **options: Any) -> None:
    """Draw one legend for all panels above or below (``lower``) them, where it covers no data."""
    if entries := legend_entries(figure.axes):
        options |= {"loc": f"outside {side} center", "ncols": columns}
        figure.legend(entries.values(), entries.keys(), **options)


def drawn(draw: Callable[[], Figure], note: str) -> Figure:
    """The figure of ``draw``, in ``style()``, with ``note`` in small print below.

    The note has what a reader of only the picture needs, such as the command that made it.
    """
    with style():
        figure = draw()
        figure.draw_without_rendering()  # runs the layout
    figure.set_layout_engine("none")
    low = [box for box in figure.legends if box.get_window_extent().y0 < figure.bbox.y1 / 4]
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + NOTE)

    def lifted(y: float) -> float:
        return (y * height + NOTE) / (height + NOTE)

    for axes in figure.axes:
        x0, y0, x1, y1 = axes.get_position().extents
        axes.set_position((x0, lifted(y0), x1 - x0, lifted(y1) - lifted(y0)))
    for text in figure.texts:
        text.set_y(lifted(text.get_position()[1]))
    for legend in low:  # placed relative to the figure's lower edge
        legend.borderaxespad += NOTE * 72 / legend.prop.get_size_in_points()
    figure.text(0.995, 0.01 / height, note, ha="right", va="bottom", fontsize=5, color="0.45")
    return figure


def image(figure: Figure, kind: str) -> bytes:
    """A figure in a file format (png, svg): the same bytes for the same drawing."""
    file = io.BytesIO()
    with style():
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def layer_errors(result: RunResult) -> Figure:
    """Every layer's relative error, one point per seed: in float64, and in the assembled network.

    Errors of 0 are drawn at 1e-17.
    """
    names = list(dict.fromkeys(layer.name for layer in result.layers))
    positions = [names.index(layer.name) for layer in result.layers]
    assembled = [max(layer.assembled_error, 1e-17) for layer in result.layers]
    exact = [max(layer.relative_error, 1e-17) for layer in result.layers]
    tolerance = result.config["solver"]["tolerance"]
    with style():
        figure, axes = new_figure(size=(max(COLUMN, 0.25 * len(names) + 1.2), 3.2))
        axes.plot(positions, assembled, "s", color=PALETTE[3], label="as assembled in the network")
        axes.plot(positions, exact, "o", color=PALETTE[0], label="in float64")
        axes.axhline(
            tolerance, color="grey", linestyle=":", label=f"tolerance of the solver, {tolerance:g}"
        )
        axes.set_yscale("log")
        labels = [name.removeprefix("features.") for name in names]
        axes.set_xticks(range(len(names)), labels, rotation=60, ha="right")
        axes.set_ylabel("relative error ‖W′ − W‖ / ‖W‖")
        axes.set_title(description(result).replace(" from ", "\nfrom ", 1))
        axes.legend()
    return figure
