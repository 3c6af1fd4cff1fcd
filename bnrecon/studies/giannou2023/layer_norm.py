"""Beyond the paper: Figure 4, left, with LayerNorm instead of BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.giannou2023.comparison import format_errors
from bnrecon.studies.giannou2023.variants import (
    VARIANT_SIDES,
    compare_normalizations,
    draw_variants,
)

__all__ = ["PART", "draw", "summarize"]

LABELS = {"batch": "BatchNorm", "layer": "LayerNorm"}

CAPTION = (
    "SGD on scales and shifts alone. LayerNorm normalizes every sample over its units, so that "
    "the source is no longer linear where its ReLUs are open: the construction does not apply. "
    "Same teachers, samples and frozen weights as in Figure 4, left; the optimizer of each is "
    "selected on validation samples of the first run. Samples, training and errors as there."
)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per teacher width."""
    return [
        Task(f"d = {side}", compare_normalizations, {"side": side, "scale": scale})
        for side in VARIANT_SIDES[scale]
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width."""
    lines = []
    for side, group in rows.groupby("side", sort=True):
        line = {"teacher width d": side}
        errors = {name: part["mse"] for name, part in group.groupby("normalization", sort=False)}
        for name, values in errors.items():
            line[LABELS[name]] = format_errors(values)
        by_run = group.pivot(index="run", columns="normalization", values="mse")
        if {"batch", "layer"} <= set(by_run):
            better = int((by_run["layer"] < by_run["batch"]).sum())
            line["runs in which LayerNorm is better"] = f"{better} of {len(by_run)}"
        lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Test error against the teacher's width, a line per kind of normalization."""
    return draw_variants(rows, "normalization", LABELS)


PART = Experiment(
    "beyond the paper",
    "Training the scales of LayerNorm",
    tasks,
    summarize,
    CAPTION,
    draw,
)
