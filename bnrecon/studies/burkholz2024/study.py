"""Burkholz 2024: its tables, the experiments on its theorems, and the claims of its text."""

from __future__ import annotations

from bnrecon.reproduction.study import Study, read_summary

STUDY = Study(
    "burkholz2024",
    "Burkholz 2024",
    parts=(
        "table1",
        "table2",
        "width100",
        "excess",
        "residual",
        "rounding",
        "solver_steps",
        "epsilon",
        "pooling",
        "recipe",
        "thresholds",
        "layers",
        "accuracy",
        "excess_layers",
        "deeper",
        "nonlinear",
        "border",
        "residual_blocks",
        "cost",
        "scratch",
        "pruned",
    ),
    solvers=("paper", "minimum", "exact"),
    main=("table1", "table2"),
    summary=read_summary(__package__),
)
