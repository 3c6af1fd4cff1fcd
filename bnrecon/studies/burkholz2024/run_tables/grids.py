"""Tables 1 and 2 as grids like the paper's: loss in print / here.

A grid is for one width and way to rebuild; its rows are targets, its columns features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bnrecon.reporting.run_tables import evaluated_on
from bnrecon.studies.burkholz2024.run_tables import row_numbers
from bnrecon.studies.burkholz2024.run_tables.row import Cell, results_of
from bnrecon.studies.burkholz2024.run_tables.verdicts import RESERVE, counted

WAY = "rebuilt by"
BY = ("target width", WAY)  # the labels that the grids differ by
FORMATS = {"max. layer error": ".1e", "max. error as assembled": ".1e"}
TARGET, PAPER = "against the target", "against the paper"
NOT_RUN = "not run"
MARKS = {"loss reproduced": "=", "no more than reported": "(0)"}
MARKS |= {"different": "≠", "inconclusive": "?"}


def _groups(cells: Sequence[Cell]) -> dict[tuple[str, ...], list[Cell]]:
    """The rows of each grid, widest targets first."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: -cell.config.target.width):
        groups.setdefault(tuple(cell.row.labels[name] for name in BY), []).append(cell)
    return groups


def as_printed(cells: Sequence[Cell]) -> dict[str, tuple[pd.DataFrame | None, list[Cell]]]:
    """The paper's table and ours at its setting, by how a target is rebuilt.

    The setting is the printed width and the paper's schedule. With each frame come the cells that
    were run. The frame has the rebuilt network's accuracy, in print / here, or "–", without
    rows of which no cell was run. Accuracies without ± are one seed's.
    """
    run: dict[str, list[Cell]] = {}
    shown: dict[str, dict[str, dict[str, str]]] = {}
    empty: dict[str, dict[str, str]] = {}
    for cell in cells:
        reported, line = cell.row.reported, cell.row.labels["target"].partition(",")[0]
        if reported is None:
            continue
        column = cell.row.labels["features"]
        text = reported.text if cell.row.possible else f"({reported.text})"
        empty.setdefault(line, {"target": f"{reported.target:.2f} / –"})[column] = f"{text} / –"
        of_way = run.setdefault(cell.row.labels[WAY], [])
        width, printed = cell.config.target.width, cell.config.scale == "paper"
        if cell.result is None or not printed or reported.width not in (None, width):
            continue
        of_way.append(cell)
        of_line = shown.setdefault(cell.row.labels[WAY], {}).setdefault(line, {})
        empty[line]["target"] = f"{reported.target:.2f} / {cell.result.target.accuracy:.2f}"
        of_line[column] = f"{text} / {cell.result.accuracy}".removesuffix(" (n=1)")
    frames = {
        name: pd.DataFrame({"": line, **empty[line], **of_line} for line, of_line in lines.items())
        for name, lines in shown.items()
    }
    return {name: (frames.get(name), of_way) for name, of_way in run.items() if shown}


def grids(cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """The grids by name; each cell has the loss in print, the one here, and a mark.

    "a ± b / c ± d =" is a reproduced loss, (0) none where none is reported, ≠ a different one, ? an
    inconclusive one; a loss without a mark is not compared.

    Cells that are not run say so; cells that the table lacks are empty. Grids without a run are
    omitted.
    """
    named = {}
    for names, group in _groups(cells).items():
        if results_of(group):  # a number follows its heading, as in "target width 32"
            parts = zip(BY, names, strict=True)
            title = ", ".join(f"{by} {name}" if name.isdecimal() else name for by, name in parts)
            named[title] = _losses(group)
    return named


def _losses(cells: Sequence[Cell]) -> pd.DataFrame:
    columns = list(dict.fromkeys(cell.row.labels["features"] for cell in cells))
    lines: dict[str, dict[str, str]] = {}
    for cell in cells:
        name = cell.row.labels["target"]
        line = lines.setdefault(name, {"target": name, "accuracy of the target": ""})
        if cell.result is not None and not line["accuracy of the target"]:
            printed = "" if cell.row.reported is None else f"{cell.row.reported.target:.2f} / "
            line["accuracy of the target"] = f"{printed}{cell.result.target.accuracy:.2f}"
        line[cell.row.labels["features"]] = _compared(cell)
    order = ["target", "accuracy of the target", *columns]
    return pd.DataFrame(list(lines.values()), columns=order, dtype=object).fillna("")


def _compared(cell: Cell) -> str:
    """The loss in print, the one here, and the mark of the verdict."""
    text, reported = NOT_RUN, cell.row.reported
    if cell.result is not None:
        loss = cell.result.loss
        text = f"{loss.mean:z.2f}"
        if loss.half_width is not None:
            text += f" ± {loss.half_width:.2f}"
    if reported is not None:
        printed = f"{reported.loss:z.2f} ± {reported.half_width:g}"
        text = f"{printed if cell.row.possible else 'impossible'} / {text}"
    mark = MARKS.get(cell.against_paper.partition(" (")[0])
    return f"{text} {mark}" if mark else text


def overview(cells: Sequence[Cell]) -> pd.DataFrame:
    """One line per grid: progress, verdicts on losses, and its layers' errors and iterations."""
    lines = [
        dict(zip(BY, names, strict=True)) | _line(group) for names, group in _groups(cells).items()
    ]
    frame = pd.DataFrame(lines, dtype=object)
    verdicts = [name for name in (TARGET, PAPER) if name in frame]
    return row_numbers.without_empty(
        frame[[*(name for name in frame if name not in verdicts), *verdicts]]
    )


def _line(cells: Sequence[Cell]) -> dict[str, Any]:
    results = results_of(cells)
    line: dict[str, Any] = {"cells": f"{len(results)} of {len(cells)}"}
    if not results:
        return line | {TARGET: NOT_RUN}
    seeds = ([seed.predictions for seed in result.seeds] for result in results)
    # Cells in which the real source may predict differently from its collapsed form.
    reserves = [one for one in map(row_numbers.smallest_reserve, seeds) if one is not None]
    little = f"{sum(reserve < RESERVE for reserve in reserves)} of {len(reserves)}"
    layers = [layer for result in results for layer in result.layers]
    limits = [count for count in map(row_numbers.at_limit, results) if count is not None]
    unconverged = sum(len(result.unconverged) for result in results)
    return line | {
        "c1/n": row_numbers.oversampling(cells),
        "loss farthest from 0": max((r.loss for r in results), key=lambda loss: abs(loss.mean)),
        "changed predictions": row_numbers.changed_predictions(cells),
        "evaluated on": ", ".join(dict.fromkeys(map(evaluated_on, results))),
        "cells with a reserve below 2": little if reserves else None,
        "McNemar p": row_numbers.mcnemar_p(cells),
        "max. layer error": max(layer.relative_error for layer in layers),
        "max. error as assembled": max(result.largest_assembled_error for result in results),
        "layers not converged": f"{unconverged} of {len(layers)}",
        "most iterations": max(result.iterations for result in results) or None,
        "layers at the LBFGS limit": f"{sum(limits)} of {len(layers)}" if limits else None,
        "features redrawn": sum(result.redrawn for result in results) or None,
        TARGET: counted((cell.against_target for cell in cells if cell.result), "; "),
        PAPER: counted((cell.against_paper for cell in cells), "; "),
    }
