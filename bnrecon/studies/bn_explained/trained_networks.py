"""The study's trained networks: how they are trained, and differences in words."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bnrecon.config import composition
from bnrecon.reporting.wording import spell
from bnrecon.reproduction.trainings import train_one

NOT_AUGMENTED = ("data.crop_padding=0", "data.flip=false")


def train_and_count(options: Sequence[str], **labels: Any) -> pd.DataFrame:
    """One row: labels, ``train_one``, the number of training images, how the network is trained."""
    config = composition.compose(options)
    chosen = ("batch_size", "lr", "momentum", "weight_decay", "warmup_epochs")
    row = labels | train_one(options, lambda _network, data, _device: {"trained_on": data.sizes[0]})
    row |= {name: getattr(config.train, name) for name in chosen}
    row |= {"crop_padding": config.data.crop_padding, "flip": config.data.flip}
    return pd.DataFrame([row])


def describe_training(rows: pd.DataFrame) -> str:
    """Images, augmentation and optimizer of trained networks, in words.

    If data sets differ, each description names its data sets.

    >>> one = {"epochs": 10, "trained_on": 10_000, "crop_padding": 4, "flip": True}
    >>> one |= {"batch_size": 128, "momentum": 0.9, "weight_decay": 5e-4, "lr": 0.1}
    >>> one |= {"warmup_epochs": 1, "data": "cifar10"}
    >>> other = one | {"data": "svhn", "trained_on": 73_257, "flip": False}
    >>> "; on svhn 10 epochs on 73,257 training images, crops, " in describe_training(
    ...     pd.DataFrame([one, other])
    ... )
    True
    """
    trainings = rows["data"].groupby(rows.apply(_describe_one, axis=1), sort=False).unique()
    if len(trainings) == 1:
        return str(trainings.index[0])
    return "; ".join(f"on {', '.join(names)} {words}" for words, names in trainings.items())


def _describe_one(row: pd.Series) -> str:
    kinds = ["crops"] * bool(row["crop_padding"]) + ["flips"] * bool(row["flip"])
    return (
        f"{row['epochs']:g} epochs on {row['trained_on']:,.0f} training images, "
        f"{' and '.join(kinds) or 'no augmentation'}, batches of {row['batch_size']:g}, "
        f"SGD with momentum {row['momentum']:g}, weight decay {row['weight_decay']:g} and rate "
        f"{row['lr']:g} (epochs of warm-up: {row['warmup_epochs']:g}; then a cosine)"
    )


describe = functools.partial(spell, spec="+z.2f", absent="not measured")  # percentage points
