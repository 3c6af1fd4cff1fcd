"""Tables of whole runs beside the paper's: rows, grids, their numbers, verdicts and pages."""
