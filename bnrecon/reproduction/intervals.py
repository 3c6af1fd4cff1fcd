"""Paired differences, geometric means, and verdicts from intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval


def differences_by_seed(
    left: pd.DataFrame, right: pd.DataFrame, column: str = "accuracy"
) -> pd.Series:
    """``left - right`` by seed, for each common seed, of the means of the seed's rows.

    Both must hold the same rows of a seed: missing values are skipped, so they bias its mean.

    >>> rows = pd.DataFrame({"seed": [0, 0, 1, 2], "accuracy": [1.0, 3.0, 5.0, 6.0]})
    >>> differences_by_seed(rows, rows[1:3]).to_dict()
    {0: -1.0, 1: 0.0}
    """
    one, other = (rows[column].astype(float).groupby(rows["seed"]).mean() for rows in (left, right))
    return (one - other).dropna()


def paired_difference(
    left: pd.DataFrame, right: pd.DataFrame, column: str = "accuracy", confidence: float = 0.95
) -> Interval | None:
    """The mean of ``left - right`` over the common seeds, with its Student-t interval.

    This is the paired t-test's, of ``differences_by_seed``; ``None`` without a common seed.

    >>> rows = pd.DataFrame({"seed": [0, 1], "error": [1.0, 2.0]})
    >>> paired_difference(rows, rows, "error")
    Interval(mean=0.0, half_width=0.0, n=2)
    >>> paired_difference(rows[:1], rows[1:], "error") is None
    True
    """
    differences = differences_by_seed(left, right, column)
    return mean_interval(list(differences), confidence) if len(differences) else None


def paired_difference_by(
    rows: pd.DataFrame,
    by: str,
    one: object,
    other: object,
    column: str = "accuracy",
    confidence: float = 0.95,
) -> Interval | None:
    """The ``paired_difference`` of rows with ``one`` in column ``by`` minus those with ``other``.

    >>> rows = {"seed": [0, 0, 1, 1], "size": [1, 2, 1, 2], "accuracy": [3.0, 5.0, 4.0, 6.0]}
    >>> paired_difference_by(pd.DataFrame(rows), "size", 2, 1)
    Interval(mean=2.0, half_width=0.0, n=2)
    """
    left, right = (rows[rows[by] == value] for value in (one, other))
    return paired_difference(left, right, column, confidence)


@dataclass(frozen=True)
class GeometricMean:
    """The geometric mean of positive values, from the interval of their mean logarithm."""

    logarithm: Interval

    @property
    def mean(self) -> float:
        """The exponential of the mean logarithm."""
        return _exp(self.logarithm.mean)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval; 0 and infinity for a single value.

        >>> GeometricMean(Interval(0.0, None, 1)).ends
        (0.0, inf)
        """
        low, high = self.logarithm.ends
        return _exp(low), _exp(high)

    def __format__(self, spec: str) -> str:
        """Write mean and interval in one format; a single value has no interval.

        >>> f"{geometric_mean([90.0, 100.0, 110.0]):.3g}", f"{geometric_mean([0.5]):.1f}"
        ('99.7 (77.7 to 128)', '0.5')
        """
        if self.logarithm.half_width is None:
            return f"{self.mean:{spec}}"
        low, high = self.ends
        return f"{self.mean:{spec}} ({low:{spec}} to {high:{spec}})"


def geometric_mean(values: Iterable[float], floor: float = 0.0) -> GeometricMean:
    """The geometric mean exp(mean(log)), with the 95% Student-t interval of the logarithms.

    Args:
        values: positive numbers.
        floor: replaces smaller values, for errors that may be exactly 0.

    Raises:
        ValueError: there are no values, or one is not positive and there is no floor.

    >>> f"{geometric_mean([4.0, 25.0]).mean:.1f}, {geometric_mean([1e-6, 0.0], 1e-10).mean:.0e}"
    '10.0, 1e-08'
    """
    return GeometricMean(mean_interval([math.log(max(value, floor)) for value in values]))


def _exp(value: float) -> float:
    """e^value; infinity where ``math.exp`` raises an overflow error."""
    with np.errstate(over="ignore"):
        return float(np.exp(value))


