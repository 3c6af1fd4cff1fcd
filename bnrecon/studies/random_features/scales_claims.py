"""What the trainings of ``scales`` say: the gap, the step's share of it, and what is left.

The paper trains for 300 and 500 epochs, where weight decay lets a start fade
(``bnrecon/targets/relative_step.py``): shorter trainings do not decide what it says of those.
"""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.intervals import decide, differences_by_seed, paired_difference_by
from bnrecon.studies.random_features.scales_settings import MATCHED, ONES, SLOWED, WEIGHTS

__all__ = ["claims", "step_share"]


def step_share(rows: pd.DataFrame) -> Interval | None:
    """The share in percent of the gap between scales and weights that the matched start closes.

    A ratio for each seed that all three settings have; the mean and its interval over them.
    """
    groups = {name: rows[rows["setting"] == name] for name in (ONES, WEIGHTS, MATCHED)}
    gap, closed = (differences_by_seed(groups[name], groups[ONES]) for name in (WEIGHTS, MATCHED))
    shares = (100 * closed / gap).dropna()
    return mean_interval(list(shares)) if len(shares) else None


PRINTED_EPOCHS = 300  # the shorter of the paper's trainings
NOT_YET = "not computed yet"
ENOUGH = 2  # seeds: the half-width says how little two of them tell


def claims(rows: pd.DataFrame) -> list[Claim]:
    """The paper's sentence; beyond it, how much of the gap is the step, and what is left."""
    gap = paired_difference_by(rows, "setting", WEIGHTS, ONES)
    left = paired_difference_by(rows, "setting", WEIGHTS, MATCHED)
    slowed = paired_difference_by(rows, "setting", WEIGHTS, SLOWED)
    alike = paired_difference_by(rows, "setting", SLOWED, ONES)
    share = step_share(rows)
    epochs, width = (int(rows[name].max()) for name in ("epochs", "width"))
    beyond = f"Beyond Sect. 5: {epochs} epochs, width {width}"
    trained = "Differences of test accuracy in points, paired by seed."
    return [
        _in_print(gap, epochs, width),
        Claim(
            beyond,
            "Trained scales that start at 1 stay below trained weights.",
            decide([gap], ENOUGH),
            f"weights minus scales {gap or NOT_YET}. {trained}",
        ),
        Claim(
            beyond,
            "Most of this gap is the step: it is closed by the matched start.",
            decide([share and share - 50], ENOUGH),
            f"the matched start closes {_percent(share)} of the gap; most is more than half. The "
            "other way round, steps of weights that are as short cost "
            f"{slowed or NOT_YET}, and leave weights minus scales at {alike or NOT_YET} at equally "
            f"short steps. {trained}",
        ),
        Claim(
            beyond,
            "A gap is left at equal steps along the gradient.",
            decide([left], ENOUGH),
            f"weights minus scales with the matched start {left or NOT_YET}: conditioning, and "
            f"what else differs. {trained}",
        ),
    ]


def _in_print(gap: Interval | None, epochs: int, width: int) -> Claim:
    """Of trainings as long as the paper's; open for shorter ones."""
    short = epochs < PRINTED_EPOCHS
    reason = (
        f"the paper trains for {PRINTED_EPOCHS} epochs and more at width 100, these are {epochs} "
        f"at width {width}. Weight decay lets a start fade in between, so that a short training "
        "does not tell what is left after a long one."
    )
    return Claim(
        "Sect. 5, CIFAR10",
        "'Despite using excess features, it cannot compete with training the network in the "
        "original parameterization.'",
        "open" if short else decide([gap], ENOUGH),
        reason if short else f"weights minus scales that start at 1 {gap or NOT_YET} points.",
    )


def _percent(share: Interval | None) -> str:
    return "a share not computed yet" if share is None else f"{share:.0f} %"
