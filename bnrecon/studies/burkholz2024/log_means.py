"""Means and power laws of errors that spread over decades: intervals of their logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.trainings import sign

__all__ = ["GeometricMean", "direction", "exponents", "geometric_mean", "written"]

REPETITIONS = 3


@dataclass(frozen=True)
class GeometricMean:
    """A geometric mean and the ends of its 95% interval, which are itself for a single value."""

    mean: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        """Write mean and interval by one format.

        >>> f"{geometric_mean([1e-4, 1e-2]):.0e}, {geometric_mean([0.5]):.1f}"
        '1e-03 (2e-16 to 5e+09), 0.5'
        """
        if self.n == 1:
            return f"{self.mean:{spec}}"
        return f"{self.mean:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def geometric_mean(values: Sequence[float]) -> GeometricMean:
    """The geometric mean, with the 95% Student-t interval of the logarithms' mean.

    Raises ``ValueError`` for no values, or for one that is not positive.
    """
    found = mean_interval([math.log(value) for value in values])
    half = found.half_width or 0.0
    middle = found.mean
    return GeometricMean(
        math.exp(middle), math.exp(middle - half), math.exp(middle + half), found.n
    )


def exponents(rows: pd.DataFrame, size: str, value: str) -> list[float]:
    """The p of value ~ size^p of each seed: its least-squares slope of the logarithms.

    A seed's solves share layer and features, so that only seeds are independent: a seed gives one
    slope, and none if it has a single size.

    Args:
        rows: with a column "seed".
        size: a column of positive numbers.
        value: another.

    >>> rows = {"seed": [0, 0, 1, 1, 2], "n": [1, 10, 1, 100, 1], "error": [2, 20, 3, 0.03, 7]}
    >>> [round(p, 12) for p in exponents(pd.DataFrame(rows), "n", "error")]
    [1.0, -1.0]
    """
    slopes = []
    for _, own in rows.groupby("seed"):
        x, y = np.log(own[size].to_numpy(float)), np.log(own[value].to_numpy(float))
        x = x - x.mean()
        if own[size].nunique() > 1:
            slopes.append(float(x @ y / (x @ x)))
    return slopes


def written(slopes: Sequence[float]) -> str:
    """The mean of seeds' slopes, the half-width of its 95% Student-t interval, and their number.

    >>> written([1.0, 1.5]), written([2.0])
    ('1.25 ± 3.18 (seeds: 2)', '2.00 (seeds: 1)')
    """
    found = mean_interval(slopes)
    spread = "" if found.half_width is None else f" ± {found.half_width:.2f}"
    return f"{found.mean:.2f}{spread} (seeds: {found.n})"


def direction(values: Sequence[float]) -> int:
    """The sign of the values' mean; 0 if its 95% interval has 0 in it, or with fewer than three.

    The paper repeats what it does three times; a page of less is not finished.

    >>> direction([1.0, 1.1, 0.9]), direction([-1.0, -1.1, -0.9]), direction([1.0, 1.0])
    (1, -1, 0)
    """
    return sign(mean_interval(values)) if len(values) >= REPETITIONS else 0
