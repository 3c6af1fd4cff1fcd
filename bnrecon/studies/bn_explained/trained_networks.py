"""Networks that the study trains: how they are trained, and differences in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from bnrecon.config import composition
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.trainings import train_one

__all__ = ["NOT_AUGMENTED", "describe", "describe_training", "train_and_count"]

NOT_AUGMENTED = ("data.crop_padding=0", "data.flip=false")


def train_and_count(options: Sequence[str]) -> dict[str, Any]:
    """``train_one``, the number of training images, and how the network is trained."""
    config = composition.compose(options)
    chosen = ("batch_size", "lr", "momentum", "weight_decay", "warmup_epochs")
    row = train_one(options, lambda _network, data, _device: {"trained_on": data.sizes[0]})
    row |= {name: getattr(config.train, name) for name in chosen}
    return row | {"crop_padding": config.data.crop_padding, "flip": config.data.flip}


def describe_training(rows: pd.DataFrame) -> str:
    """Images, augmentation and optimizer of trained networks, in words.

    Where data sets differ, the names of those that have a value stand behind it.

    >>> one = {"epochs": 10, "trained_on": 10_000, "crop_padding": 4, "flip": True}
    >>> one |= {"batch_size": 128, "momentum": 0.9, "weight_decay": 5e-4, "lr": 0.1}
    >>> one |= {"warmup_epochs": 1, "data": "cifar10"}
    >>> other = one | {"data": "svhn", "trained_on": 73_257, "flip": False}
    >>> for part in describe_training(pd.DataFrame([one, other])).split(", ")[:4]:
    ...     print(part)
    10 epochs on 10,000 (cifar10)
    73,257 (svhn) training images
    crops and flips (cifar10)
    crops (svhn)
    """
    augmented = _by_data(rows, lambda row: _augmentation(row["crop_padding"], row["flip"]))
    optimizer = _by_data(
        rows,
        lambda row: (
            f"SGD with momentum {row['momentum']:g}, weight decay {row['weight_decay']:g} and rate "
            f"{row['lr']:g} (epochs of warm-up: {row['warmup_epochs']:g}; then a cosine)"
        ),
    )
    return (
        f"{_by_data(rows, lambda row: format(row['epochs'], 'g'))} epochs on "
        f"{_by_data(rows, lambda row: format(row['trained_on'], ',.0f'))} training images, "
        f"{augmented}, batches of {_by_data(rows, lambda row: format(row['batch_size'], 'g'))}, "
        f"{optimizer}"
    )


def _augmentation(crop_padding: float, flip: bool) -> str:
    kinds = [kind for kind, used in (("crops", crop_padding), ("flips", flip)) if used]
    return " and ".join(kinds) or "no augmentation"


def _by_data(rows: pd.DataFrame, word: Callable[[pd.Series], str]) -> str:
    """What is said of each row, once, with the data sets that it is said of where they differ."""
    said = rows.assign(said=rows.apply(word, axis=1))
    groups = [(str(text), part["data"].unique()) for text, part in said.groupby("said", sort=False)]
    if len(groups) == 1:
        return groups[0][0]
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in groups)


def describe(difference: Interval | None) -> str:
    """A difference with its interval, in percentage points.

    >>> describe(Interval(1.234, 0.56, 3))
    '+1.23 ± 0.56 (n=3)'
    """
    return "not measured" if difference is None else f"{difference:+z.2f}"
