"""Means by a column for figures, differences and trends by group, comparisons of settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pandas as pd

from bnrecon.reporting.figures import Axes
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction import intervals

ALIKE = ["width", "epochs", "seconds"]  # columns of ``compare_settings`` that pages omit


def interval_of(column: str) -> Callable[[pd.DataFrame], Interval | None]:
    """Return a function for a column's mean with its 95% interval; ``None`` without values.

    >>> interval_of("x")(pd.DataFrame({"x": [1.0, float("nan"), 1.0]}))
    Interval(mean=1.0, half_width=0.0, n=2)
    """

    def compute(rows: pd.DataFrame) -> Interval | None:
        values = list(rows[column].dropna())
        return mean_interval(values) if values else None

    return compute


def intervals_by(rows: pd.DataFrame, by: str, column: str) -> pd.DataFrame:
    """Means of a column for each value of another, with 95% Student-t half-widths, for error bars.

    A single value has no half-width (NaN).

    >>> intervals_by(pd.DataFrame({"x": [1, 1, 2], "y": [2.0, 4.0, 5.0]}), "x", "y")["mean"]
    x
    1    3.0
    2    5.0
    Name: mean, dtype: float64
    """
    means = {value: mean_interval(list(group[column])) for value, group in rows.groupby(by)}
    table = {value: (one.mean, one.half_width) for value, one in means.items()}
    return pd.DataFrame.from_dict(table, "index", float, ["mean", "half_width"]).rename_axis(by)


def errorbar_by(axes: Axes, rows: pd.DataFrame, by: str, column: str, **style: Any) -> None:
    """Draw ``intervals_by`` as a line with error bars, in a style of ``Axes.errorbar``."""
    line = intervals_by(rows, by, column)
    axes.errorbar(line.index, line["mean"], line["half_width"], **style)


def powers_by_features(rows: pd.DataFrame, column: str) -> dict[str, Interval]:
    """By distribution, the power of c0 that a column's positive values grow as, over seeds."""
    rows = rows[rows[column] > 0]
    return {
        str(label): mean_interval(slopes)
        for label, group in rows.groupby("features", sort=False)
        if (slopes := intervals.exponents(group, "channels", column))
    }


def differences_by(
    left: pd.DataFrame, right: pd.DataFrame, by: str | list[str], column: str
) -> list[Interval]:
    """The ``paired_difference`` of every group that both have.

    >>> rows = pd.DataFrame({"x": [1, 1, 2], "seed": [0, 1, 0], "y": [2.0, 4.0, 5.0]})
    >>> differences_by(rows, rows[:2], "x", "y")
    [Interval(mean=0.0, half_width=0.0, n=2)]
    """
    others = dict(list(right.groupby(by)))
    pairs = [(group, others[key]) for key, group in left.groupby(by) if key in others]
    differences = (intervals.paired_difference(*pair, column) for pair in pairs)
    return intervals.with_values(differences, least=1)


def signs(differences: Collection[Interval]) -> dict[str, int]:
    """Count the intervals below 0, above 0 and in all, under the names that claims use.

    >>> signs([Interval(1.0, 0.5, 3), Interval(1.0, 2.0, 3)])
    {'below': 0, 'above': 1, 'of': 2}
    """
    below, above = intervals.count_signs(differences)
    return {"below": below, "above": above, "of": len(differences)}


def compare_settings(
    rows: pd.DataFrame,
    heading: str,
    reported: Mapping[str, Mapping[str, str]],
    baselines: Mapping[str, str],
) -> pd.DataFrame:
    """One line per setting, with 95% Student-t intervals over seeds.

    A seed gives the same batches and crops in all settings, so a difference of two is the mean over
    the seeds that both have.

    Args:
        rows: the rows of ``training_tasks``.
        heading: the heading of the settings.
        reported: the paper's numbers, by setting and column.
        baselines: the setting that each compared setting is compared with.
    """
    title = "difference, paired by seed"
    lines = []
    for name, group in rows.groupby("setting", sort=False):
        line: dict[str, Any] = {heading: name}
        line |= {column: int(group[column].iloc[0]) for column in ("width", "epochs")}
        line |= reported.get(name, {})
        line["training accuracy"] = mean_interval(list(group["training_accuracy"]))
        line["test accuracy"] = mean_interval(list(group["accuracy"]))
        if (baseline := baselines.get(name)) is not None:
            difference = intervals.paired_difference_by(rows, "setting", name, baseline)
            line |= {"compared with": baseline, title: difference} if difference else {}
        lines.append(line | {"seconds": f"{group['seconds'].mean():.0f}"})
    return pd.DataFrame(lines).fillna("")
