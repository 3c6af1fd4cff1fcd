"""Means and power laws of errors that spread over decades: intervals of their logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from bnrecon.reporting.statistics import Interval, mean_interval

__all__ = ["GeometricMean", "exponent", "geometric_mean"]


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
        '1e-03 (4e-16 to 3e+09), 0.5'
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


def exponent(sizes: Sequence[float], values: Sequence[float]) -> Interval:
    """The p of values ~ sizes^p: the slope of the logarithms, with its 95% Student-t interval.

    Ordinary least squares with len(values) - 2 degrees of freedom.

    Args:
        sizes: at least two different ones.
        values: positive, one or more a size.

    >>> round(exponent([1, 10, 100], [2.0, 20.0, 200.0]).mean, 12)
    1.0
    """
    x, y = np.log(sizes), np.log(values)
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    free = len(x) - 2
    if free < 1:
        return Interval(slope, None, len(x))
    left = y - y.mean() - slope * x
    error = math.sqrt(float(left @ left) / free / float(x @ x))
    return Interval(slope, float(stdtrit(free, 0.975)) * error, len(x))
