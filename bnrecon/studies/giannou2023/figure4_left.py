"""Figure 4, left: test error against the teacher's width, at the width that Theorem 1 asks for."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.giannou2023.comparison import (
    compare_methods,
    draw_methods,
    summarize_methods,
    where_better,
)

__all__ = ["PART", "SIDES", "draw", "side_tasks", "summarize"]

SIDES = {"smoke": (3, 5), "laptop": (5, 10, 15, 20, 25, 30), "paper": (5, 10, 15, 20, 25, 30)}

CAPTION = (
    "Mean squared error on the test samples: geometric mean of the runs without the smallest and "
    "the largest, their range in brackets. The learning rate (0.001, 0.01, 0.1) and its schedule "
    "(constant, cosine, exponential) are selected on validation samples of the first run; the "
    "paper states neither. Source width d². Construction in float64, SGD in float32."
)


def side_tasks(scale: str, density: float) -> list[Task]:
    """One task per teacher width."""
    return [
        Task(
            f"d = {side}",
            compare_methods,
            {"side": side, "width": side**2, "scale": scale, "density": density},
        )
        for side in SIDES[scale]
    ]


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The tasks at full density."""
    return side_tasks(scale, 1.0)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width."""
    return summarize_methods(rows, "side", "teacher width d")


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's axes: loss against the width of the teacher's hidden layer."""
    figure, axes = new_figure()
    draw_methods(axes, rows, "side")
    axes.set_xlabel("width d of the teacher (source width d²)")
    axes.legend()
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """What Appendix E says about the left panel."""
    sides = sorted(int(side) for side in rows["side"].unique())
    both = set(where_better(rows, "side", "teacher", "baseline"))
    both &= set(where_better(rows, "side", "student", "baseline"))
    chosen = rows[rows["method"] == "baseline"].drop_duplicates("side")["schedule"]
    constant = int((chosen == "constant").sum())
    return [
        Claim(
            "Appendix E, Figure 4 (left)",
            '"Both the constructive algorithms beat the baseline."',
            "confirmed" if both == set(sides) else "not confirmed",
            f"all middle runs of both are better at {len(both)} of {len(sides)} widths.",
        ),
        Claim(
            "Appendix E",
            "Of three schedules for SGD on the normalizations the constant one performs best.",
            "confirmed" if constant == len(sides) else "not confirmed",
            f"selected on validation samples at {constant} of {len(sides)} widths.",
        ),
    ]


PART = Experiment(
    "Figure 4, left",
    "Test error of the source network against the teacher's width",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
