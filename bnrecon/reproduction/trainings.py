"""Trainings of a study: one task per network, with its test and training accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn

from bnrecon.config import composition
from bnrecon.data import Images, load
from bnrecon.data.batches import EpochPosition
from bnrecon.reporting.trackers.adapters import open_trackers
from bnrecon.reproduction.parts import Task, refuse_compared
from bnrecon.reproduction.request import option_name
from bnrecon.runtime import hardware
from bnrecon.targets.store import Trained, obtain_target

Measure = Callable[[nn.Module, Images, torch.device], Mapping[str, float]]


def obtain(options: Sequence[str]) -> tuple[Trained, Images, torch.device]:
    """The target of the run that these options describe, with its data and device.

    It is trained if necessary.
    """
    config = composition.compose(options)
    device = hardware.resolve_device(config.device)
    with composition.option_names("data"):
        data = load(config.data)
    return obtain_target(config.target_request, data, device, open_trackers(config)), data, device


def first_batches(
    images: Images, size: int, seed: int, count: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The first mini-batches (pixels, labels) of a training, from as many epochs as needed."""
    positions = (EpochPosition(size, seed, epoch) for epoch in itertools.count())
    epochs = (images.train_batches(at, device) for at in positions)
    return itertools.islice(itertools.chain.from_iterable(epochs), count)


def train_one(options: Sequence[str], measure: Measure | None = None) -> dict[str, Any]:
    """Train the network that these options describe, or load the trained one.

    Returns width, epochs, accuracies in percent, test images, seconds of training, and what
    ``measure`` computes from the trained network, its images and the device.
    """
    trained, data, device = obtain(options)
    config = trained.about["config"]
    return {
        "width": config["target"]["width"],
        "epochs": config["train"]["epochs"],
        "accuracy": trained.about["accuracy"],
        "training_accuracy": trained.about["log"][-1]["accuracy"],
        "images": trained.about["images"],
        "seconds": trained.about["seconds"],
        **({} if measure is None else measure(trained.network, data, device)),
    }


def train_setting(setting: str, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """One row: a setting of a comparison, trained with one seed."""
    return pd.DataFrame([{"setting": setting, "seed": seed, **train_one(options)}])


def training_tasks(
    settings: Mapping[str, Sequence[str]],
    common: Sequence[str],
    seeds: Sequence[int],
    options: Sequence[str] = (),
) -> list[Task]:
    """One task per setting and seed, with all settings for one seed before the next seed.

    The order of overrides is: ``common``, the setting's, the user's ``options``.

    Raises:
        UserError: an option sets the seed, or something that the settings vary.
    """
    differing = {option_name(option) for overrides in settings.values() for option in overrides}
    refuse_compared(options, differing | {"train.seed"})
    return [
        Task(
            f"{setting}, seed {seed}",
            train_setting,
            {"setting": setting, "seed": seed},
            (*common, *overrides, f"train.seed={seed}", *options),
        )
        for seed in seeds
        for setting, overrides in settings.items()
    ]
