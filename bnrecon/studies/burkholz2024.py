"""Burkholz 2024 as cells: Tables 1 and 2, and the claims that the text makes of single runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bnrecon.studies.cells import Cell, Reported

__all__ = ["listed_cells", "reconstruction_cells"]


def reconstruction_cells(study: dict[str, Any], table: str, scale: str, solver: str, words: Sequence[str] = ()) -> list[Cell]:
    """The sixteen cells of Table 1 or 2: a row an activation of the target, a column a feature distribution.

    ``study`` is the study's yaml, ``solver`` "exact" or "paper", ``words`` further options of every run.
    """
    content = study["tables"][table]
    cells = []
    for activation, row in content["rebuilt"].items():
        for features, (mean, half_width) in row.items():
            given = [
                *content["words"],
                f"features={features}",
                *study["solvers"][solver],
                *study["scales"][scale][solver],
                *words,
            ]
            if activation != "relu":
                given.insert(len(content["words"]), f"target.activation={activation}")
            reported = Reported.printed(content["target"][activation], mean, half_width)
            usable = activation not in content.get("unusable", ())
            cells.append(Cell(table, activation, features, solver, tuple(given), reported, usable))
    return cells


def listed_cells(study: dict[str, Any], table: str, scale: str, words: Sequence[str] = ()) -> list[Cell]:
    """The cells of a table that lists its runs in the study's yaml: a row a run, ``reported`` where the paper has a number for it."""
    content = study["tables"][table]
    cells = []
    for row, about in content["rows"].items():
        given = [*content["words"], *content["scales"][scale], *about["words"], *words]
        reported = Reported.printed(*about["reported"]) if "reported" in about else None
        cells.append(Cell(table, row, "", "", tuple(given), reported))
    return cells
