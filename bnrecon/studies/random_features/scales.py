"""Sect. 5: training the scales of dense random features from scratch on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.reproduction.study import read_reported
from bnrecon.reproduction.trainings import compare_settings, training_tasks

__all__ = ["PART"]

REPORTED = read_reported(__package__)["section5"]
SHORT, LONG, WEIGHTS = "scales, without warm-up", "scales, longer and with warm-up", "weights"


@dataclass(frozen=True)
class Schedule:
    """Options and epochs at a scale; the paper does not give the warm-up's length."""

    options: tuple[str, ...]
    short: int
    long: int
    warmup: int
    seeds: tuple[int, ...]


SCHEDULES = {
    "smoke": Schedule(
        ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"), 1, 2, 1, (0, 1)
    ),
    "laptop": Schedule(("data=cifar10", "scale=laptop", "target.width=16"), 4, 6, 2, (0, 1, 2)),
    "paper": Schedule(("data=cifar10", "scale=paper", "target.width=100"), 300, 500, 20, (0, 1, 2)),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=vgg18_normalization", *SCHEDULES[scale].options)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each way of training and seed.

    The features are n + 100 of he_normal for each layer, with scales alone between the two
    convolutions: the defaults of target=vgg18_normalization.
    """
    schedule = SCHEDULES[scale]
    settings = {
        SHORT: (
            "target.inner=scale",
            f"train.epochs={schedule.short}",
            "train.warmup_epochs=0",
        ),
        LONG: (
            "target.inner=scale",
            f"train.epochs={schedule.long}",
            f"train.warmup_epochs={schedule.warmup}",
        ),
        WEIGHTS: ("target.features=none", f"train.epochs={schedule.long}"),
    }
    return training_tasks(settings, common_options(scale), schedule.seeds, options)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each way of training."""
    reported = {SHORT: REPORTED["short"], LONG: REPORTED["long"], WEIGHTS: REPORTED["weights"]}
    columns = {name: {"reported, width 100": value} for name, value in reported.items()}
    return compare_settings(rows, "trained", columns, paired=False)


PART = Experiment(
    where="Sect. 5, CIFAR10",
    title="Training the scales of dense random features from scratch",
    caption=(
        "Each layer has n + 100 He-normal features and only scales between its two convolutions, "
        "which are computed as one. "
        "The last row is the same network with weights instead of pairs, trained as long as the "
        "second row. "
        "Its weights start as PyTorch starts them, with variance 1/3 over fan-in, and those of a "
        "pair with 4 over fan-in. Normalization hides this factor, but not its effect on the "
        "relative size of a step. "
        "Training accuracies are means over the last epoch, with augmentation. "
        "Intervals are 95% Student-t intervals over seeds."
    ),
    tasks=tasks,
    summary=summarize,
    options=common_options,
)
