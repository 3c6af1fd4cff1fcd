"""Table 1 of Burkholz 2024: VGG18 targets on CIFAR-10, rebuilt."""

from __future__ import annotations

from bnrecon.reproduction.study import read_reported
from bnrecon.studies.burkholz2024.grid_figure import draw
from bnrecon.studies.burkholz2024.reconstruction import GRID, TEXT, judge, rows_of
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

PART = RunTable(
    "Table 1",
    f"{TEXT.title} for CIFAR-10",
    rows_of("cifar10", read_reported(__package__)["table1"]),
    TEXT.caption,
    draw,
    GRID,
    lambda cells: TEXT.claims(judge("Table 1", cells)),
)
