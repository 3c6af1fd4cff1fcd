"""Figure 10, Section 4: training without BatchNorm, started from its statistics or not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import decide, paired_difference_by
from bnrecon.reproduction.options import refuse_compared
from bnrecon.studies.bn_explained.initializations import (
    at_rate,
    train_at_best_rate,
    train_at_rate,
)
from bnrecon.studies.bn_explained.trained_networks import (
    NOT_AUGMENTED,
    describe,
)

__all__ = ["PART"]

STARTS = {
    "zero_bias": "zero bias",
    "random_bias": "random bias",
    "frozen_statistics": "frozen BN statistics",
    "folded_statistics": "folded BN statistics",
    "frozen_scale": "frozen BN scale",
}
BN = "frozen_statistics"


@dataclass(frozen=True)
class Setting:
    """What a scale trains, and how many training images select the learning rate."""

    options: tuple[str, ...]
    rates: tuple[float, ...]
    validation: int
    seeds: int


SETTINGS = {
    "smoke": Setting(("data=digits", "scale=smoke"), (0.01, 0.1), 64, 2),
    "laptop": Setting(
        ("data=cifar100", "target.width=8", "train.epochs=6", "train.warmup_epochs=1"),
        (0.03, 0.1, 0.3),
        5000,
        3,
    ),
    "paper": Setting(
        ("data=cifar100", "target.width=64", "train.epochs=50", "train.warmup_epochs=5"),
        (0.003, 0.01, 0.03, 0.1, 0.3),
        5000,
        10,
    ),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=resnet9", *SETTINGS[scale].options, *NOT_AUGMENTED, "train.test_every=1")


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each start and learning rate, then one for each start and seed."""
    compared = {"target.initialization", "data.validation", "train.lr", "train.seed"}
    refuse_compared(options, compared)
    setting = SETTINGS[scale]
    runs = {
        start: (*common_options(scale), f"target.initialization={start}", *options)
        for start in STARTS
    }
    selection = [
        Task(
            f"{STARTS[start]}, rate {rate:g}, validation",
            train_at_rate,
            {"start": start, "rate": rate},
            at_rate(runs[start], rate, setting.validation),
        )
        for start, rate in itertools.product(STARTS, setting.rates)
    ]
    test = [
        Task(
            f"{STARTS[start]}, seed {seed}",
            train_at_best_rate,
            {
                "start": start,
                "seed": seed,
                "rates": list(setting.rates),
                "validation": setting.validation,
            },
            runs[start],
        )
        for seed, start in itertools.product(range(setting.seeds), STARTS)
    ]
    return selection + test


def _final(rows: pd.DataFrame) -> pd.DataFrame:
    """The tests after the last epoch; ``early``: their mean over the first half of the epochs.

    Without trainings that diverged, which are counted apart.
    """
    test = rows[(rows["kind"] == "test") & ~rows["diverged"].astype(bool)].sort_values("epoch")
    first_half = test[test["epoch"] <= test["epoch"].max() / 2]
    early = first_half.groupby(["start", "seed"])["accuracy"].mean().rename("early")
    last = test.groupby(["start", "seed"], sort=False).tail(1)
    return last.merge(early.reset_index(), on=["start", "seed"])


