"""Means with Student-t intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

__all__ = ["Interval", "mean_interval"]


@dataclass(frozen=True)
class Interval:
    """A mean, the half-width of its 95% interval (``None`` for fewer than two values) and the number of values."""

    mean: float
    half_width: float | None
    n: int

    def format(self, digits: int = 2) -> str:
        """Write the interval as in the papers, n included.

        >>> Interval(90.711, 0.024, 3).format()
        '90.71 ± 0.02 (n=3)'
        """
        spread = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} (n={self.n})"


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Compute mean and two-sided Student-t interval, mean ± t_{n-1} · s/√n with s of ddof=1.

    Raises ``ValueError`` for no values. One value has no interval.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, half_width=2.48413771..., n=3)
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values to average")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, 1)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    quantile = float(stats.t.ppf(0.5 + confidence / 2, n - 1))
    return Interval(mean, quantile * deviation / math.sqrt(n), n)
