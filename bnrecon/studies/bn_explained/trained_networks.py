"""Networks that the study trains: images without augmentation, paired differences, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.trainings import train_one

__all__ = ["NOT_AUGMENTED", "decide", "describe", "paired_difference", "train_and_count"]

NOT_AUGMENTED = ("data.crop_padding=0", "data.flip=false")


def train_and_count(options: Sequence[str]) -> dict[str, Any]:
    """``train_one``, and the number of training images."""
    return train_one(options, lambda _network, data, _device: {"trained_on": data.sizes[0]})


def paired_difference(
    rows: pd.DataFrame, column: str, pair: tuple[object, object], value: str = "accuracy"
) -> Interval | None:
    """Mean over seeds of ``value`` where ``column`` is the first of a pair, minus the second's.

    Args:
        rows: with columns ``seed``, ``column`` and ``value``, one row for each of both.
        column: by which the two differ.
        pair: its two values. A seed gives both the same initial weights and order of images.
        value: the column that is compared.

    Returns:
        The interval over the seeds that both have; ``None`` where there is none.
    """
    table = rows.pivot(index="seed", columns=column, values=value)
    if not set(pair) <= set(table):
        return None
    differences = (table[pair[0]] - table[pair[1]]).dropna()
    return mean_interval(list(differences)) if len(differences) else None


def decide(differences: Sequence[Interval | None], above: float = 0.0) -> str:
    """The verdict on "all these differences are above ``above``".

    Confirmed where every interval lies above it, not confirmed where one lies below it, open
    otherwise: an interval that holds ``above`` decides nothing, nor does one of two values.

    >>> decide([Interval(2.0, 0.5, 3)]), decide([Interval(2.0, 0.5, 3), Interval(-1.0, 0.5, 3)])
    ('confirmed', 'not confirmed')
    >>> decide([Interval(2.0, 3.0, 3)]), decide([None])
    ('open', 'open')
    """
    known = [
        (d.mean - d.half_width, d.mean + d.half_width)
        for d in differences
        if d is not None and d.half_width is not None and d.n > 2
    ]
    if any(high < above for _, high in known):
        return "not confirmed"
    sure = len(known) == len(differences) and all(low > above for low, _ in known)
    return "confirmed" if known and sure else "open"


def describe(difference: Interval | None) -> str:
    """A difference with its interval, in percentage points.

    >>> describe(Interval(1.234, 0.56, 3))
    '+1.23 ± 0.56 (n=3)'
    """
    if difference is None:
        return "not measured"
    return f"{'+' if difference.mean >= 0 else ''}{difference.format()}"
