"""Four ways to a source network, as in Figures 4 and 5.

One task's rows, their table and their figure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PALETTE
from bnrecon.studies.giannou2023.constructive import constructed_error
from bnrecon.studies.giannou2023.selection import train_sources, train_students
from bnrecon.studies.giannou2023.teacher import SIZES, draw_samples, draw_source

__all__ = [
    "METHODS",
    "PROTOCOL",
    "compare_methods",
    "draw_methods",
    "format_errors",
    "median_share",
    "middle_range",
    "place_legend",
    "summarize_methods",
    "where_better",
]

SMALL, FLOOR = 1e-6, 1e-16  # an error that counts as none; what is drawn lower is rounding

# What stands in the figures' legends, with the paper's colours in mind: blue, green, orange,
# black.
METHODS = {
    "baseline": "SGD on normalizations",
    "teacher": "construction from the teacher",
    "student": "construction from a learnt dense network",
    "dense": "learnt dense network",
}
COLOURS = {"baseline": PALETTE[0], "teacher": PALETTE[2], "student": PALETTE[1], "dense": "black"}


def _samples(scale: str) -> str:
    sizes = SIZES[scale]
    return f"{sizes.train:,}, {sizes.validation:,} and {sizes.test:,}"


# What the appendix leaves open, or this reproduction does differently.
PROTOCOL = (
    f"Samples for training, validation and test: {_samples('laptop')} at laptop scale, "
    f"{_samples('paper')} at paper scale (the paper: 1,000,000 for training, 1,000,000 for test). "
    f"{SIZES['laptop'].runs} runs, each with a teacher, samples and frozen weights of its own: "
    "teacher normal with variance 1/d, without bias; source normal with variance 1/fan-in, without "
    "bias; inputs standard normal. SGD in float32 with momentum 0.9, batches of 256 (an incomplete "
    f"one is dropped), {SIZES['laptop'].epochs} epochs; scales start at 1, shifts at 0; running "
    "statistics at test. The learning rate (0.001, 0.01, 0.1) and its schedule (constant, cosine, "
    "exponential down to 1%) are those with the least error on the first run's validation samples; "
    "the paper states no rate. Where 0.1 is selected, the largest rate tried, a larger one may do "
    "better. Construction in float64; its shift opens every ReLU for the largest norm seen in "
    "training. Errors: median of the runs, in brackets their range without the smallest and the "
    "largest, which the paper leaves out of its error bars (the median is the same without them); "
    "and how many runs are below 1e-6, where some are and some are not."
)


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
    """Median, smallest and largest of the runs without the smallest and the largest.

    The paper discards these two for its error bars. Errors of trained networks have two modes,
    exact and not, so that a mean of them, or of their logarithms, describes neither.

    >>> middle_range(pd.Series([1e-9, 1.0, 4.0, 2.0, 1e9]))
    (2.0, 1.0, 4.0)
    """
    middle = errors.sort_values().iloc[1:-1] if len(errors) > 2 else errors
    return float(middle.median()), float(middle.min()), float(middle.max())


def format_errors(errors: pd.Series) -> str:
    """Median and range of the middle runs, and how many runs are exact where not all are alike.

    >>> format_errors(pd.Series([1e-9, 1.0, 4.0, 2.0, 3.0]))
    '2.0e+00 (1.0e+00 to 3.0e+00), 1 of 5 below 1e-6'
    """
    middle, low, high = middle_range(errors)
    exact = int((errors < SMALL).sum())
    count = f", {exact} of {len(errors)} below 1e-6" if 0 < exact < len(errors) else ""
    return f"{middle:.1e} ({low:.1e} to {high:.1e}){count}"


def paired_errors(rows: pd.DataFrame, variable: str) -> pd.DataFrame:
    """Errors by ``variable`` and run, a column per method: the runs share teacher and source."""
    return rows.pivot_table("mse", [variable, "run"], "method")


def where_better(rows: pd.DataFrame, variable: str, first: str, second: str) -> list[int]:
    """Values of ``variable`` at which ``first`` beats ``second`` in every run."""
    errors = paired_errors(rows, variable)
    if not {first, second} <= set(errors):
        return []
    better = (errors[first] < errors[second]).groupby(level=variable).all()
    return [int(value) for value in better.index[better]]


def median_share(rows: pd.DataFrame, method: str) -> float:
    """Median over runs of a method's error, as a share of the labels' variance."""
    part = rows[rows["method"] == method]
    return float((part["mse"] / part["variance"]).median())


def summarize_methods(rows: pd.DataFrame, variable: str, heading: str) -> pd.DataFrame:
    """One line per teacher or source width: median of the runs' errors, the middle runs' range.

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
            line[label] = format_errors(errors)
        baseline = group[group["method"] == "baseline"]
        if len(baseline):
            line["SGD, share of the variance"] = f"{median_share(group, 'baseline'):.3f}"
            rate, schedule = baseline[["learning_rate", "schedule"]].iloc[0]
            line["SGD's optimizer"] = f"{rate:g}, {schedule}"
        lines.append(line)
    return pd.DataFrame(lines)


def draw_methods(axes: Axes, rows: pd.DataFrame, variable: str) -> None:
    """Error against ``variable``, logarithmic; bars span the middle runs."""
    floored = False
    for method, label in METHODS.items():
        part = rows[rows["method"] == method].groupby(variable)["mse"]
        found = {value: middle_range(errors) for value, errors in part}
        if not found:
            continue
        floored |= any(low < FLOOR for _, low, _ in found.values())
        columns = np.maximum(np.array(list(found.values())).T, FLOOR)
        middle, low, high = columns
        axes.errorbar(
            list(found),
            middle,
            [middle - low, high - middle],
            marker="o",
            capsize=2,
            color=COLOURS[method],
            linestyle="--" if method == "dense" else "-",
            markerfacecolor="none" if method == "dense" else None,
            markersize=6 if method == "dense" else None,
            label=label,
        )
    axes.set_yscale("log")
    axes.set_ylabel("test MSE")
    if floored:
        axes.axhline(FLOOR, color="grey", linestyle=":", linewidth=0.8, zorder=0)
        axes.annotate(
            "below 1e-16: rounding",
            (0.02, FLOOR),
            xycoords=("axes fraction", "data"),
            xytext=(0, 4),
            textcoords="offset points",
            fontsize=6,
            color="grey",
        )


def place_legend(figure: Figure, columns: int = 1, **options: Any) -> None:
    """A figure's one legend, above its axes, where it covers no data."""
    labelled = [axes for axes in figure.axes if axes.get_legend_handles_labels()[1]]
    if labelled:
        handles, labels = labelled[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, **options)
