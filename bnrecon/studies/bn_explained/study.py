"""The study of "Batch normalization explained": its parts, each a module of this folder."""

from __future__ import annotations

from bnrecon.reproduction.study import Study

__all__ = ["STUDY"]

STUDY = Study(
    "bn_explained",
    "Batch normalization explained",
    parts=(
        "proposition1",
        "theorem1",
        "theorem2",
        "theorem3",
        "proposition2",
        "figure7",
        "proposition3",
        "figure10",
        "controlled_noise",
        "table1",
        "figure1",
        "figure3",
        "figure2",
        "figure9",
    ),
)
