"""Table 2 of Burkholz 2024: VGG18 targets on CIFAR-100, rebuilt."""

from __future__ import annotations

from bnrecon.reproduction.study import read_reported
from bnrecon.studies.burkholz2024.grid_figure import draw
from bnrecon.studies.burkholz2024.reconstruction_claims import reconstruction_claims
from bnrecon.studies.burkholz2024.reconstruction_grid import CAPTION, GRID, reconstruction_rows
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

__all__ = ["IMPOSSIBLE", "PART"]

# Printed above 90%, most of them Table 1's numbers: accuracies of CIFAR-10, not of CIFAR-100.
IMPOSSIBLE = ("leaky_relu", "sigmoid")

PART = RunTable(
    "Table 2",
    "Target reconstruction for CIFAR-100",
    reconstruction_rows("cifar100", read_reported(__package__)["table2"], IMPOSSIBLE),
    f"{CAPTION} The rebuilt accuracies of {' and '.join(IMPOSSIBLE)} targets are printed above "
    "90%, far above their targets: accuracies of CIFAR-10. They are compared with nothing.",
    draw,
    GRID,
    reconstruction_claims("Table 2"),
)
