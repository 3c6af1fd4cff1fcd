"""How long the rest of a study will take: a range from what is finished, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["TimeLeft", "time_left"]

ENOUGH = 3  # finished pieces of a part, from which on they tell how long another one takes
WIDEST = 4  # upper over lower end, beyond which a range says nothing


@dataclass(frozen=True)
class TimeLeft:
    """How long the rest of some parts will take, and of which parts that is not known.

    Args:
        low: the lower end of a 95% range of seconds.
        high: its upper end.
        parts: those whose rest the range is of; where there is none, the range means nothing.
        unknown: why it is not known, by part.
    """

    low: float
    high: float
    parts: tuple[str, ...]
    unknown: Mapping[str, str]


def time_left(
    left: Mapping[str, int],
    seconds: Mapping[str, Sequence[float]],
    running: Sequence[tuple[str, float]],
    processes: int,
) -> TimeLeft:
    """The time until all is computed, if a part's other pieces are like those that are finished.

    Processes share the work evenly but for the longest piece, which may be the last. A part is left
    out, with the reason, where too few of its pieces are finished, where these took too different
    times, and where one that is computed now takes much longer than any of them.

    Args:
        left: number of pieces that are not finished, those that are computed now included, by part.
        seconds: of each finished piece, by part.
        running: part of each piece that is computed now, and for how many seconds it has been.
        processes: how many are computed at once.

    >>> found = time_left({"a": 10, "b": 2}, {"a": [60, 61, 62]}, [("a", 30)], processes=1)
    >>> round(found.low), round(found.high), found.parts, found.unknown
    (552, 608, ('a',), {'b': 'none finished'})
    """
    total = variance = longest = 0.0
    parts, unknown = [], {}
    for part, count in left.items():
        if not count:
            continue
        seen = seconds.get(part, ())
        begun = [spent for other, spent in running if other == part]
        if reason := _too_little(seen, begun):
            unknown[part] = reason
            continue
        mean, half = _sum_of_further(seen, count)
        if mean + half > WIDEST * (mean - half):
            unknown[part] = f"{len(seen)} finished, after very different times"
            continue
        parts.append(part)
        total += mean - sum(min(spent, mean / count) for spent in begun)
        variance += half**2
        longest = max(longest, *seen)
    half = math.sqrt(variance)
    high = (total + half) / processes + (1 - 1 / processes) * longest
    return TimeLeft(max(0.0, total - half) / processes, high, tuple(parts), unknown)


def _too_little(seen: Sequence[float], begun: Sequence[float]) -> str:
    """Why what is finished of a part says too little about its rest; empty where it does not."""
    if len(seen) < ENOUGH:
        return f"only {len(seen)} finished" if seen else "none finished"
    if begun and max(begun) > 2 * max(seen):
        return "one takes more than twice as long as any that is finished"
    return ""


def _sum_of_further(seen: Sequence[float], count: int) -> tuple[float, float]:
    """The middle and the half-width of a 95% range for the sum of ``count`` = m further values.

    Of k values with mean x and standard deviation s: m x ± t_{k-1} s √(m + m²/k).
    """
    from scipy.special import stdtrit  # takes half a second to load

    k = len(seen)
    mean = math.fsum(seen) / k
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in seen) / (k - 1))
    quantile = float(stdtrit(k - 1, 0.975))
    return count * mean, quantile * deviation * math.sqrt(count + count**2 / k)