def with_values(intervals: Iterable[Interval | None], least: int = 3) -> list[Interval]:
    """The intervals of at least ``least`` values: only these decide something.

    >>> with_values([Interval(2.0, 0.5, 3), Interval(2.0, 0.5, 2), None])
    [Interval(mean=2.0, half_width=0.5, n=3)]
    """
    return [one for one in intervals if one is not None and one.n >= least]


def count_signs(intervals: Iterable[Interval | None]) -> tuple[int, int]:
    """The numbers of intervals below 0 and above 0.

    >>> count_signs([Interval(-1.0, 0.5, 3), Interval(2.0, 1.0, 3), Interval(1.0, 2.0, 3), None])
    (1, 1)
    """
    signs = [one.sign for one in intervals if one is not None]
    return signs.count(-1), signs.count(1)


def decide(
    intervals: Iterable[Interval | None], least: int = 3, comparisons: int | None = None
) -> str:
    """The verdict on "all of these are above 0".

    Another bound is subtracted: ``decide([one - bound])`` asks whether ``one`` is above it,
    ``decide([bound - one])`` whether it is below.

    Args:
        intervals: ``None`` stands for one that is not computed yet.
        least: intervals of fewer values decide nothing.
        comparisons: their number, by default that of the intervals.

    Returns:
        "contradicted" if an interval is below 0 after widening, so that among all comparisons this
        happens by chance in at most 2.5% of cases; "confirmed" if every interval, without widening,
        is above 0; otherwise "undecided", also without intervals.

    >>> decide([Interval(2.0, 0.5, 3)]), decide([Interval(2.0, 0.5, 3), Interval(-1.0, 0.5, 3)])
    ('confirmed', 'contradicted')
    >>> decide([Interval(2.0, 0.5, 3), Interval(-0.6, 0.5, 3)])  # one in forty by chance
    'undecided'
    >>> decide([Interval(2.0, 3.0, 3)]), decide([Interval(2.0, 0.5, 3), None])
    ('undecided', 'undecided')
    >>> decide([Interval(2.0, 0.5, 2)]), decide([Interval(2.0, 0.5, 2)], least=2)
    ('undecided', 'confirmed')
    """
    intervals = list(intervals)
    computed = with_values(intervals, least)
    wide = [one.widened(comparisons or len(intervals)) for one in computed]
    if count_signs(wide)[0]:
        return "contradicted"
    return "confirmed" if intervals and count_signs(computed)[1] == len(intervals) else "undecided"


def decide_within(intervals: Iterable[Interval | None], margin: float) -> str:
    """The verdict on "all of these are between -margin and margin".

    Args:
        intervals: ``None`` stands for one that is not computed yet.
        margin: a positive bound of the absolute values.

    Returns:
        "contradicted" if an interval, widened as in ``decide``, is outside; "confirmed" if every
        interval, without widening, is inside; otherwise "undecided".

    >>> [decide_within([Interval(mean, 0.5, 3)], 1.0) for mean in (0.4, 0.6, -1.6)]
    ['confirmed', 'undecided', 'contradicted']
    """
    intervals = list(intervals)
    sides: list[Interval | None] = []
    for one in intervals:
        sides += [None] if one is None else [one + margin, margin - one]
    return decide(sides, comparisons=len(intervals))


def exponents(rows: pd.DataFrame, size: str, value: str) -> list[float]:
    """Each seed's p of value ~ size^p: the least-squares slope of the logarithms.

    Each seed gives one slope, or none if it has a single size. So their interval is right where a
    seed's values depend on each other, and where the spread depends on the size.

    >>> rows = {"seed": [0, 0, 1, 1, 2], "n": [1, 10, 1, 100, 1], "error": [2, 20, 3, 0.03, 7]}
    >>> [round(p, 12) for p in exponents(pd.DataFrame(rows), "n", "error")]
    [1.0, -1.0]
    """
    return [
        statistics.linear_regression(np.log(of_seed[size]), np.log(of_seed[value])).slope
        for _, of_seed in rows.groupby("seed")
        if of_seed[size].nunique() > 1
    ]
