"""Random features for normalization layers, Table 1: training behind fixed factors of a given condition number."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bnrecon.reproduction.experiments import Pieces
from bnrecon.reproduction.trainings import over_seeds, trainings

__all__ = ["REPORTED", "options", "pieces", "summary"]


# Condition number: training and test accuracy of ResNet-50 on ImageNet, as printed.
REPORTED = {
    "1": ("81.89", "76.89"),
    "5413": ("79.06", "75.84"),
    "10123": ("79.1", "75.6"),
    "1541601": ("76.28", "73.14"),
}


COMMON = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke", "seeds=[0]"),
    "laptop": ("data=cifar10", "target=vgg18", "scale=laptop", "target.width=16", "train.epochs=6"),
    "paper": ("data=cifar10", "target=resnet18", "scale=paper", "target.width=64"),
}


SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}


def options(scale: str) -> Sequence[str]:
    """What all its trainings have in common."""
    return COMMON[scale]


def pieces(scale: str, words: Sequence[str] = ()) -> Pieces:
    """A piece for each condition number and seed, of initial weights, batches and factors."""
    settings = {condition: [f"target.condition={condition}"] for condition in REPORTED}
    return trainings(settings, COMMON[scale], SEEDS[scale], words)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a condition number, the paper's ImageNet accuracies beside ours on CIFAR-10."""
    reported = {
        condition: {
            "paper, ImageNet, training": training,
            "paper, ImageNet, test": test,
            "paper, test, more than at 1": f"{float(test) - float(REPORTED['1'][1]):.2f}"
            if condition != "1"
            else "",
        }
        for condition, (training, test) in REPORTED.items()
    }
    return over_seeds(
        frame.assign(setting=frame["setting"].astype(str)),
        "condition number",
        reported,
        falling=True,
    )
