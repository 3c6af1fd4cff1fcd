"""Trainings from an initialization at learning rates that validation images select."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bnrecon.reproduction.trainings import obtain
from bnrecon.runtime.errors import Diverged

__all__ = ["at_rate", "train_at_best_rate", "train_at_rate"]


def at_rate(options: Sequence[str], rate: float, validation: int) -> tuple[str, ...]:
    """The overrides of a training that is tested on held-out training images."""
    return (*options, f"data.validation={validation}", f"train.lr={rate:g}", "train.seed=0")


def train_at_rate(start: str, rate: float, options: Sequence[str]) -> pd.DataFrame:
    """Train at one learning rate and test on the validation images: a row for each epoch."""
    named = {"start": start, "kind": "validation", "rate": rate, "seed": 0}
    return pd.DataFrame([named | row for row in _epochs(options)])


def train_at_best_rate(
    start: str, seed: int, rates: list[float], validation: int, options: Sequence[str]
) -> pd.DataFrame:
    """Train on all training images at the rate that validation selects; a row for each epoch.

    The rate is that of the largest validation accuracy after the last epoch, at seed 0. What was
    trained to select it is read, or trained again where it is missing.

    Args:
        start: a value of ``target.initialization``.
        seed: of the initial weights and the order of images.
        rates: the learning rates to select from.
        validation: images that are held out to select.
        options: overrides of the run, without rate and seed.
    """
    reached = {rate: _epochs(at_rate(options, rate, validation))[-1]["accuracy"] for rate in rates}
    best = max(reached, key=reached.__getitem__)
    named = {"start": start, "kind": "test", "rate": best, "seed": seed}
    run = (*options, f"train.lr={best:g}", f"train.seed={seed}")
    return pd.DataFrame([named | row for row in _epochs(run)])


def _epochs(options: Sequence[str]) -> list[dict[str, Any]]:
    """What each epoch's test gave; one row with accuracy 0 for a training that diverges."""
    try:
        trained, _, _ = obtain(options)
    except Diverged:
        return [{"epoch": 1, "accuracy": 0.0, "training_accuracy": 0.0, "diverged": True}]
    config = trained.about["config"]
    named = {"data": config["data"]["name"], "width": config["target"]["width"]}
    named |= {"batch_size": config["train"]["batch_size"], "images": trained.about["images"]}
    return [
        {
            "epoch": row["epoch"],
            "accuracy": row["test_accuracy"],
            "training_accuracy": row["accuracy"],
            "diverged": False,
            "seconds": trained.about["seconds"],
            **named,
        }
        for row in trained.about["log"]
    ]
