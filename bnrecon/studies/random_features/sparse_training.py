"""The conclusion of Random features for normalization layers, Sect. 4: sparse ID cond features do what random masks do."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bnrecon.reproduction.experiments import Pieces
from bnrecon.reproduction.trainings import over_seeds, trainings

__all__ = ["options", "pieces", "summary"]


DENSITY = 0.2  # "often feasible without significant performance loss"


COMMON = {
    "smoke": ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
    "laptop": ("data=cifar10", "scale=laptop", "target.width=16", "train.epochs=6"),
    "paper": ("data=cifar10", "scale=paper", "target.width=64"),
}


SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}


def options(scale: str) -> Sequence[str]:
    """What all its trainings have in common."""
    return ("target=vgg18_normalization", *COMMON[scale])


def pieces(scale: str, words: Sequence[str] = ()) -> Pieces:
    """One architecture three times: all weights, randomly masked weights, scales of sparse ID cond features alone."""
    settings = {
        f"weights under random masks of density {DENSITY}": [
            "target.features=none",
            f"target.density={DENSITY}",
        ],
        f"scales of sparse ID cond features of density {DENSITY}": [
            "target.features=sparse_id_cond",
            f"target.oversampling={DENSITY}",
            "target.inner=scale",
        ],
        "all weights": ["target.features=none"],
    }
    return trainings(settings, options(scale), SEEDS[scale], words)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a parameterization."""
    return over_seeds(frame, "trained", {})
