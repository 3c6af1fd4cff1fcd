"""The loss of pruned networks, and whether it is small."""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.studies.burkholz2024.pruned_settings import WEIGHTS

__all__ = ["LOSS", "is_small", "loss_of"]

LOSS = 0.1  # percentage points of accuracy


def loss_of(rows: pd.DataFrame) -> Interval:
    """Points of accuracy below the target's, over seeds of one method, share and target."""
    return mean_interval(list(rows["target_accuracy"] - rows["accuracy"]))


def is_small(method: str, loss: Interval) -> str:
    """Whether the loss is at most 0.1 points: decided by both ends of its interval."""
    half_width = 0.0 if method == WEIGHTS else loss.half_width  # nothing in these is random
    limit = LOSS + 1e-9  # accuracies are multiples of 1 / images, but not as floating point
    if half_width is None or loss.mean - half_width <= limit < loss.mean + half_width:
        return "open"
    return "yes" if loss.mean + half_width <= limit else "no"
