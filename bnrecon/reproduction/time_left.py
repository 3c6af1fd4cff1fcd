"""How long the rest of a study will take: a range from what is finished, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bnrecon.reporting.statistics import mean_interval

__all__ = ["TimeLeft", "time_left"]

ENOUGH = 3  # finished pieces of a part, from which on they tell how long another one takes
WIDEST = 4  # upper over lower end, beyond which a range says nothing


@dataclass(frozen=True)
class TimeLeft:
    """How long the rest of some parts will take, and of which parts that is not known."""

    low: float  # the lower end of a 95% range of seconds
    high: float  # its upper end
    # Those whose rest the range is of; where there is none, the range means nothing
    parts: tuple[str, ...]
    unknown: Mapping[str, str]  # why it is not known, by part


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

    >>> rest = time_left({"a": 10, "b": 2}, {"a": [60, 61, 62]}, [("a", 30)], processes=1)
    >>> round(rest.low), round(rest.high), rest.parts, rest.unknown
    (552, 608, ('a',), {'b': 'none finished'})
    """
    total = variance = longest = 0.0
    parts, unknown = [], {}
    for part, count in left.items():
        seen = seconds.get(part, ())
        begun = [spent for other, spent in running if other == part]
        if not count:
            continue
        if len(seen) < ENOUGH:
            unknown[part] = f"only {len(seen)} finished" if seen else "none finished"
            continue
        if begun and max(begun) > 2 * max(seen):
            unknown[part] = "one takes more than twice as long as any that is finished"
            continue
        # Of m further values, after k with mean x and deviation s: m x ± t_{k-1} s √(m + m²/k).
        one = mean_interval(seen)  # x ± t_{k-1} s / √k
        mean, half = count * one.mean, (one.half_width or 0.0) * math.sqrt(count * (one.n + count))
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
