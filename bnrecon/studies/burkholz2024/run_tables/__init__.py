"""Tables of whole runs compared with the paper's: rows, grids, numbers, verdicts and pages."""
