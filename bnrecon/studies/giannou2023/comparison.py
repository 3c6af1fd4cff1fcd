"""Four ways to a source network, as in Figures 4 and 5.

One task's rows, their table and their figure.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from bnrecon.reporting.figures import PALETTE
from bnrecon.studies.giannou2023.constructive import constructed_error
from bnrecon.studies.giannou2023.selection import train_sources, train_students
from bnrecon.studies.giannou2023.teacher import SIZES, draw_samples, draw_source

__all__ = ["METHODS", "compare_methods", "draw_methods", "middle_range", "summarize_methods"]

# What stands in the figures' legends, with the paper's colours in mind: blue, green, orange,
# black.
METHODS = {
    "baseline": "SGD on normalizations",
    "teacher": "construction from the teacher",
    "student": "construction from a learnt dense network",
    "dense": "learnt dense network",
}
COLOURS = {"baseline": PALETTE[0], "teacher": PALETTE[2], "student": PALETTE[1], "dense": "black"}


def compare_methods(
    side: int,
    width: int,
    scale: str,
    density: float = 1.0,
    methods: tuple[str, ...] | list[str] = tuple(METHODS),
) -> pd.DataFrame:
    """Test errors of all methods for one teacher width d and one source width c, a row per run.

    Args:
        side: the teacher's width d, also the number of inputs.
        width: the source's width c; Theorem 1 asks for d².
        scale: ``smoke``, ``laptop`` or ``paper``: samples, epochs, runs.
        density: share of nonzero frozen weights.
        methods: names in ``METHODS``.

    Returns:
        side, width, density, method, run, mse, variance (of the test labels), and learning_rate,
        schedule or residual where they apply.
    """
    sizes = SIZES[scale]
    runs = list(range(sizes.runs))
    samples = draw_samples(side, sizes, runs)
    first, second = draw_source(side, width, density, runs)
    variance = samples.y["test"].double().var(dim=1).tolist()
    rows: list[dict[str, Any]] = []

    def add(method: str, errors: list[float], **about: Any) -> None:
        for run, error in zip(runs, errors, strict=True):
            per_run = {name: of[run] if isinstance(of, list) else of for name, of in about.items()}
            rows.append({"method": method, "run": run, "mse": error, **per_run})

    if "baseline" in methods:
        errors, chosen = train_sources(first, second, samples, sizes.epochs)
        add("baseline", errors, learning_rate=chosen.rate, schedule=chosen.schedule)
    if "teacher" in methods:
        found = constructed_error(first, second, samples.teachers, samples)
        add("teacher", [e for e, _ in found], residual=[residual for _, residual in found])
    if {"student", "dense"} & set(methods):
        errors, chosen, weights = train_students(side, runs, samples, sizes.epochs)
        add("dense", errors, learning_rate=chosen.rate, schedule=chosen.schedule)
        found = constructed_error(first, second, weights, samples)
        add("student", [e for e, _ in found], residual=[residual for _, residual in found])
    frame = pd.DataFrame(rows)
    frame["variance"] = [variance[run] for run in frame["run"]]
    return frame.assign(side=side, width=width, density=density)


def middle_range(errors: pd.Series) -> tuple[float, float, float]:
    """Geometric mean, smallest and largest of the runs without the smallest and the largest.

    The paper discards these two for its error bars.

    >>> mean, low, high = middle_range(pd.Series([1e-9, 1.0, 4.0, 2.0, 1e9]))
    >>> round(mean, 9), low, high
    (2.0, 1.0, 4.0)
    """
    middle = errors.sort_values().iloc[1:-1] if len(errors) > 2 else errors
    mean = math.exp(np.log(middle.clip(lower=1e-300)).mean())
    low, high = float(middle.min()), float(middle.max())
    return min(max(mean, low), high), low, high


def where_better(rows: pd.DataFrame, variable: str, first: str, second: str) -> list[int]:
    """Values of ``variable`` at which all middle runs of ``first`` beat all of ``second``."""
    found = []
    for value, group in rows.groupby(variable, sort=True):
        errors = {method: middle_range(part["mse"]) for method, part in group.groupby("method")}
        if {first, second} <= set(errors) and errors[first][2] < errors[second][1]:
            found.append(int(value))
    return found


def summarize_methods(rows: pd.DataFrame, variable: str, heading: str) -> pd.DataFrame:
    """One line per teacher or source width: geometric mean of the middle runs' errors, their range.

    Args:
        rows: those of ``compare_methods``.
        variable: the column that varies, ``side`` or ``width``.
        heading: what the table calls it.
    """
    lines = []
    for value, group in rows.groupby(variable, sort=True):
        line: dict[str, Any] = {heading: value}
        if variable == "side":
            line["source width"] = int(group["width"].iloc[0])
        for method, label in METHODS.items():
            errors = group.loc[group["method"] == method, "mse"]
            if errors.empty:
                continue
            middle, low, high = middle_range(errors)
            line[label] = f"{middle:.1e} ({low:.1e} to {high:.1e})"
        baseline = group[group["method"] == "baseline"]
        if len(baseline):
            share = (baseline["mse"] / baseline["variance"]).mean()
            line["baseline, share of the variance"] = f"{share:.3f}"
            rate, schedule = baseline[["learning_rate", "schedule"]].iloc[0]
            line["baseline's optimizer"] = f"{rate:g}, {schedule}"
        lines.append(line)
    return pd.DataFrame(lines)


def draw_methods(axes: Axes, rows: pd.DataFrame, variable: str) -> None:
    """Error against ``variable``, logarithmic; bars span the middle runs."""
    for method, label in METHODS.items():
        part = rows[rows["method"] == method].groupby(variable)["mse"]
        found = {value: middle_range(errors) for value, errors in part}
        if found:
            middle, low, high = (np.array(column) for column in zip(*found.values(), strict=True))
            axes.errorbar(
                list(found),
                middle,
                [middle - low, high - middle],
                marker="o",
                capsize=2,
                color=COLOURS[method],
                linestyle="--" if method == "dense" else "-",
                label=label,
            )
    axes.set_yscale("log")
    axes.set_ylabel("test MSE")
