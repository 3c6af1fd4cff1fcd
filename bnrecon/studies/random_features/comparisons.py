"""Comparisons that are paired by draw, and how many of several are decided."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval

__all__ = ["bounds", "count_signs", "paired_difference"]


def paired_difference(left: pd.DataFrame, right: pd.DataFrame, column: str) -> Interval | None:
    """The 95% Student-t interval of ``left - right`` over draws, each a mean of its rows.

    Args:
        left: rows with a column ``seed``.
        right: rows of the same draws.
        column: what is compared.

    Returns:
        The interval; None where no draw is in both.

    >>> rows = pd.DataFrame({"seed": [0, 1], "error": [1.0, 2.0]})
    >>> paired_difference(rows, rows, "error")
    Interval(mean=0.0, half_width=0.0, n=2)
    """
    paired = left.groupby("seed")[column].mean() - right.groupby("seed")[column].mean()
    values = list(paired.dropna())
    return mean_interval(values) if values else None


def bounds(interval: Interval | None) -> tuple[float, float]:
    """Both ends; infinite for a single draw or none, which decides nothing.

    >>> bounds(Interval(2.0, 0.5, 3)), bounds(Interval(2.0, None, 1))
    ((1.5, 2.5), (-inf, inf))
    """
    if interval is None or interval.half_width is None:
        return -math.inf, math.inf
    return interval.mean - interval.half_width, interval.mean + interval.half_width


def count_signs(intervals: Sequence[Interval]) -> tuple[int, int]:
    """How many lie below 0, and how many above.

    >>> count_signs([Interval(-1.0, 0.5, 3), Interval(2.0, 1.0, 3), Interval(1.0, 2.0, 3)])
    (1, 1)
    """
    ends = [bounds(one) for one in intervals]
    return sum(high < 0 for _, high in ends), sum(low > 0 for low, _ in ends)
