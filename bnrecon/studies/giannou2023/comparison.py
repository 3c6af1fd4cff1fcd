"""The four methods of Figures 4 and 5: a task's rows, their table and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.reporting.figures import COLUMN, PAGE, PALETTE, Axes, Figure, draw_legend, new_figure
from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.parts import Decisions, Task, Tasks, part, sweep
from bnrecon.studies.giannou2023 import batched_training
from bnrecon.studies.giannou2023.constructive import constructed_error
from bnrecon.studies.giannou2023.teacher import BY_SCALE, SIZES, Samples, draw_samples, draw_source

SIDES = {"smoke": (3, 5), "laptop": (5, 10, 15, 20, 25, 30), "paper": (5, 10, 15, 20, 25, 30)}
TEACHER = {"smoke": 4, "laptop": 25, "paper": 25}  # its width when the source's varies
WIDTHS = {
    "smoke": (4, 10, 16),
    "laptop": (25, 100, 200, 300, 400, 500, 575, 600, 625, 650, 700),
    "paper": (25, 100, 200, 300, 400, 500, 575, 600, 625, 650, 700),
}
LARGEST = max(SIZES["paper"].rates)  # the same at every scale
NEGLIGIBLE_ERROR = 1e-6  # smaller errors count as none
FLOOR, BELOW, BOTTOM = 1e-3, 3e-4, 1.5e-4  # in figures, errors below ``FLOOR`` share a row
ABOVE = 12  # points between a panel and its title, for the label of c = d²
# When d or c varies: a task's name, the axis, and the pairs of d and c at each scale.
NAMES = {"side": "d = {side}", "width": "c = {width}"}
AXES = {
    "side": "width d of the teacher (source width d²)",
    "width": "width c of the source (teacher width {side})",
}
PAIRS = {
    "side": {scale: [(side, side**2) for side in sides] for scale, sides in SIDES.items()},
    "width": {scale: [(TEACHER[scale], width) for width in WIDTHS[scale]] for scale in WIDTHS},
}
ELSEWHERE = ["source width", "SGD's optimizer"]  # columns only in the full table
# Legend labels, for colours like the paper's: blue, green, orange, black.
METHODS = {
    "baseline": "SGD on normalizations",
    "teacher": "construction from the teacher",
    "student": "construction from a learnt dense network",
    "dense": "learnt dense network",
}
STYLES: Mapping[str, Mapping[str, Any]] = {
    "teacher": {"color": PALETTE[2]},
    "student": {"color": PALETTE[1]},
    "dense": {"color": "black", "linestyle": "--", "markerfacecolor": "none", "markersize": 6},
}


def compared_tasks(variable: str, density: float = 1.0) -> Tasks:
    """One task per teacher width (``side``) or source width (``width``)."""
    fixed = BY_SCALE | {"density": density}
    return sweep(compare_methods, NAMES[variable], {("side", "width"): PAIRS[variable]}, fixed)


def sparse_part(
    module: str, density: float, decide: Callable[[pd.DataFrame], Decisions]
) -> Experiment:
    """Both panels, with a share ``density`` of nonzero frozen weights."""

    def tasks(scale: str, options: Sequence[str]) -> list[Task]:
        left = compared_tasks("side", density)(scale, options)
        right = compared_tasks("width", density)(scale, options)
        shared = [task.arguments for task in left]
        return left + [task for task in right if task.arguments not in shared]

    draw = partial(draw_panels, density=density)
    return part(module, tasks, summarize_panels, draw, decide, excerpt=left_panel)


def compare_methods(side: int, width: int, scale: str, density: float = 1.0) -> pd.DataFrame:
    """Test errors of all methods for teacher width d and source width c, one row per run.

    d is also the number of inputs; Theorem 1 asks for c = d². ``density`` is the share of nonzero
    frozen weights, ``scale`` a name in ``SIZES``. ``variance`` is the test labels'; learning_rate,
    schedule and residual are set where they apply. If all runs select the baseline's setting, rows
    ``tried`` have its test and validation errors at each setting.
    """
    sizes, samples = SIZES[scale], _samples(side, scale)
    runs = list(range(sizes.runs))
    first, second = draw_source(side, width, density, runs)
    variance = samples.y["test"].double().var(dim=1).tolist()
    frames = []

    def add(method: str, **columns: Any) -> None:
        frames.append(pd.DataFrame({"method": method, "run": runs, **columns}))

    sources = batched_training.train_sources(first, second, samples, sizes)
    students, weights = _students(side, scale)
    add("baseline", mse=sources.errors, **asdict(sources.chosen))
    add("teacher", **constructed_error(first, second, samples.teachers, samples))
    add("dense", mse=students.errors, **asdict(students.chosen))
    add("student", **constructed_error(first, second, weights, samples))
    if sizes.selecting == sizes.runs:
        frames.append(pd.DataFrame(sources.tried).assign(method="tried"))
    frame = pd.concat(frames, ignore_index=True)
    frame["variance"] = [variance[run] for run in frame["run"]]
    return frame.assign(side=side, width=width, density=density)


# All source widths share these, and their tasks follow one another: the first task's stored seconds
# include the training.
@lru_cache(maxsize=1)
def _samples(side: int, scale: str) -> Samples:
    return draw_samples(side, SIZES[scale], range(SIZES[scale].runs))


@lru_cache(maxsize=1)
def _students(side: int, scale: str) -> tuple[batched_training.Trained, torch.Tensor]:
    runs = list(range(SIZES[scale].runs))
    return batched_training.train_students(side, runs, _samples(side, scale), SIZES[scale])


def middle_range(errors: pd.Series) -> tuple[float, float, float]:
    """Median, minimum and maximum of the runs without the smallest and the largest.

    The paper discards these two for its error bars. Errors of trained networks have two modes,
    exact and not; their mean, or that of their logarithms, describes neither.

    >>> middle_range(pd.Series([1e-9, 1.0, 4.0, 2.0, 1e9]))
    (2.0, 1.0, 4.0)
    """
    middle = errors.sort_values().iloc[1:-1] if len(errors) > 2 else errors
    return float(middle.median()), float(middle.min()), float(middle.max())


def format_errors(errors: pd.Series) -> str:
    """Median and range of the middle runs, and the number of exact runs if only some are exact.

    >>> format_errors(pd.Series([1e-9, 1.0, 4.0, 2.0, 3.0]))
    '2.0e+00 (1.0e+00 to 3.0e+00), 1 of 5 below 1e-6'
    """
    middle, low, high = middle_range(errors)
    exact = int((errors < NEGLIGIBLE_ERROR).sum())
    count = f", {exact} of {len(errors)} below 1e-6" if 0 < exact < len(errors) else ""
    return f"{middle:.1e} ({low:.1e} to {high:.1e}){count}"


def paired_errors(rows: pd.DataFrame, variable: str) -> pd.DataFrame:
    """Errors by ``variable`` and run, a column per method: the runs share teacher and source."""
    return rows.pivot_table("mse", [variable, "run"], "method")


def where_better(rows: pd.DataFrame, variable: str, first: str, second: str) -> list[int]:
    """Values of ``variable`` at which ``first`` beats ``second`` in every run."""
    errors = paired_errors(rows, variable)
    better = (errors[first] < errors[second]).groupby(level=variable).all()
    return [int(value) for value in better.index[better]]


def decide_by_runs(better: int, runs: int) -> bool | str:
    """Confirmed if a method is better in every run, contradicted if in at most half.

    >>> decide_by_runs(5, 5), decide_by_runs(3, 5), decide_by_runs(2, 4)
    (True, 'undecided', False)
    """
    return better == runs or ("undecided" if 2 * better > runs else False)


def largest_rates(rows: pd.DataFrame) -> str:
    """How often SGD's selected rate is the largest tried: a larger one may do better."""
    chosen = rows[rows["method"] == "baseline"].drop_duplicates(["side", "width"])
    largest = (chosen["learning_rate"] == LARGEST).sum()
    more = ", where a larger one may do better" if largest else ""
    return f"SGD's selected rate is the largest tried in {largest} of {len(chosen)} settings{more}"


