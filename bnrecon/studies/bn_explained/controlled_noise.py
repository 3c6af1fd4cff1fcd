"""Section 5: training with BatchNorm statistics that vary more than those of a batch.

The noise is sized by Eq. 13, as in Figure 7. How much more the statistics of a network vary with it
is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.reproduction.intervals import paired_difference_by
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.study import read_reported
from bnrecon.studies.bn_explained.measured_noise import (
    STATISTICS,
    describe_factors,
    draw_factors,
    measure_noise,
)
from bnrecon.studies.bn_explained.noise_claims import PRINTED, claims, compare_setting, split
from bnrecon.studies.bn_explained.trained_networks import (
    describe,
    describe_training,
    train_and_count,
)

__all__ = ["PART", "train_with_noise"]

REPORTED = read_reported(__package__)["controlled_noise"]
BATCH = 128


@dataclass(frozen=True)
class Setting:
    """What a scale trains and measures.

    ``factors`` are nominal ones of the variances, 1 without noise; ``draws`` mini-batches are
    measured at the start of training.
    """

    data: tuple[str, ...]
    factors: tuple[float, ...]
    options: tuple[str, ...]
    seeds: int
    draws: int


SETTINGS = {
    "smoke": Setting(("digits",), (1, PRINTED), ("scale=smoke", "train.batch_size=128"), 2, 20),
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
        250,
    ),
    "paper": Setting(
        ("cifar10", "cifar100", "svhn"),
        (1, PRINTED, 2, 4, 8),
        ("target.width=64", "train.epochs=30", "train.warmup_epochs=5"),
        5,
        1000,
    ),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=resnet9", *SETTINGS[scale].options)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each data set, noise and seed, and one per data set that measures the noise."""
    compared = {"data", "target.virtual_batch", "train.seed", "train.batch_size"}
    refuse_compared(options, compared)
    setting = SETTINGS[scale]
    trained = [
        Task(
            f"{data}, nominal factor {factor:g}, seed {seed}",
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
    factors = [factor for factor in setting.factors if factor != 1]
    measured = [
        Task(
            f"{data}, noise measured",
            measure_noise,
            {"data": data, "factors": factors, "draws": setting.draws},
            (f"data={data}", *common_options(scale), "train.seed=0", *options),
        )
        for data in setting.data
    ]
    return trained + measured


def train_with_noise(data: str, factor: float, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """One row: a ResNet-9 with the noise that Eq. 13 gives ``factor`` times the variances."""
    named = {"data": data, "kind": "trained", "factor": factor, "seed": seed}
    return pd.DataFrame([named | train_and_count(options)])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per data set and noise, those of the paper first."""
    trained, measured = split(rows)
    lines: list[dict[str, Any]] = []
    names = [*REPORTED, *(name for name in rows["data"].unique() if name not in REPORTED)]
    for data, factor in itertools.product(names, sorted({1.0, PRINTED, *rows["factor"]})):
        part = trained[trained["data"] == data]
        own = part[part["factor"] == factor]
        found = measured[(measured["data"] == data) & (measured["factor"] == factor)]
        line: dict[str, Any] = {
            "data": data,
            "nominal factor (Eq. 13)": f"{factor:g}",
            "V": f"{BATCH / factor:.4g}",
        }
        for statistic, symbol in STATISTICS.items():
            title = f"var({symbol}), measured"
            line[f"{title}, with noise"] = (
                describe_factors(found, "noise", statistic) if factor != 1 else ""
            )
            line[f"{title}, batches of V"] = (
                describe_factors(found, "batch", statistic) if factor != 1 else ""
            )
        printed = REPORTED.get(data, {}) if factor in (1, PRINTED) else {}
        line["reported"] = printed.get("noise" if factor == PRINTED else "none", "")
        for column, title in (("accuracy", "test"), ("training_accuracy", "training")):
            line[f"{title} accuracy"] = mean_interval(list(own[column])) if len(own) else None
        difference = paired_difference_by(part, "factor", factor, 1.0) if factor != 1 else None
        line["difference to no noise"] = describe(difference) if factor != 1 else ""
        lines.append(line)
    return pd.DataFrame(lines).fillna("not measured")


def _caption(rows: pd.DataFrame) -> str:
    trained, measured = split(rows)
    if trained.empty or measured.empty:
        return "Computed in part: trainings or measurements are missing so far."
    error = 100 * (measured["error"] / measured["ratio"]).max()
    return (
        'The paper says "Resnet9"; ours is that of DAWNBench, of width '
        f"{trained['width'].iloc[0]:g} (DAWNBench: 64). {describe_training(trained)}. Every "
        f"BatchNorm is a NoisyBatchNorm2d with a virtual batch of V = {BATCH} over the nominal "
        "factor; factor 1 is BatchNorm itself. In every step of training each channel's mean is "
        "given additive and its variance multiplicative noise of the size that Eq. 13 asks for, as "
        "in Figure 7. Eq. 13 is for independent inputs, as the first BatchNorm has them. Above "
        "another one a smaller batch varies less than Eq. 13 says (erratum 29), and to the noise "
        "of a layer that of the layers below is added: the variances rise by more than the nominal "
        f"factor. Measured: variances over {measured['draws'].iloc[0]:g} mini-batches at the start "
        "of training to those without noise, median over channels; the first BatchNorm; the range "
        "over the others. Batches of V: the same for mini-batches of V images without noise. "
        f"Standard errors (bootstrap) are up to {error:.0f}%. ± of accuracies: 95% Student-t "
        "interval over seeds; differences are paired by seed. The paper states neither batch size "
        f"nor schedule. {compare_setting(trained)} Figure: (a) the change in accuracy; (b, c) "
        f"measured factors for the nominal {PRINTED:g} (dashed), ± two standard errors."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """The change in accuracy by nominal factor; measured factors by BatchNorm."""
    trained, measured = split(rows)
    figure, (left, *others) = new_figure(1, 3, (PAGE, 2.6))
    others[1].sharey(others[0])
    _draw_accuracies(left, trained)
    for axes, statistic in zip(others, STATISTICS, strict=True):
        draw_factors(axes, measured[measured["factor"] == PRINTED], statistic)
    for axes, letter in zip((left, *others), "abc", strict=True):
        axes.set_title(f"({letter})")
    if others[1].get_legend_handles_labels()[1]:
        others[1].legend(loc="upper right")
    return figure


def _draw_accuracies(axes: Axes, trained: pd.DataFrame) -> None:
    """Difference to no noise against the nominal factor, a line per data set."""
    for number, (data, part) in enumerate(trained.groupby("data", sort=False)):
        factors = sorted(factor for factor in part["factor"].unique() if factor != 1)
        found = [paired_difference_by(part, "factor", factor, 1.0) for factor in factors]
        places = [factor * (1 + 0.02 * number) for factor in factors]
        means = [d.mean if d else float("nan") for d in found]
        widths = [(d.half_width if d else None) or 0.0 for d in found]
        axes.errorbar(
            places, means, widths, marker="o", capsize=2, color=PALETTE[number], label=f"{data}"
        )
        printed = REPORTED.get(data)
        if printed:
            gain = float(printed["noise"]) - float(printed["none"])
            axes.plot(
                [0.95 * PRINTED], [gain], "*", color=PALETTE[number], label=f"{data}, reported"
            )
    axes.axhline(0, color="grey", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    ticks = sorted(factor for factor in trained["factor"].unique() if factor != 1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("nominal factor of the variances")
    axes.set_ylabel("change in test accuracy (points)")
    if axes.get_legend_handles_labels()[1]:
        axes.legend()


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
