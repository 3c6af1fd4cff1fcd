"""How much work a job takes: small pieces share one, since each job has to load torch first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bnrecon.reproduction.work import RunWork, TaskWork, Work

__all__ = ["bundle", "known_seconds", "share"]

# Of a piece of work of which nothing is known: it is better to take it for long than for short.
GUESSED = {"smoke": 5.0, "laptop": 300.0, "paper": 6 * 3600.0}


def known_seconds(work: Sequence[Work]) -> dict[str, float]:
    """The median time of each part's finished work, in seconds."""
    found: dict[str, list[float]] = {}
    for item in work:
        if isinstance(item, RunWork | TaskWork) and (result := item.result()) is not None:
            found.setdefault(item.part, []).append(result.seconds)
    return {part: statistics.median(seconds) for part, seconds in found.items()}


def bundle(
    work: Sequence[Work], seconds: Mapping[str, float], scale: str, minutes: float
) -> list[list[Work]]:
    """Work in jobs of about ``minutes`` each, in its order; at least one piece a job.

    Args:
        work: what is to be computed.
        seconds: how long a piece takes, by part; guessed from the scale where it is not known.
        scale: the scale of the work.
        minutes: what a job is to take.
    """
    bundles: list[list[Work]] = []
    room = 0.0
    for item in work:
        taken = seconds.get(item.part, GUESSED[scale])
        if not bundles or taken > room:
            bundles.append([])
            room = 60 * minutes
        bundles[-1].append(item)
        room -= taken
    return bundles


def share(work: Sequence[Work], processes: int) -> list[list[Work]]:
    """Work shared among processes: the k-th takes every k-th piece."""
    shares = [list(work[first::processes]) for first in range(processes)]
    return [taken for taken in shares if taken]