def size_of(rows: pd.DataFrame) -> str:
    """A prefix for numbers from fewer samples than in print, where one run selects for all."""
    return "" if (rows["method"] == "tried").any() else "1/20 of the samples: "


def median_share(rows: pd.DataFrame, method: str) -> float:
    """Median over runs of a method's error, as a share of the labels' variance."""
    of_method = rows[rows["method"] == method]
    return float((of_method["mse"] / of_method["variance"]).median())


def summarize_methods(rows: pd.DataFrame, variable: str = "side") -> pd.DataFrame:
    """One line per teacher or source width: median of the runs' errors, the middle runs' range.

    ``variable`` is ``side`` or ``width``.
    """
    lines = []
    for value, group in rows.groupby(variable, sort=True):
        line: dict[str, Any] = {"source width c": value}
        if variable == "side":
            line = {"teacher width d": value, "source width": int(group["width"].iloc[0])}
        errors = {method: group.loc[group["method"] == method, "mse"] for method in METHODS}
        line |= {METHODS[name]: format_errors(mse) for name, mse in errors.items() if len(mse)}
        baseline = group[group["method"] == "baseline"]
        if len(baseline):
            line["SGD, share of the variance"] = f"{median_share(group, 'baseline'):.3f}"
            rate, schedule = baseline[["learning_rate", "schedule"]].iloc[0]
            line["SGD's optimizer"] = f"{rate:g}, {schedule}"
        lines.append(line)
    return pd.DataFrame(lines)


