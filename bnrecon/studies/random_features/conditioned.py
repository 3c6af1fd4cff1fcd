"""Table 1: training with weights multiplied by fixed, ill-conditioned factors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bnrecon.features.spectrum import aspect_of_condition, quantile
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.reproduction.study import read_reported
from bnrecon.reproduction.trainings import compare_settings, training_tasks

__all__ = ["PART", "largest_difference"]

REPORTED = read_reported(__package__)["table1"]
BASELINE = "1"
OPTIONS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke", "seeds=[0]"),
    "laptop": ("data=cifar10", "target=vgg18", "scale=laptop", "target.width=16", "train.epochs=6"),
    "paper": ("data=cifar10", "target=resnet18", "scale=paper", "target.width=64"),
}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return OPTIONS[scale]


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each condition number and seed, of initial weights, batches and factors."""
    settings = {condition: (f"target.condition={condition}",) for condition in REPORTED}
    return training_tasks(settings, OPTIONS[scale], SEEDS[scale], options)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each condition number, beside the paper's accuracies on ImageNet."""
    baseline = REPORTED[BASELINE]["test"]
    reported = {
        condition: {
            "reported, ImageNet, training": f"{accuracies['training']:g}",
            "reported, ImageNet, test": f"{accuracies['test']:g}",
            "reported, difference to baseline": f"{accuracies['test'] - baseline:.2f}"
            if condition != BASELINE
            else "",
        }
        for condition, accuracies in REPORTED.items()
    }
    return compare_settings(rows, "condition number", reported, falling=True)


def largest_difference(conditions: Sequence[float]) -> float:
    """Largest difference of factors of the same rank between two condition numbers.

    The factors are quantiles of Theorem 2.2's law, of root mean square 1.

    >>> largest_difference([5413, 1541601]) < 1e-3
    True
    """
    shares = np.linspace(0, 1, 10_001)
    factors = [quantile(shares, aspect_of_condition(condition)) for condition in conditions]
    return max(float(abs(one - other).max()) for one, other in itertools.combinations(factors, 2))


def caption(rows: pd.DataFrame) -> str:
    """Says how little the factors of the larger condition numbers differ."""
    conditions = sorted(float(name) for name in set(rows["setting"]) if float(name) > 1)
    differ = ""
    if len(conditions) > 1:
        differ = (
            f"From {conditions[0]:,.0f} on the law hardly changes: sorted by size, the factors of "
            f"these rows differ by at most {largest_difference(conditions):.1g}, so that "
            "conditioning can explain hardly any difference between them. "
        )
    return (
        "The layers' weights are s ∘ w with fixed factors s: quantiles of Theorem 2.2's law with "
        "the given condition number, in random order, of root mean square 1. "
        "The reported accuracies are those of ResNet-50 on ImageNet. "
        "That experiment is experiment=imagenet_condition; it was not run here. "
        f"{differ}"
        "'Open' means that the interval contains 0. "
        "There are five seeds at laptop scale; two of them were added because three had left the "
        "comparisons open. "
        "Training accuracies are means over the last epoch, with augmentation. "
        "Intervals are 95% Student-t intervals over seeds."
    )


PART = Experiment(
    where="Table 1",
    title="Training with ill-conditioned features",
    caption=caption,
    tasks=tasks,
    summary=summarize,
    options=common_options,
)
