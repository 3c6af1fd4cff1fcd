"""Figure 5 (b): 5% of the frozen weights are not zero."""

from __future__ import annotations

from bnrecon.studies.giannou2023.sparse_sources import claims_at_5_percent, sparse_experiment

__all__ = ["PART"]

PART = sparse_experiment("Figure 5 (b)", 0.05, claims_at_5_percent)
