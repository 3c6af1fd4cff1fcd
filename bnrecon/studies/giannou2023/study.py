"""The study of Giannou et al. 2023: names of its parts, each a module of this folder."""

from __future__ import annotations

from bnrecon.reproduction.study import Study, read_summary

STUDY = Study(
    "giannou2023",
    "Giannou et al. 2023",
    parts=(
        "theorem1",
        "corollary1",
        "theorem2",
        "theorem3",
        "lemma10",
        "figure4_left",
        "figure4_right",
        "figure5a",
        "figure5b",
        "layer_norm",
        "conditioned",
        "batching",
    ),
    main=("figure4_left", "figure4_right", "figure5a", "figure5b"),
    summary=read_summary(__package__),
)
