"""Table 1: what longer steps alone cost, and what differs at steps of equal length.

A layer W = s ∘ w with fixed factors s takes steps -η s² ∘ ∇L(W) for a rate η. With mean(s²) = 1
they go as far along the gradient as without factors, on average over weights, and are
sqrt(mean s⁴) times as long. No learning rate matches both. So the largest condition number is
trained at two rates, and compared with networks without factors whose steps go as far along the
gradient, or are as long. The initial weights have heavier tails, whatever the rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.intervals import paired_difference_by
from bnrecon.studies.random_features.conditioned_claims import (
    CONDITIONS,
    LONG_BASELINE,
    NOT_YET,
    decide_fall,
    log_uniform,
)
from bnrecon.targets.spec import TrainSpec

__all__ = ["BASELINES", "HARDEST", "claims", "settings", "step_length"]

CONDITION = max(CONDITIONS)


def step_length(condition: float) -> float:
    """How much longer steps are behind log-uniform factors: sqrt(mean s⁴) / mean s².

    With s = exp(u), u uniform on an interval of length ln κ, both means are integrals of
    exponentials, and the square of the ratio is ln κ (κ² + 1) / (κ² - 1).

    >>> [round(step_length(condition), 2) for condition in (10, 100, 1000)]
    [1.53, 2.15, 2.63]
    """
    squared = condition**2
    return math.sqrt(math.log(condition) * (squared + 1) / (squared - 1))


RATIO = step_length(CONDITION)
LONGER = f"no factors, learning rate × {RATIO:.2f}"
SHORTER = f"no factors, learning rate / {RATIO:.2f}"
HARDEST = log_uniform(CONDITION)
HARDEST_SHORTER = f"{HARDEST}, learning rate / {RATIO:.2f}"
# What each is compared with in the table.
BASELINES = {LONGER: LONG_BASELINE, SHORTER: LONG_BASELINE, HARDEST_SHORTER: SHORTER}
ALONG = ((HARDEST, LONG_BASELINE), (HARDEST_SHORTER, SHORTER))
AS_LONG = ((HARDEST, LONGER), (HARDEST_SHORTER, LONG_BASELINE))


def settings(factors: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The further trainings, at other peak rates.

    Args:
        factors: overrides of the largest condition number.
    """
    rate = TrainSpec().lr
    longer, shorter = (f"train.lr={value:.4g}" for value in (rate * RATIO, rate / RATIO))
    return {LONGER: (longer,), HARDEST_SHORTER: (*factors, shorter), SHORTER: (shorter,)}


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Is the accuracy lower at equal steps, whichever way they are matched?

    Args:
        rows: of all trainings; without these settings there is no claim.
    """
    if not set(rows["setting"]) & set(BASELINES):
        return []
    along, as_long = (
        {pair: paired_difference_by(rows, "setting", *pair) for pair in pairs}
        for pairs in (ALONG, AS_LONG)
    )
    alone = paired_difference_by(rows, "setting", LONGER, LONG_BASELINE)
    return [
        Claim(
            "Beyond Table 1: steps of equal length",
            f"Networks with log-uniform factors of condition number {CONDITION:,} score lower at "
            "equal steps, whether matched along the gradient or in their whole length.",
            decide_fall(*along.values(), *as_long.values()),
            f"points, at two learning rates {RATIO:.2f} times apart (higher; lower): along the "
            f"gradient {_written(along)}; in length {_written(as_long)}. 4 comparisons, seeds "
            "chosen in advance; confirmed is all of them below 0. "
            f"The rate × {RATIO:.2f} alone, without factors, changes the accuracy by "
            f"{alone or NOT_YET}. The rate is that of all parameters.",
        )
    ]


def _written(found: Mapping[tuple[str, str], Interval | None]) -> str:
    return "; ".join(str(one or NOT_YET) for one in found.values())
