"""The study of "Batch normalization explained": its parts, each a module of this folder."""

from __future__ import annotations

from bnrecon.reproduction.study import Study, read_summary

STUDY = Study(
    "bn_explained",
    "Batch normalization explained",
    parts=(
        "proposition1",
        "theorem1",
        "figure1",
        "theorem2",
        "figure2",
        "figure3",
        "figure4",
        "theorem3",
        "figure9",
        "proposition3",
        "figure10",
        "proposition2",
        "figure6",
        "figure7",
        "controlled_noise",
        "table1",
        "partition_cost",
    ),
    main=("figure3", "figure4", "table1"),
    summary=read_summary(__package__),
)
