"""Table 1 of Burkholz 2024: VGG18 targets on CIFAR-10, rebuilt."""

from __future__ import annotations

from bnrecon.reproduction.study import read_reported
from bnrecon.studies.burkholz2024.grid_figure import draw
from bnrecon.studies.burkholz2024.reconstruction_claims import reconstruction_claims
from bnrecon.studies.burkholz2024.reconstruction_grid import CAPTION, GRID, reconstruction_rows
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

__all__ = ["PART"]

PART = RunTable(
    "Table 1",
    "Target reconstruction for CIFAR-10",
    reconstruction_rows("cifar10", read_reported(__package__)["table1"]),
    CAPTION,
    draw,
    GRID,
    reconstruction_claims("Table 1"),
)
