"""Table 1 and Appendix D: BatchNorm with and without learned scales and shifts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.study import read_reported
from bnrecon.studies.bn_explained.trained_networks import (
    NOT_AUGMENTED,
    describe,
    paired_difference,
    train_and_count,
)

__all__ = ["PART", "train_network"]

REPORTED = read_reported(__package__)["table1"]
TARGETS = {"RESNET": "dropout_resnet", "CNN": "dropout_cnn"}
NEGLIGIBLE = 1.0  # percentage points: what "very little impact" is taken to mean


@dataclass(frozen=True)
class Setting:
    """What a scale trains."""

    data: tuple[str, ...]
    widths: tuple[int, int]  # of RESNET and CNN
    options: tuple[str, ...]
    seeds: int


SETTINGS = {
    "smoke": Setting(("digits",), (4, 6), ("scale=smoke",), 2),
    "laptop": Setting(
        ("cifar10", "cifar100"),
        (8, 12),
        ("data.train_limit=10000", "train.epochs=10", "train.warmup_epochs=1"),
        3,
    ),
    "paper": Setting(
        ("imagenette", "cifar10", "cifar100", "svhn"),
        (64, 96),
        ("train.epochs=100", "train.warmup_epochs=5"),
        5,
    ),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return (*SETTINGS[scale].options, *NOT_AUGMENTED)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each data set, network, kind of BatchNorm and seed."""
    refuse_compared(options, {"data", "target", "target.affine", "train.seed"})
    setting = SETTINGS[scale]
    widths = dict(zip(TARGETS, setting.widths, strict=True))
    cells = itertools.product(range(setting.seeds), setting.data, TARGETS, (True, False))
    return [
        Task(
            f"{network} on {data}, {'learned' if affine else 'fixed'}, seed {seed}",
            train_network,
            {"data": data, "network": network, "affine": affine, "seed": seed},
            (
                f"data={data}",
                f"target={TARGETS[network]}",
                *common_options(scale),
                f"target.width={widths[network]}",
                f"target.affine={str(affine).lower()}",
                f"train.seed={seed}",
                *options,
            ),
        )
        for seed, data, network, affine in cells
    ]


def train_network(
    data: str, network: str, affine: bool, seed: int, options: Sequence[str]
) -> pd.DataFrame:
    """One row: a network trained with (``affine``) or without learned scales and shifts."""
    named = {"data": data, "network": network, "affine": affine, "seed": seed}
    return pd.DataFrame([named | train_and_count(options)])


def _measured(rows: pd.DataFrame, network: str, data: str) -> pd.DataFrame:
    return rows[(rows["network"] == network) & (rows["data"] == data)]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per network and data set: those of the paper, then others that were run."""
    lines = []
    own = [name for name in rows["data"].unique() if name not in REPORTED["RESNET"]]
    for network, data in itertools.product(TARGETS, [*REPORTED["RESNET"], *own]):
        cell = _measured(rows, network, data)
        printed: dict[str, float] = REPORTED[network].get(data, {})
        line: dict[str, Any] = {"network": network, "data": data}
        for affine, word in ((False, "fixed"), (True, "learned")):
            line[f"{word}, reported"] = f"{printed[word]:g}" if printed else ""
            part = list(cell.loc[cell["affine"] == affine, "accuracy"])
            line[word] = mean_interval(part) if part else "not measured"
        difference = paired_difference(cell, "affine", (False, True)) if len(cell) else None
        gap = printed["fixed"] - printed["learned"] if printed else None
        line["fixed - learned, reported"] = "" if gap is None else f"{gap:+.1f}"
        line["fixed - learned"] = describe(difference)
        lines.append(line)
    for network, printed in REPORTED["imagenet"].items():
        lines.append(
            {
                "network": network,
                "data": "imagenet",
                "fixed, reported": f"{printed['fixed']:.2f}",
                "fixed": "not measured",
                "learned, reported": f"{printed['learned']:.2f}",
                "learned": "not measured",
                "fixed - learned, reported": f"{printed['fixed'] - printed['learned']:+.2f}",
                "fixed - learned": "not measured",
            }
        )
    return pd.DataFrame(lines)


def _caption(rows: pd.DataFrame) -> str:
    widths = rows.drop_duplicates("network").set_index("network")["width"]
    full = dict(zip(TARGETS, SETTINGS["paper"].widths, strict=True))
    sizes = ", ".join(f"{n} of width {width} (paper: {full[n]})" for n, width in widths.items())
    return (
        f"Test accuracy in percent, {sizes}, {int(rows['epochs'].iloc[0])} epochs on "
        f"{int(rows['trained_on'].iloc[0]):,} training images. Learned: "
        "BatchNorm learns scales and shifts; fixed: they stay 1 and 0. No augmentation. ±: 95% "
        "Student-t interval over seeds; differences are paired by seed, which gives both the same "
        "initial weights and order of images. The paper states neither optimizer nor epochs; here "
        "SGD with momentum 0.9, weight decay 5e-4, batches of 128, rate 0.1 with warm-up and a "
        "cosine. Dropout's arguments in the paper's code are probabilities to keep; pooling and "
        "the 1x1 convolution of RESNET follow each width once, since eight poolings do not fit 32 "
        "pixels. svhn and imagenette are trained at scale=paper. The rows of ImageNet: bnrecon "
        "train experiment=imagenet_scales target=resnet18 target.affine=false data.root=FOLDER."
    )


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Do learned scales and shifts have very little impact?"""
    cells = list(rows.groupby(["network", "data"], sort=False))
    found = {name: paired_difference(cell, "affine", (False, True)) for name, cell in cells}
    shown = "; ".join(f"{net} on {data}: {describe(d)}" for (net, data), d in found.items())
    known = [(d.mean, d.half_width) for d in found.values() if d and d.half_width and d.n > 2]
    verdict = "open"
    if any(abs(mean) - width > NEGLIGIBLE for mean, width in known):
        verdict = "not confirmed"
    elif known and all(abs(mean) + width < NEGLIGIBLE for mean, width in known):
        verdict = "confirmed"
    return [
        Claim(
            "Table 1, Appendix D",
            'The learnable parameters of BN "have very little impact on the final test accuracy".',
            verdict,
            f"fixed minus learned, in percentage points: {shown}. Very little is taken to be less "
            f"than {NEGLIGIBLE:g} point; in print the differences are -4.8 to +0.4, and -2.13 to "
            f"-1.50 on ImageNet. {len(known)} comparisons at 95% each.",
        )
    ]


PART = Experiment(
    "Table 1",
    "BatchNorm with and without learned scales and shifts",
    tasks,
    summarize,
    _caption,
    options=common_options,
    claims=claims,
)
