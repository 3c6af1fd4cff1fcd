"""Random features for normalization layers: its figures, tables and theorems."""

from __future__ import annotations

from bnrecon.reproduction.study import Study, read_summary

STUDY = Study(
    name="random_features",
    paper="Random features for normalization layers",
    parts=(
        "conditioning",
        "ranks",
        "spectrum",
        "few_channels",
        "descent",
        "minimum_width",
        "equivalence",
        "projection",
        "alignment",
        "masks",
        "matching",
        "example_density",
        "conditioned",
        "scales",
        "sparse",
    ),
    main=("conditioning", "conditioned"),
    summary=read_summary(__package__),
)
