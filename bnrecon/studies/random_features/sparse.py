"""Sect. 4, conclusion: sparse ID cond features compared with random masks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.reproduction.trainings import compare_settings, training_tasks

__all__ = ["PART"]

DENSITY = 0.2  # "often feasible without significant performance loss"
OPTIONS = {
    "smoke": ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
    "laptop": ("data=cifar10", "scale=laptop", "target.width=16", "train.epochs=6"),
    "paper": ("data=cifar10", "scale=paper", "target.width=64"),
}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}
SETTINGS = {
    f"weights under random masks of density {DENSITY}": (
        "target.features=none",
        f"target.density={DENSITY}",
    ),
    f"scales of sparse ID cond features of density {DENSITY}": (
        "target.features=sparse_id_cond",
        f"target.oversampling={DENSITY}",
        "target.inner=scale",
    ),
    "all weights": ("target.features=none",),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=vgg18_normalization", *OPTIONS[scale])


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each parameterization and seed."""
    return training_tasks(SETTINGS, common_options(scale), SEEDS[scale], options)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each parameterization; the first is the baseline."""
    return compare_settings(rows, "trained", {})


PART = Experiment(
    where="Sect. 4, conclusion",
    title="Sparse ID cond features compared with random masks",
    caption=(
        "One architecture is trained in three parameterizations. "
        f"The masks keep each weight with probability {DENSITY}; "
        f"of the n ID cond features of a layer, {DENSITY} n are drawn at random. "
        "Masks and features are drawn independently, so they select different weights. "
        "Training is otherwise the same, and the initial weights have the same variance in all "
        "three. "
        "The baseline is the first row. "
        "There are five seeds at laptop scale; two of them were added because three had left the "
        "comparison open. "
        "Training accuracies are means over the last epoch, with augmentation. "
        "Intervals are 95% Student-t intervals over seeds."
    ),
    tasks=tasks,
    summary=summarize,
    options=common_options,
)
