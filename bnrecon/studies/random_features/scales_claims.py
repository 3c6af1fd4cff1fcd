"""What the trainings of ``scales`` say: the gap, the step's share of it, and what is left."""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.trainings import differences_by_seed, paired_difference, sign
from bnrecon.studies.random_features.scales_settings import ONES, SLOWED, WEIGHTS, WORKING

__all__ = ["claims", "step_share"]


def step_share(rows: pd.DataFrame) -> Interval | None:
    """The share in percent of the gap between scales and weights that the working start closes.

    A ratio for each seed that all three settings have; the mean and its interval over them.
    """
    gap, closed = (differences_by_seed(rows, name, ONES) for name in (WEIGHTS, WORKING))
    shares = (100 * closed / gap).dropna()
    return mean_interval(list(shares)) if len(shares) else None


VERDICTS = {1: "confirmed", 0: "open", -1: "not confirmed"}


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Is there a gap, is it conditioning, and is one left at equal steps?"""
    gap = paired_difference(rows, WEIGHTS, ONES)
    left = paired_difference(rows, WEIGHTS, WORKING)
    slowed = paired_difference(rows, WEIGHTS, SLOWED)
    alike = paired_difference(rows, SLOWED, ONES)
    share = step_share(rows)
    trained = (
        f"Width {rows['width'].iloc[0]}, {rows['epochs'].max()} epochs; differences of test "
        "accuracy in points, paired by seed."
    )
    return [
        Claim(
            "Sect. 5, and Burkholz 2024, Sect. 3.2",
            "Trained scales that start at 1 stay below trained weights.",
            VERDICTS[sign(gap)],
            f"weights less scales {_points(gap)}. {trained}",
        ),
        Claim(
            "Sect. 5",
            "The gap is ill conditioning (warm-up is 'to combat problematic conditioning'): most "
            "of it stays at equal steps.",
            _decide_share(share),
            f"the working start closes {_percent(share)} of the gap. The other way round, slowing "
            f"weights down as much costs {_points(slowed)}, and leaves weights less scales at "
            f"{_points(alike)} at equally short steps. {trained} Weight decay lets a start fade in "
            "longer trainings.",
        ),
        Claim(
            "Sect. 5",
            "'It cannot compete with training the network in the original parameterization': a "
            "gap is left at equal steps.",
            VERDICTS[sign(left)],
            f"weights less scales with the working start {_points(left)}: conditioning, and what "
            "else differs.",
        ),
    ]


def _decide_share(share: Interval | None) -> str:
    """Most is more than half of the gap."""
    if share is None or share.half_width is None:
        return "open"
    if abs(share.mean - 50) <= share.half_width:
        return "open"
    return "not confirmed" if share.mean > 50 else "confirmed"


def _points(difference: Interval | None) -> str:
    return "not computed yet" if difference is None else f"{difference}"


def _percent(share: Interval | None) -> str:
    return "a share not computed yet" if share is None else f"{share:.0f} %"