def _validation(rows: pd.DataFrame, start: str) -> pd.DataFrame:
    """After the last epoch of each learning rate: validation accuracy and its standard error."""
    part = rows[(rows["kind"] == "validation") & (rows["start"] == start)]
    last = part.sort_values("epoch").groupby("rate").tail(1).sort_values("rate")
    share = last["accuracy"] / 100
    return last.assign(error=100 * (share * (1 - share) / last["images"]) ** 0.5)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per initialization."""
    final = _final(rows)
    lines = []
    for start, title in STARTS.items():
        own = final[final["start"] == start]
        rates = _validation(rows, start)
        line: dict[str, Any] = {
            "initialization": title,
            "validation accuracy by learning rate": ", ".join(
                f"{rate:g}: {'diverged' if diverged else f'{accuracy:.1f}'}"
                for rate, accuracy, diverged in rates[["rate", "accuracy", "diverged"]].values
            ),
        }
        if len(own):
            line |= {
                "rate": f"{own['rate'].iloc[0]:g}",
                "test accuracy": mean_interval(list(own["accuracy"])),
                "first half of the epochs": mean_interval(list(own["early"])),
                "training accuracy": mean_interval(list(own["training_accuracy"])),
            }
            if start != BN:
                line["frozen BN statistics minus it"] = describe(_gain(final, start))
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _gain(
    final: pd.DataFrame, start: str, value: str = "accuracy", better: str = BN
) -> Interval | None:
    return paired_difference_by(final, "start", better, start, value)


def _caption(rows: pd.DataFrame) -> str:
    known = rows[~rows["diverged"].astype(bool)]
    if known.empty:
        return "All trainings so far diverged."
    first, epochs = known.iloc[0], int(known["epoch"].max())
    held_out = known.loc[known["kind"] == "validation", "images"]
    diverged = rows[(rows["kind"] == "test") & rows["diverged"].astype(bool)]
    diverged = diverged.drop_duplicates(["start", "seed"])
    return (
        f"ResNet-9 (we take DAWNBench's) of width {first['width']:.0f} (DAWNBench: 64) on "
        f"{first['data']} (paper: cifar100), {epochs} epochs, no augmentation. No BatchNorm is "
        "trained: all layers have a bias, at the start zero, or uniform within 1 / sqrt(fan-in), "
        "which is small beside the pre-activations. BN statistics: μ and σ of every channel over "
        "all training images, computed layer by layer before training (Eq. 3); frozen: they "
        "normalize in the whole training, as in the paper, so that a step of SGD moves the "
        "normalized weights 1/σ² times as much; folded: the same function at the start, with μ and "
        "σ in the weights and biases, which are trained as those of the first two rows. BN "
        "scale: divided by sqrt(μ² + σ²), so that the pre-activations have mean square 1, "
        "as with BN, and their zero sets are not translated. For a seed all have the same initial "
        "weights (convolutions: He normal) and order of images, and they learn the same "
        "parameters. The learning rate is selected for each, at seed 0, by the accuracy on "
        f"{_count(held_out)} held-out training images after the last epoch (bars: standard "
        "error); then all training images are trained on. SGD with momentum 0.9, weight decay "
        f"5e-4, batches of {first['batch_size']:.0f}, warm-up and a cosine; the paper states none "
        "of these. ±, bands: 95% Student-t interval over seeds; differences are paired by seed. "
        "First half of the epochs: mean of the test accuracies after each. "
        f"Trainings that diverged after the selection, and are left out: {len(diverged)}."
    )


def _count(images: pd.Series) -> str:
    return f"{int(images.max()):,}" if len(images) else "so far no"


def draw(rows: pd.DataFrame) -> Figure:
    """Test accuracy against epochs, and validation accuracy against the learning rate."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.8))
    test = rows[(rows["kind"] == "test") & ~rows["diverged"].astype(bool)]
    for number, (colour, (start, title)) in enumerate(zip(PALETTE, STARTS.items(), strict=False)):
        style: dict[str, Any] = {"color": colour, "marker": "os^Dv"[number], "markersize": 3}
        own = test[test["start"] == start].groupby("epoch")["accuracy"]
        if len(own):
            found = [mean_interval(list(values)) for _, values in own]
            means = np.array([interval.mean for interval in found])
            widths = np.array([interval.half_width or 0.0 for interval in found])
            left.plot(list(own.groups), means, label=title, **style)
            low, high = np.clip([means - widths, means + widths], 0, 100)
            left.fill_between(list(own.groups), low, high, color=colour, alpha=0.15, linewidth=0)
        rates = _validation(rows, start)
        rates = rates[~rates["diverged"].astype(bool)]
        right.errorbar(
            rates["rate"], rates["accuracy"], rates["error"], capsize=2, label=title, **style
        )
    left.set_xlabel("epoch")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel("test accuracy (%)")
    left.set_title("a  trained at the selected rate")
    right.set_xscale("log")
    rates = sorted(rows.loc[rows["kind"] == "validation", "rate"].unique())
    right.set_xticks(rates, [f"{rate:g}" for rate in rates])
    right.minorticks_off()
    right.set_xlabel("learning rate")
    right.set_ylabel("validation accuracy (%)")
    right.set_title("b  selection, seed 0")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Is the start from BN's statistics better, faster, and by the position of the zero sets?"""
    final, edge = _final(rows), _at_the_edge(rows)
    rivals = ("zero_bias", "random_bias")

    def gains(value: str) -> dict[str, Interval | None]:
        return {STARTS[start]: _gain(final, start, value) for start in rivals}

    def shown(found: dict[str, Interval | None]) -> str:
        return " and ".join(f"{describe(gain)} against {name}" for name, gain in found.items())

    best, fast = gains("accuracy"), gains("early")
    folded = {STARTS[start]: _gain(final, start, better="folded_statistics") for start in rivals}
    translation = _gain(final, "frozen_scale")
    reasons = decide([*folded.values(), translation])
    return [
        Claim(
            "Figure 10, Section 4",
            "Initialized by BN, with its statistics frozen, SGD reaches a higher-performing "
            "classifier than from zero or random biases.",
            "open" if edge else decide(best.values()),
            f"test accuracy in percentage points: {shown(best)}.{edge}",
        ),
        Claim(
            "Figure 10, Section 4",
            "Initialized by BN, with its statistics frozen, SGD converges faster.",
            "open" if edge else decide(fast.values()),
            "test accuracy over the first half of the epochs, at the rates selected for the last, "
            f"in percentage points: {shown(fast)}.",
        ),
        Claim(
            "Section 4",
            "The gain can be attributed to the position of the initial spline partition.",
            "contradicted" if reasons == "contradicted" else "open",
            "two parts of it, in percentage points. As an initialization alone (folded): "
            f"{shown(folded)}. The translation by μ, at the same scale of the pre-activations: "
            f"{describe(translation)}. A translation centres what the next layer is given, too, "
            "which is known to speed up SGD without any partition (LeCun et al. 1998): these "
            "comparisons cannot confirm the reason, only contradict it.",
        ),
        Claim(
            "Figure 5",
            "The same holds for a ResNet50 on ImageNet.",
            "open",
            "not measured: `bnrecon train experiment=imagenet_initialization "
            "target.initialization=frozen_statistics data.root=FOLDER`, and with zero_bias.",
        ),
    ]


def _at_the_edge(rows: pd.DataFrame) -> str:
    """Which initializations' selected rate is the smallest or largest that was tried."""
    tried = rows.loc[rows["kind"] == "validation", "rate"]
    chosen = rows[rows["kind"] == "test"].drop_duplicates("start")
    edge = chosen[chosen["rate"].isin([tried.min(), tried.max()])]["start"]
    if edge.empty:
        return ""
    names = ", ".join(STARTS[start] for start in edge)
    return (
        f" The selected rate is at the edge of those tried for {names}: a wider range may differ."
    )


PART = Experiment(
    "Figure 10, Section 4",
    "Training without BatchNorm, started from its statistics or not",
    tasks,
    summarize,
    _caption,
    draw,
    options=common_options,
    claims=claims,
)
