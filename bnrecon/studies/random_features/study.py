"""Random features for normalization layers: its figures, tables and theorems."""

from __future__ import annotations

from bnrecon.reproduction.study import Study

__all__ = ["STUDY"]

STUDY = Study(
    name="random_features",
    paper="Random features for normalization layers",
    parts=(
        "conditioning",
        "spectrum",
        "descent",
        "equivalence",
        "projection",
        "alignment",
        "masks",
        "matching",
        "conditioned",
        "scales",
        "sparse",
    ),
)
