"""Beyond the paper: Figure 4, left, with LayerNorm in the place of BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PALETTE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.giannou2023.comparison import middle_range
from bnrecon.studies.giannou2023.figure4_left import SIDES
from bnrecon.studies.giannou2023.variants import compare_normalizations

__all__ = ["PART", "draw", "summarize"]

CAPTION = (
    "SGD on scales and shifts alone. LayerNorm normalizes every sample over its units, so that "
    "the source is no longer linear where its ReLUs are open: the construction does not apply. "
    "Same teachers, samples and frozen weights as in Figure 4, left; the optimizer of each is "
    "selected on validation samples of the first run. Geometric mean of the middle runs, their "
    "range in brackets."
)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per teacher width."""
    return [
        Task(f"d = {side}", compare_normalizations, {"side": side, "scale": scale})
        for side in SIDES[scale]
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width."""
    lines = []
    for side, group in rows.groupby("side", sort=True):
        line = {"teacher width d": side}
        errors = {name: part["mse"] for name, part in group.groupby("normalization", sort=False)}
        for name, values in errors.items():
            middle, low, high = middle_range(values)
            line[f"{name} norm"] = f"{middle:.1e} ({low:.1e} to {high:.1e})"
        by_run = group.pivot(index="run", columns="normalization", values="mse")
        better = int((by_run["layer"] < by_run["batch"]).sum())
        line["runs in which layer norm is better"] = f"{better} of {len(by_run)}"
        lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Test error against the teacher's width, a line per normalization."""
    figure, axes = new_figure()
    for (name, part), colour in zip(
        rows.groupby("normalization", sort=False), PALETTE, strict=False
    ):
        found = {side: middle_range(group["mse"]) for side, group in part.groupby("side")}
        middle = [m for m, _, _ in found.values()]
        bars = [[m - low for m, low, _ in found.values()], [h - m for m, _, h in found.values()]]
        axes.errorbar(list(found), middle, bars, marker="o", capsize=2, color=colour, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("width d of the teacher (source width d²)")
    axes.set_ylabel("test MSE")
    axes.legend(title="normalization")
    return figure


PART = Experiment(
    "beyond the paper",
    "Training the scales of LayerNorm",
    tasks,
    summarize,
    CAPTION,
    draw,
)
