"""Section 5: training with BatchNorm statistics that vary more than those of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import COLUMN, PALETTE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.study import read_reported
from bnrecon.studies.bn_explained.trained_networks import (
    decide,
    describe,
    paired_difference,
    train_and_count,
)

__all__ = ["PART", "train_with_noise"]

REPORTED = read_reported(__package__)["controlled_noise"]
BATCH = 128
PRINTED = 1.15  # "increasing these variances about 15%"


@dataclass(frozen=True)
class Setting:
    """What a scale trains; ``factors`` are those of the variances, 1 without noise."""

    data: tuple[str, ...]
    factors: tuple[float, ...]
    options: tuple[str, ...]
    seeds: int


SETTINGS = {
    "smoke": Setting(("digits",), (1, PRINTED), ("scale=smoke", "train.batch_size=128"), 2),
    "laptop": Setting(
        ("cifar10", "cifar100"),
        (1, PRINTED, 4),
        (
            "target.width=8",
            "data.train_limit=10000",
            "train.epochs=10",
            "train.warmup_epochs=1",
        ),
        5,
    ),
    "paper": Setting(
        ("cifar10", "cifar100", "svhn"),
        (1, PRINTED, 2, 4, 8),
        ("target.width=64", "train.epochs=30", "train.warmup_epochs=5"),
        5,
    ),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=resnet9", *SETTINGS[scale].options)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each data set, noise and seed."""
    compared = {"data", "target.virtual_batch", "train.seed", "train.batch_size"}
    refuse_compared(options, compared)
    setting = SETTINGS[scale]
    return [
        Task(
            f"{data}, variances x {factor:g}, seed {seed}",
            train_with_noise,
            {"data": data, "factor": factor, "seed": seed},
            (
                f"data={data}",
                *common_options(scale),
                *([] if factor == 1 else [f"target.virtual_batch={BATCH / factor:.6g}"]),
                f"train.seed={seed}",
                *options,
            ),
        )
        for seed, data, factor in itertools.product(
            range(setting.seeds), setting.data, setting.factors
        )
    ]


def train_with_noise(data: str, factor: float, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """One row: a ResNet-9 whose statistics have ``factor`` times the variance of a batch's."""
    return pd.DataFrame([{"data": data, "factor": factor, "seed": seed} | train_and_count(options)])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per data set and noise, those of the paper first."""
    lines: list[dict[str, Any]] = []
    names = [*REPORTED, *(name for name in rows["data"].unique() if name not in REPORTED)]
    for data in names:
        part = rows[rows["data"] == data]
        printed = REPORTED.get(data, {})
        for factor in sorted({1.0, PRINTED, *rows["factor"]}):
            own = part[part["factor"] == factor]
            line: dict[str, Any] = {
                "data": data,
                "variances of μ and σ²": f"x {factor:g}",
                "virtual batch": f"{BATCH / factor:.4g}",
                "reported": printed.get("noise" if factor == PRINTED else "none", "")
                if factor in (1, PRINTED)
                else "",
                "test accuracy": mean_interval(list(own["accuracy"])) if len(own) else None,
                "training accuracy": mean_interval(list(own["training_accuracy"]))
                if len(own)
                else None,
            }
            difference = None
            if factor != 1 and len(own):
                difference = paired_difference(part, "factor", (factor, 1.0))
            line["difference to no noise"] = describe(difference) if factor != 1 else ""
            lines.append(line)
    return pd.DataFrame(lines).fillna("not measured")


def _caption(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return (
        f"ResNet-9 of width {first['width']} (paper: 64), {first['epochs']} epochs on "
        f"{first['trained_on']:,} training images, batches of {BATCH}, crops and flips; every "
        f"BatchNorm a NoisyBatchNorm2d with a virtual batch of {BATCH} over the factor; x 1 is "
        "BatchNorm itself. In every step of training each channel's mean is given additive and its "
        "variance multiplicative noise, so that their variances rise as Eq. 13 has it for the "
        "virtual batch. In a deep network a smaller batch itself varies less (erratum 29): there "
        "x 1.15 is about ten times the variance of μ. ±: 95% Student-t interval over seeds; "
        "differences are paired by seed. The paper states neither batch size nor schedule. svhn is "
        "trained at scale=paper."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """Difference to no noise against the factor of the variances, a line per data set."""
    figure, axes = new_figure(size=(COLUMN, 2.4))
    for number, (data, part) in enumerate(rows.groupby("data", sort=False)):
        factors = sorted(factor for factor in part["factor"].unique() if factor != 1)
        found = [paired_difference(part, "factor", (factor, 1.0)) for factor in factors]
        places = [factor * (1 + 0.02 * number) for factor in factors]
        means = [d.mean if d else float("nan") for d in found]
        widths = [(d.half_width if d else None) or 0.0 for d in found]
        axes.errorbar(
            places, means, widths, marker="o", capsize=2, color=PALETTE[number], label=f"{data}"
        )
        printed = REPORTED.get(data)
        if printed:
            gain = float(printed["noise"]) - float(printed["none"])
            axes.plot([PRINTED], [gain], "*", color=PALETTE[number], label=f"{data}, reported")
    axes.axhline(0, color="grey", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    ticks = sorted(factor for factor in rows["factor"].unique() if factor != 1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("factor of the variances of μ and σ²")
    axes.set_ylabel("change in test accuracy (points)")
    axes.legend()
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does noise as of a slightly smaller batch raise accuracy, and does more of it lower it?"""
    groups = dict(list(rows.groupby("data", sort=False)))

    def found(factor: float) -> dict[str, Any]:
        return {
            data: paired_difference(part, "factor", (factor, 1.0)) for data, part in groups.items()
        }

    def shown(differences: dict[str, Any]) -> str:
        return ", ".join(f"{data} {describe(d)}" for data, d in differences.items())

    small = found(PRINTED)
    result = [
        Claim(
            "Section 5",
            "Increasing the variances of μ and σ by about 15% raises the accuracy of a ResNet9.",
            decide(list(small.values())),
            f"change in percentage points: {shown(small)}; in print +0.34 (CIFAR10), +0.52 "
            "(CIFAR100) and +0.25 (SVHN), without a spread.",
        )
    ]
    largest = max(rows["factor"])
    if largest > PRINTED:
        large = found(largest)
        lowered = [
            None if d is None else type(d)(-d.mean, d.half_width, d.n) for d in large.values()
        ]
        result.append(
            Claim(
                "Section 5",
                '"Large amounts of jitter can be detrimental".',
                decide(lowered),
                f"variances x {largest:g}, change in percentage points: {shown(large)}.",
            )
        )
    return result


PART = Experiment(
    "Section 5",
    "Training with controlled noise",
    tasks,
    summarize,
    _caption,
    draw,
    options=common_options,
    claims=claims,
)
