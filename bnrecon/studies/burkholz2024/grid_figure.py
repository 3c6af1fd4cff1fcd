"""The figure for Tables 1 and 2 of Burkholz 2024: reproduced and reported losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, legend_entries, new_figure
from bnrecon.reporting.wording import span
from bnrecon.studies.burkholz2024.run_tables.row import Cell

NAMES = {  # by command-line name
    "paper": "LU + LBFGS, n - c2 + 1 features",
    "minimum": "bnrecon, n - c2 + 1 features",
    "exact": "bnrecon, 1.5 n features",
}
STYLES = {  # colour and marker
    "paper": (PALETTE[3], "s"),
    "minimum": (PALETTE[1], "D"),
    "exact": (PALETTE[0], "o"),
}
FEATURES = {  # in the order of the paper's columns
    "he_normal": "He normal",
    "he_uniform": "He uniform",
    "orthogonal": "orthogonal",
    "sparse_he_normal": "sparse",
}
BARS: dict[str, Any] = {"capsize": 1.5, "linewidth": 1}
STEP = 0.25  # between the three points of a cell; cells are 1 apart


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw every finished cell's loss of accuracy, a panel per width, a colour per solver."""
    panels = [
        (width, _runs_by_cell([cell for cell in cells if cell.config.target.width == width]))
        for width in sorted({cell.config.target.width for cell in cells}, reverse=True)
    ]
    figure, grid = new_figure(len(panels), 1, (PAGE, 0.5 + 2.15 * len(panels)), squeeze=False)
    for letter, axes, (width, runs) in zip("abcdef", grid[:, 0], panels, strict=False):
        _panel(axes, runs)
        seeds = span(len(c.result.seeds) for p in runs for c in runs[p] if c.result)
        axes.set_title(f"({letter}) target width {width}, source seeds: {seeds}")
        axes.set_ylabel("loss of accuracy, points")
    entries = legend_entries(reversed(figure.axes))  # the narrowest have several seeds
    labels = [name for name in dict.fromkeys((*NAMES.values(), *entries)) if name in entries]
    handles = [entries[name] for name in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, columnspacing=1.2)
    return figure


RunsByCell = dict[tuple[str, str], list[Cell]]


def _runs_by_cell(cells: Sequence[Cell]) -> RunsByCell:
    """The runs of each cell of the paper's table, in the order of its rows and columns."""
    activations = list(dict.fromkeys(map(_activation, cells)))
    features = list(FEATURES)

    def order(cell: Cell) -> tuple[int, int, str, int]:
        labels, seed = cell.row.labels, cell.config.train.seed
        column = features.index(labels["features"])
        return activations.index(_activation(cell)), seed, labels["target"], column

    runs: RunsByCell = {}
    for cell in sorted(cells, key=order):
        labels = cell.row.labels
        runs.setdefault((labels["target"], labels["features"]), []).append(cell)
    return runs


def _activation(cell: Cell) -> str:
    return cell.row.labels["target"].split(",")[0]


def _panel(axes: Axes, runs: RunsByCell) -> None:
    for spot, of_cell in enumerate(runs.values()):
        for cell in of_cell:
            _point(axes, spot, cell)
        _reported(axes, spot, of_cell[0])
    axes.use_sticky_edges = False  # the bars' lower ends are not edges
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlim(-0.6, max(len(runs), 2) - 0.4)
    names = [FEATURES[name] for _, name in runs]
    axes.set_xticks(range(len(runs)), names, rotation=40, ha="right")
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    start = 0
    several = len({cell.config.train.epochs for cells in runs.values() for cell in cells}) > 1
    for target, group in groupby(runs, lambda spot: spot[0]):
        spots = list(group)
        count = len(spots)
        if start:
            axes.axvline(start - 0.5, color="lightgrey", linewidth=0.8)
        name = target.replace(", training seed", "\ntraining\nseed").replace(", ", "\n")
        if several and "epochs" not in name:
            name += f"\n{runs[spots[0]][0].config.train.epochs} epochs"
        cells = [(cell.row, cell.config.target.width) for spot in spots for cell in runs[spot]]
        printed = [row for row, width in cells if row.reported and row.reported.width == width]
        if printed and not any(row.possible for row in printed):
            name += "\n(not compared,\nerratum 5)"
        style: dict[str, Any] = {"va": "top", "ha": "center", "fontsize": 7 if count > 1 else 6}
        middle, transform = start + count / 2 - 0.5, axes.get_xaxis_transform()
        axes.text(middle, 0.99, name, transform=transform, **style)
        start += count
    low, high = axes.get_ylim()
    lines = 1 + max(text.get_text().count("\n") for text in axes.texts)
    # Room for the activations' names: a line takes a twelfth of the axes.
    axes.set_ylim(low, high + (high - low) / (12 / lines - 1))


def _point(axes: Axes, spot: int, cell: Cell) -> None:
    assert cell.result is not None
    way, loss = cell.row.labels["solver"], cell.result.loss
    colour, marker = STYLES[way]
    shift = STEP * (list(STYLES).index(way) - 1)
    style: dict[str, Any] = {"marker": marker, "markersize": 3, "color": colour}
    axes.errorbar(spot + shift, loss.mean, loss.half_width, label=NAMES[way], **BARS, **style)


def _reported(axes: Axes, spot: int, cell: Cell) -> None:
    """Draw the published interval if its target has the same width."""
    reported = cell.row.reported
    if reported is None or not cell.compared:
        return
    low, ends = reported.loss - reported.half_width, [spot - 0.4, spot + 0.4]
    label = f"published (width {reported.width})"
    axes.bar(spot, 2 * reported.half_width, 0.8, low, color="0.85", zorder=0.5, label=label)
    axes.plot(ends, [reported.loss] * 2, color="0.45", linewidth=1, zorder=0.6)
