"""Numbers in words, for sentences and tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bnrecon.reporting.statistics import Interval


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
