"""Numbers in words, for sentences and tables."""

from __future__ import annotations

import collections
import decimal
import string
from collections.abc import Iterable
from typing import Any

from bnrecon.reporting.statistics import Interval

ROUNDING = {"u": decimal.ROUND_CEILING, "d": decimal.ROUND_FLOOR}
Bound = collections.namedtuple("Bound", "number rounding")


def count_of(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count_of(1, "row"), count_of(1024, "row")
    ('1 row', '1,024 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(values: Iterable[Any], spec: str = "", absent: str = "not computed yet") -> str:
    """The smallest and the largest value, or one value if both are written the same.

    >>> span([50, 35, 40]), span([0.501, 0.5], ".2f"), span([])
    ('35 to 50', '0.50', 'not computed yet')
    """
    if not (ordered := sorted(value for value in values if value == value)):  # without NaN
        return absent
    ends = dict.fromkeys(f"{value:{spec}}" for value in (ordered[0], ordered[-1]))
    return " to ".join(ends)


def spell(interval: Interval | None, spec: str = "", absent: str = "not computed yet") -> str:
    """An interval as text, or ``absent``.

    >>> spell(Interval(1.25, 0.5, 3), "+.1f"), spell(None)
    ('+1.2 ± 0.5 (n=3)', 'not computed yet')
    """
    return absent if interval is None else format(interval, spec)


class BoundFormatter(string.Formatter):
    """``str.format`` with two more conversions for bounds: ``!u`` rounds up, ``!d`` down.

    >>> BoundFormatter().format("at most {!u:.1e}, at least {!d:.2f}", 4.51e-6, 0.01 - 0.06)
    'at most 4.6e-06, at least -0.05'
    """

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """A number with its rounding, or what ``str.format`` has."""
        if conversion in ROUNDING:
            return Bound(float(value), ROUNDING[conversion])
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, spec: str) -> str:
        """The number, rounded as asked for."""
        if isinstance(value, Bound):
            exact = decimal.Decimal(f"{value.number:.12g}")  # without errors of binary rounding
            if not exact.is_finite():
                return format(value.number, spec)
            first = {"f": 0, "%": -2, "e": exact.adjusted(), "g": exact.adjusted() + 1}[spec[-1]]
            last = first - int(spec[spec.index(".") + 1 : -1])
            value = exact.quantize(decimal.Decimal(1).scaleb(last), value.rounding)
            return format(float(value), spec)
        return str(super().format_field(value, spec))
