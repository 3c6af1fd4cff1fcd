"""CIFAR-10 from scratch by scales of dense random features (Random features for normalization layers, Sect. 5)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bnrecon.reproduction.experiments import Pieces
from bnrecon.reproduction.trainings import over_seeds, trainings

__all__ = ["REPORTED", "options", "pieces", "summary"]


SHORT, LONG, USUAL = "scales, without warm-up", "scales, longer and with warm-up", "weights"


REPORTED = {
    SHORT: "86.64 ± 0.08 (300 epochs)",
    LONG: "90.08 ± 0.03 (500 epochs)",
    USUAL: "in the order of 94",
}


# Epochs of the short and of the long training, and of the long one's warm-up, of which the paper gives no length.
SETTINGS = {
    "smoke": (
        ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
        (1, 2, 1),
        (0, 1),
    ),
    "laptop": (("data=cifar10", "scale=laptop", "target.width=16"), (4, 6, 2), (0, 1, 2)),
    "paper": (("data=cifar10", "scale=paper", "target.width=100"), (300, 500, 20), (0, 1, 2)),
}


def options(scale: str) -> Sequence[str]:
    """What all its trainings have in common."""
    return ("target=vgg18_normalization", *SETTINGS[scale][0])


def pieces(scale: str, words: Sequence[str] = ()) -> Pieces:
    """N + 100 features a layer, he_normal, scale-only inner layers; beside them the original parameterization of the same network."""
    _, (short, long, warmup), seeds = SETTINGS[scale]
    settings = {
        SHORT: ["target.inner=scale", f"train.epochs={short}", "train.warmup_epochs=0"],
        LONG: ["target.inner=scale", f"train.epochs={long}", f"train.warmup_epochs={warmup}"],
        USUAL: ["target.features=none", f"train.epochs={long}"],
    }
    return trainings(settings, options(scale), seeds, words)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a way of training."""
    return over_seeds(
        frame,
        "trained",
        {name: {"paper, width 100": value} for name, value in REPORTED.items()},
        paired=False,
    )
