"""Means with Student-t intervals, and the exact test of paired answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtr, stdtrit  # scipy.stats takes a second to load

__all__ = ["Interval", "mcnemar", "mean_interval"]


@dataclass(frozen=True)
class Interval:
    """A mean, the half-width of its 95% interval and the number of values.

    ``half_width`` is ``None`` for fewer than two values.
    """

    mean: float
    half_width: float | None
    n: int

    def __format__(self, spec: str) -> str:
        """Write mean and half-width by one format, two digits by default.

        >>> f"{Interval(90.711, 0.024, 3)}", f"{Interval(90.711, 0.024, 3):.1f}"
        ('90.71 ± 0.02 (n=3)', '90.7 ± 0.0 (n=3)')
        """
        spec = spec or ".2f"
        spread = "" if self.half_width is None else f" ± {self.half_width:{spec}}"
        return f"{self.mean:{spec}}{spread} (n={self.n})"

    def format(self, digits: int = 2) -> str:
        """Write the interval as in the papers, with n.

        >>> Interval(90.711, 0.024, 3).format()
        '90.71 ± 0.02 (n=3)'
        """
        return f"{self:.{digits}f}"


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
    quantile = float(stdtrit(n - 1, 0.5 + confidence / 2))
    return Interval(mean, quantile * deviation / math.sqrt(n), n)


def mcnemar(only_first: int, only_second: int) -> float:
    """Compute the p-value of two classifiers' being equally often right on the same images.

    Only images that one of them alone has right tell. With m of them, each is as likely to be the
    first one's as the second one's: the exact two-sided test of Binomial(m, 1/2), the version of
    McNemar's (1947, Psychometrika 12) that needs no large counts.

    Args:
        only_first: images that the first alone has right.
        only_second: images that the second alone has right.

    Returns:
        min(1, 2 P(X <= the smaller count)); 1 where there is no such image.

    >>> mcnemar(0, 5), mcnemar(3, 3), mcnemar(0, 0)
    (0.0625, 1.0, 1.0)
    """
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))
