"""Networks that the study trains: how they are trained, paired differences, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from bnrecon.config import composition
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.trainings import train_one

__all__ = [
    "NOT_AUGMENTED",
    "decide",
    "describe",
    "describe_training",
    "paired_difference",
    "train_and_count",
]

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


def paired_difference(
    rows: pd.DataFrame,
    column: str,
    pair: tuple[object, object],
    value: str = "accuracy",
    confidence: float = 0.95,
) -> Interval | None:
    """Mean over seeds of ``value`` where ``column`` is the first of a pair, minus the second's.

    Args:
        rows: with columns ``seed``, ``column`` and ``value``, one row for each of both.
        column: by which the two differ.
        pair: its two values. A seed gives both the same initial weights and order of images.
        value: the column that is compared.
        confidence: of the interval.

    Returns:
        The interval over the seeds that both have; ``None`` where there is none.
    """
    table = rows.pivot(index="seed", columns=column, values=value)
    if not set(pair) <= set(table):
        return None
    differences = (table[pair[0]] - table[pair[1]]).dropna()
    return mean_interval(list(differences), confidence) if len(differences) else None


def decide(differences: Sequence[Interval | None], above: float = 0.0) -> str:
    """The verdict on "all these differences are above ``above``".

    Confirmed where every interval lies above it, not confirmed where one lies below it, open
    otherwise: an interval that holds ``above`` decides nothing, nor does one of two values.

    >>> decide([Interval(2.0, 0.5, 3)]), decide([Interval(2.0, 0.5, 3), Interval(-1.0, 0.5, 3)])
    ('confirmed', 'not confirmed')
    >>> decide([Interval(2.0, 3.0, 3)]), decide([None])
    ('open', 'open')
    """
    known = [
        (d.mean - d.half_width, d.mean + d.half_width)
        for d in differences
        if d is not None and d.half_width is not None and d.n > 2
    ]
    if any(high < above for _, high in known):
        return "not confirmed"
    sure = len(known) == len(differences) and all(low > above for low, _ in known)
    return "confirmed" if known and sure else "open"


def describe(difference: Interval | None) -> str:
    """A difference with its interval, in percentage points.

    >>> describe(Interval(1.234, 0.56, 3))
    '+1.23 ± 0.56 (n=3)'
    """
    if difference is None:
        return "not measured"
    return f"{'+' if difference.mean >= 0 else ''}{difference.format()}"