def left_panel(lines: pd.DataFrame) -> pd.DataFrame:
    """The summary's distinct lines at source width d², without Figure 4's dense network."""
    is_left = lines["source width"] == lines["teacher width d"] ** 2
    left = lines[is_left].drop_duplicates(["teacher width d"])
    return left.drop(columns=[*ELSEWHERE, METHODS["dense"]], errors="ignore")


def split_panels(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the rows into the left panel (source width d²) and the right (``TEACHER``'s d)."""
    left = rows[rows["width"] == rows["side"] ** 2].drop_duplicates(["side", "method", "run"])
    sides = [side for side in TEACHER.values() if side in set(rows["side"])]
    return left, rows[rows["side"].isin(sides[:1])].drop_duplicates(["width", "method", "run"])


def summarize_panels(rows: pd.DataFrame) -> pd.DataFrame:
    """The lines of both panels, by teacher width and source width."""
    left, right = split_panels(rows)
    upper, lower = summarize_methods(left, "side"), summarize_methods(right, "width")
    lower = lower.rename(columns={"source width c": "source width"})
    lower.insert(0, "teacher width d", right["side"].max())
    lines = pd.concat([lines for lines in (upper, lower) if len(lines)])
    by = ["teacher width d", "source width"]
    return lines.drop_duplicates(by).sort_values(by, ignore_index=True)


def draw_errors(
    axes: Axes,
    rows: pd.DataFrame,
    variable: str = "side",
    column: str = "method",
    labels: Mapping[str, str] = METHODS,
) -> None:
    """Draw errors, on a log axis, against ``variable``, a line per value of ``column``.

    Bars span the middle runs. Errors below ``FLOOR`` share one row. Lines are slightly apart so
    that none covers another.
    """
    apart = 0.008 * (rows[variable].max() - rows[variable].min())
    lowest = np.inf
    for number, (name, label) in enumerate(labels.items()):
        errors = rows[rows[column] == name].groupby(variable)["mse"]
        if not len(errors):
            continue
        ranges = np.array([middle_range(per_run) for _, per_run in errors]).T
        lowest = min(lowest, ranges.min())
        middle, low, high = np.where(ranges < FLOOR, BELOW, ranges)
        style = STYLES.get(name, {}) if column == "method" else {}
        options = {"marker": "o", "capsize": 2, "label": label, "color": PALETTE[number], **style}
        x = np.array(list(errors.groups)) + apart * (number - (len(labels) - 1) / 2)
        if variable == "width" and name == "dense":  # no source, so the same error at each c
            options = {"color": options["color"], "linestyle": "--", "label": label}
            axes.axhline(middle[0], **options)
            axes.axhspan(low[0], high[0], color=options["color"], alpha=0.1, linewidth=0)
            continue
        axes.errorbar(x, middle, [middle - low, high - middle], **options)
    if variable == "width":
        needed = int(rows["side"].iloc[0]) ** 2
        axes.axvline(needed, color="0.6", linestyle=":", linewidth=1)
        transform = axes.get_xaxis_transform()
        axes.text(needed, 1.0, "d²", transform=transform, ha="center", va="bottom", fontsize=7)
    label = AXES[variable].format(side=int(rows["side"].iloc[0]))
    axes.set(yscale="log", xlabel=label, ylabel="test MSE")
    if lowest < FLOOR:
        axes.set_ylim(bottom=BOTTOM)
        axes.axhspan(BOTTOM, FLOOR, color="0.93", zorder=0)
        where: Any = {"xycoords": axes.get_yaxis_transform(), "va": "top", "ha": "left"}
        axes.annotate("below 1e-3", (0.01, 0.9 * FLOOR), fontsize=7, color="0.4", **where)


def draw_panel(rows: pd.DataFrame, **options: Any) -> Figure:
    """Draw a single panel with the options of ``draw_errors``."""
    figure, axes = new_figure(size=(COLUMN, 3.2))
    axes.set_title(_what_is_drawn(rows), pad=ABOVE)
    draw_errors(axes, rows, **options)
    draw_legend(figure)
    return figure


def draw_panels(rows: pd.DataFrame, density: float) -> Figure:
    """Draw the paper's two panels."""
    figure, both = new_figure(1, 2, (PAGE, 3.1))
    titles = (f"{density:.0%} nonzero weights", _what_is_drawn(rows))
    panels = zip(both, split_panels(rows), ("side", "width"), titles, strict=True)
    for axes, some, variable, title in panels:
        axes.set_title(title, pad=ABOVE)
        if len(some):
            draw_errors(axes, some, variable)
        else:
            axes.text(0.5, 0.5, "not computed yet", ha="center", transform=axes.transAxes)
            axes.set_axis_off()
    draw_legend(figure, 2)
    return figure


def _what_is_drawn(rows: pd.DataFrame) -> str:
    runs = rows["run"].nunique()
    return f"median of {runs} runs; bars: the middle {max(runs - 2, 1)}"
