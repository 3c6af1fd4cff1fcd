"""Means with Student-t intervals, and the exact test of paired predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtr, betaincinv, stdtrit  # scipy.stats takes a second to load


@dataclass(frozen=True)
class Interval:
    """A mean, the half-width of its 95% interval and the number of values.

    ``half_width`` is ``None`` for fewer than two values.
    """

    mean: float
    half_width: float | None
    n: int

    @property
    def bar(self) -> float:
        """``half_width`` for a figure's error bars; NaN, which draws none, where it is ``None``.

        >>> Interval(2.0, 0.5, 3).bar, Interval(2.0, None, 1).bar
        (0.5, nan)
        """
        return math.nan if self.half_width is None else self.half_width

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end; infinite without a half-width, as one value bounds nothing.

        >>> Interval(2.0, 0.5, 3).ends, Interval(2.0, None, 1).ends
        ((1.5, 2.5), (-inf, inf))
        """
        half = math.inf if self.half_width is None else self.half_width
        return self.mean - half, self.mean + half

    @property
    def sign(self) -> int:
        """1 above 0, -1 below 0, and 0 if the interval contains 0.

        >>> Interval(2.0, 1.0, 3).sign, Interval(-2.0, 1.0, 3).sign, Interval(2.0, 3.0, 3).sign
        (1, -1, 0)
        """
        low, high = self.ends
        return int(low > 0) - int(high < 0)  # NumPy's booleans cannot be subtracted

    def widened(self, comparisons: int) -> Interval:
        """Widen for so many comparisons: any misses its mean in at most 5% of cases (Bonferroni).

        >>> f"{Interval(2.0, 0.5, 3).widened(4)}"
        '2.00 ± 1.03 (n=3)'
        """
        if self.half_width is None:
            return self
        usual, wide = (_students_t(self.n, 0.05 / count) for count in (1, comparisons))
        return Interval(self.mean, self.half_width * wide / usual, self.n)

    def __neg__(self) -> Interval:
        """The interval of the negated values.

        >>> -Interval(2.0, 0.5, 3)
        Interval(mean=-2.0, half_width=0.5, n=3)
        """
        return Interval(-self.mean, self.half_width, self.n)

    def __add__(self, shift: float) -> Interval:
        """The interval of the values plus a constant; ``-`` works with one on either side.

        >>> one = Interval(2.0, 0.5, 3)
        >>> (one + 1).ends, (one - 1).ends, (1 - one).ends
        ((2.5, 3.5), (0.5, 1.5), (-1.5, -0.5))
        """
        return Interval(self.mean + shift, self.half_width, self.n)

    def __sub__(self, shift: float) -> Interval:
        return self + -shift

    def __rsub__(self, minuend: float) -> Interval:
        return -self + minuend

    def __format__(self, spec: str) -> str:
        """Write mean and half-width in one format, by default two digits; a sign is the mean's.

        >>> f"{Interval(90.711, 0.024, 3)}", f"{Interval(90.711, 0.024, 3):.1f}"
        ('90.71 ± 0.02 (n=3)', '90.7 ± 0.0 (n=3)')
        >>> f"{Interval(-0.001, 0.56, 3)}", f"{Interval(1.234, 0.56, 3):+.2f}"
        ('0.00 ± 0.56 (n=3)', '+1.23 ± 0.56 (n=3)')
        >>> str(Interval(90.711, 0.024, 3))
        '90.71 ± 0.02 (n=3)'
        """
        spec = without_negative_zero(spec or ".2f")
        spread = "" if self.half_width is None else f" ± {self.half_width:{spec.lstrip('+')}}"
        return f"{self.mean:{spec}}{spread} (n={self.n})"

    def __str__(self) -> str:
        return format(self)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Compute mean and two-sided Student-t interval, mean ± t_{n-1} · s/√n, with ddof=1 in s.

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
    return Interval(mean, _students_t(n, 1 - confidence) * deviation / math.sqrt(n), n)


def without_negative_zero(spec: str) -> str:
    """A format of numbers in which what rounds to zero has no minus.

    >>> [format(-0.0001, without_negative_zero(spec)) for spec in (".2f", "+.1f", "")]
    ['0.00', '+0.0', '-0.0001']
    """
    sign, rest = ("+", spec[1:]) if spec.startswith("+") else ("", spec)
    return f"{sign}z{rest}" if rest.startswith(".") and rest.endswith(("f", "%")) else spec


def _students_t(n: int, outside: float) -> float:
    """The t beyond which, on either side, lies ``outside`` of Student's t of n values.

    To nine decimals: further digits differ between versions of SciPy, and a table should not.
    """
    return round(float(stdtrit(n - 1, 1 - outside / 2)), 9)


def proportion_interval(hits: int, draws: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the exact two-sided interval of a probability (Clopper and Pearson 1934).

    For a one-sided bound at 95%, ``confidence`` is 0.9.

    >>> [round(end, 4) for end in proportion_interval(2, 3)]
    [0.0943, 0.9916]
    >>> [round(end, 4) for end in proportion_interval(400, 400, 0.9)]  # 0.05^(1/400)
    [0.9925, 1.0]
    """
    tail, misses = 0.5 - confidence / 2, draws - hits
    low = betaincinv(hits, misses + 1, tail) if hits else 0.0
    high = betaincinv(hits + 1, misses, 1 - tail) if misses else 1.0
    return float(low), float(high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Compute the p-value of the hypothesis that two classifiers are equally often right.

    Only images that exactly one of them predicts correctly matter. Under the hypothesis, each of
    these m images is the first one's with probability 1/2: the exact two-sided test of
    Binomial(m, 1/2), the version of McNemar's (1947, Psychometrika 12) without large counts.

    Returns:
        min(1, 2 P(X <= the smaller count)); 1 if there is no such image.

    >>> mcnemar(0, 5), mcnemar(3, 3), mcnemar(0, 0)
    (0.0625, 1.0, 1.0)
    """
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def mcnemar_below(level: float, images: int) -> float:
    """Compute how often ``mcnemar`` gives a p below a level by chance.

    Few images allow few values of p, so that the probability is less than the level.

    Args:
        level: between 0 and 1.
        images: number of images that exactly one of the two classifiers predicts correctly.

    Returns:
        The probability of p < level if both are equally often right: 2 P(X <= k) of
        Binomial(images, 1/2) for the largest k for which this is below the level, otherwise 0.

    >>> mcnemar_below(0.05, 5), mcnemar_below(0.05, 6)
    (0.0, 0.03125)
    """
    values = (mcnemar(k, images - k) for k in range(images // 2 + 1))
    return max((p for p in values if p < level), default=0.0)
