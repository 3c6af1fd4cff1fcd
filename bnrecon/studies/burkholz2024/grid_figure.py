"""The picture of Tables 1 and 2 of Burkholz 2024: reproduced losses beside the reported ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE
from bnrecon.studies.burkholz2024.reconstruction import NAMES
from bnrecon.studies.burkholz2024.run_tables.row import Cell

__all__ = ["draw"]

STYLES = {  # colour and marker
    "paper": (PALETTE[3], "s"),
    "minimum": (PALETTE[1], "D"),
    "exact": (PALETTE[0], "o"),
}
FEATURES = {
    "he_normal": "He normal",
    "he_uniform": "He uniform",
    "orthogonal": "orthogonal",
    "sparse_he_normal": "sparse",
}
BARS: dict[str, Any] = {"capsize": 1.5, "linewidth": 1}
STEP = 0.25  # between the three points of a cell; cells are 1 apart
MOST_BESIDE = 4  # cells of a panel that stands beside another one
CELL_WIDTH_BESIDE = 2.3  # of such a cell, in cells of the other panels: each has a name above it


def draw(cells: Sequence[Cell]) -> Figure | None:
    """Loss of accuracy of every finished cell, a panel a width, a colour a way."""
    if not cells:
        return None
    panels = [
        (str(width), _by_place([cell for cell in cells if cell.config.target.width == width]))
        for width in sorted({cell.config.target.width for cell in cells}, reverse=True)
    ]
    wide = [panel for panel in panels if len(panel[1]) > MOST_BESIDE] or panels[:1]
    beside = [panel for panel in panels if panel not in wide]
    figure = Figure(figsize=(PAGE, 0.5 + 2.15 * len(wide)))
    most = max(len(places) for _, places in wide)
    shares = [most, *(max(CELL_WIDTH_BESIDE * len(places), 2.8) for _, places in beside)]
    last = len(wide) - 1
    grid = figure.add_gridspec(len(wide), len(shares), width_ratios=shares)
    spots = [grid[row, :] if row < last or not beside else grid[row, 0] for row in range(len(wide))]
    spots += [grid[last, 1 + column] for column in range(len(beside))]
    first: Axes | None = None
    for letter, spot, (name, places) in zip("abcdef", spots, [*wide, *beside], strict=False):
        axes = figure.add_subplot(spot, sharey=first)
        first = first or axes
        _panel(axes, places)
        counts = sorted({len(c.result.seeds) for p in places for c in places[p] if c.result})
        seeds = f"{' or '.join(map(str, counts))} source seed{'s' * (counts != [1])}"
        title = f"({letter}) target width {name}" if len(panels) > 1 else f"target width {name}"
        if (name, places) in beside:
            narrow = title.replace("target width", "width")
            axes.set_title(f"{narrow}\n{seeds.replace(' source', '')}")
            axes.tick_params(labelleft=False)
        else:
            axes.set_title(f"{title}, {seeds}")
    assert first is not None
    low, high = first.get_ylim()
    lines = 1 + max(text.get_text().count("\n") for axes in figure.axes for text in axes.texts)
    # Room for the activations' names: a line takes a twelfth of the axes.
    first.set_ylim(low, high + (high - low) / (12 / lines - 1))
    for axes in figure.axes[: len(wide)]:
        axes.set_ylabel("loss of accuracy, points")
    handles, labels = _legend(figure.axes)
    figure.legend(handles, labels, loc="outside upper center", ncols=4, columnspacing=1.2)
    return figure


Places = dict[tuple[str, str], list[Cell]]


def _by_place(cells: Sequence[Cell]) -> Places:
    """The runs of each cell of the paper's table, in the order of its rows."""
    order = list(dict.fromkeys(map(_activation, cells)))
    by_place: Places = {}
    for cell in sorted(cells, key=lambda c: (order.index(_activation(c)), c.config.train.seed)):
        labels = cell.row.labels
        by_place.setdefault((labels["target"], labels["features"]), []).append(cell)
    return by_place


def _activation(cell: Cell) -> str:
    return cell.row.labels["target"].split(",")[0]


def _panel(axes: Axes, places: Places) -> None:
    for spot, cells in enumerate(places.values()):
        for cell in cells:
            _point(axes, spot, cell)
        _reported(axes, spot, cells[0])
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlim(-0.6, max(len(places), 2) - 0.4)
    axes.set_xticks(
        range(len(places)), [FEATURES[name] for _, name in places], rotation=40, ha="right"
    )
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    start = 0
    for target, group in groupby(places, lambda spot: spot[0]):
        names = list(group)
        count = len(names)
        if start:
            axes.axvline(start - 0.5, color="lightgrey", linewidth=0.8)
        name = target.replace(", training ", "\n").replace(", ", "\n")
        note = "(printed values\nimpossible)"
        if count == 1:  # the cell is narrower than the name
            name, note = name.replace("leaky_relu", "leaky\nrelu"), "printed\nvalues\nimpossible"
        if not any(cell.row.possible for spot in names for cell in places[spot]):
            name += f"\n{note}"
        style: dict[str, Any] = {"va": "top", "ha": "center", "fontsize": 7 if count > 1 else 6}
        middle, transform = start + count / 2 - 0.5, axes.get_xaxis_transform()
        axes.text(middle, 0.99, name, transform=transform, **style)
        start += count


def _point(axes: Axes, spot: int, cell: Cell) -> None:
    assert cell.result is not None
    way, loss = cell.row.labels["solver"], cell.result.loss
    colour, marker = STYLES[way]
    shift = STEP * (list(STYLES).index(way) - 1)
    style: dict[str, Any] = {
        "marker": marker,
        "markersize": 3,
        "color": colour,
        "label": NAMES[way],
    }
    axes.errorbar(spot + shift, loss.mean, loss.half_width, **BARS, **style)


def _reported(axes: Axes, spot: int, cell: Cell) -> None:
    """The interval in print, where it is of a target as wide."""
    reported = cell.row.reported
    if reported is None or not cell.compared:
        return
    low, ends = reported.loss - reported.half_width, [spot - 0.4, spot + 0.4]
    label = f"in print (width {reported.width})"
    axes.bar(spot, 2 * reported.half_width, 0.8, low, color="0.85", zorder=0.5, label=label)
    axes.plot(ends, [reported.loss] * 2, color="0.45", linewidth=1, zorder=0.6)


def _legend(panels: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Every label once: the ways in the order of ``NAMES``, then the others."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ways = [name for name in NAMES.values() if name in handles]
    order = [*ways, *(label for label in handles if label not in ways)]
    return [handles[label] for label in order], order
