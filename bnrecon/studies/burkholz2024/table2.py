"""Table 2 of Burkholz 2024: VGG18 targets on CIFAR-100, rebuilt."""

from __future__ import annotations

from bnrecon.reproduction.study import read_reported
from bnrecon.studies.burkholz2024.grid_figure import draw
from bnrecon.studies.burkholz2024.reconstruction import GRID, TEXT, judge, rows_of
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

# Printed above 90%, most of them Table 1's numbers: accuracies of CIFAR-10, not of CIFAR-100.
IMPOSSIBLE = ("leaky_relu", "sigmoid")

PART = RunTable(
    "Table 2",
    f"{TEXT.title} for CIFAR-100",
    rows_of("cifar100", read_reported(__package__)["table2"], IMPOSSIBLE),
    f"{TEXT.caption}\n\nThe rebuilt accuracies of {' and '.join(IMPOSSIBLE)} targets are printed "
    "above 90%, far above their targets: accuracies of CIFAR-10. They are compared with nothing.",
    draw,
    GRID,
    lambda cells: TEXT.claims(judge("Table 2", cells)),
)
