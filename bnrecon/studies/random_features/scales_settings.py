"""The ways of training that the part ``scales`` compares: their names and options."""

from __future__ import annotations

from fractions import Fraction

__all__ = ["MAIN", "MATCHED", "ONES", "SHOWN", "SLOWED", "WEIGHTS", "at_step", "step_of"]

ONES = "scales, started at 1"
MATCHED = "scales, started for the steps of weights"  # matched start
WEIGHTS = "weights"
SLOWED = "weights, slowed down alike"
SHOWN = {SLOWED: "weights, steps shortened by 3 fan-in"}  # on the page, where it differs
STEP = ", relative step "
MAIN = {
    ONES: ("target.inner=scale", "target.start=ones"),
    MATCHED: ("target.inner=scale", "target.start=weights"),
    WEIGHTS: ("target.features=none", "target.start=weights"),
    SLOWED: ("target.features=none", "target.start=ones"),
}


def at_step(kind: str, step: float) -> str:
    """What scales or weights are called at a relative step.

    >>> at_step(WEIGHTS, 1 / 8), at_step(MATCHED, 8)
    ('weights, relative step 1/8', 'scales, relative step 8')
    """
    return f"{kind.partition(',')[0]}{STEP}{Fraction(step)}"


def step_of(setting: str) -> float | None:
    """The relative step in such a name; ``None`` for the main settings.

    >>> step_of(at_step(WEIGHTS, 1 / 8)), step_of(WEIGHTS)
    (0.125, None)
    """
    _, found, step = setting.partition(STEP)
    return float(Fraction(step)) if found else None
