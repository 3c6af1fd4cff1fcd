"""Figures 5 and 10: training without BatchNorm from three initializations, and from a fourth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.trainings import obtain
from bnrecon.runtime.errors import Diverged
from bnrecon.studies.bn_explained.trained_networks import (
    NOT_AUGMENTED,
    decide,
    describe,
    paired_difference,
)

__all__ = ["PART", "train_at_best_rate", "train_at_rate"]

STARTS = {
    "zero_bias": "zero bias",
    "random_bias": "random bias",
    "frozen_statistics": "BN statistics, frozen",
    "frozen_deviations": "σ of BN alone, frozen",
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
            _selection(runs[start], rate, setting.validation),
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


def _selection(options: Sequence[str], rate: float, validation: int) -> tuple[str, ...]:
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
        start: a name in ``STARTS``.
        seed: of the initial weights and the order of images.
        rates: the learning rates to select from.
        validation: images that are held out to select.
        options: overrides of the run, without rate and seed.
    """
    reached = {
        rate: _epochs(_selection(options, rate, validation))[-1]["accuracy"] for rate in rates
    }
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
    about = trained.about
    config = about["config"]
    named = {"data": config["data"]["name"], "width": config["target"]["width"]}
    named |= {"validation": config["data"]["validation"], "images": about["images"]}
    return [
        {
            "epoch": row["epoch"],
            "accuracy": row["test_accuracy"],
            "training_accuracy": row["accuracy"],
            "diverged": False,
            "seconds": about["seconds"],
            **named,
        }
        for row in about["log"]
    ]


def _final(rows: pd.DataFrame) -> pd.DataFrame:
    """The tests after the last epoch, with the mean over epochs as ``average``."""
    test = rows[rows["kind"] == "test"]
    found = test.sort_values("epoch").groupby(["start", "seed"], sort=False)
    return found.tail(1).merge(
        found["accuracy"].mean().rename("average").reset_index(), on=["start", "seed"]
    )


def _validation(rows: pd.DataFrame, start: str) -> dict[float, float]:
    """Validation accuracy after the last epoch, by learning rate."""
    part = rows[(rows["kind"] == "validation") & (rows["start"] == start)]
    last = part.sort_values("epoch").groupby("rate").tail(1)
    return dict(zip(last["rate"], last["accuracy"], strict=True))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per initialization."""
    final = _final(rows)
    lines = []
    for start, title in STARTS.items():
        own = final[final["start"] == start]
        by_rate = _validation(rows, start)
        line: dict[str, Any] = {
            "initialization": title,
            "validation accuracy by learning rate": ", ".join(
                f"{rate:g}: {accuracy:.1f}" if accuracy else f"{rate:g}: diverged"
                for rate, accuracy in sorted(by_rate.items())
            ),
        }
        if len(own):
            line |= {
                "rate": f"{own['rate'].iloc[0]:g}",
                "test accuracy": mean_interval(list(own["accuracy"])),
                "mean over epochs": mean_interval(list(own["average"])),
                "training accuracy": mean_interval(list(own["training_accuracy"])),
            }
            if start != BN:
                line["BN minus it"] = describe(_gain(final, start))
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _gain(final: pd.DataFrame, start: str, value: str = "accuracy") -> Interval | None:
    return paired_difference(final, "start", (BN, start), value)


def _caption(rows: pd.DataFrame) -> str:
    known = rows[~rows["diverged"].astype(bool)]
    if known.empty:
        return "All trainings so far diverged."
    epochs, width = int(known["epoch"].max()), int(known["width"].max())
    data = known["data"].iloc[0]
    held_out = int(rows["validation"].max()) if rows["validation"].notna().any() else 0
    return (
        f"ResNet-9 of width {width} (paper: 64) on {data} (paper: cifar100), {epochs} "
        "epochs, no augmentation. No BatchNorm is trained: the networks have a bias in every "
        "layer, zero or random at the start, or normalizations whose statistics are computed "
        "once, over all training images before training, layer by layer (Eq. 3), and "
        "stay; σ alone: the same with μ = 0. All four have the same initial weights (He "
        "normal), parameters and order of images for a seed. "
        f"The learning rate is that of the largest accuracy on {held_out:,} "
        "held-out training images at seed 0; the accuracies stand in the table. Then all training "
        "images are trained on. SGD with momentum 0.9, weight decay 5e-4, batches of 128, warm-up "
        "and a cosine; the paper states none of these. ±: 95% Student-t interval over seeds; "
        "differences are paired by seed. Mean over epochs: of the test accuracies after each "
        "epoch, larger where training is faster. Figure 5's ResNet-50 on ImageNet is not measured: "
        "bnrecon train experiment=imagenet_initialization "
        "target.initialization=frozen_statistics data.root=FOLDER."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """Test accuracy against epochs, and validation accuracy against the learning rate."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.6))
    test = rows[rows["kind"] == "test"]
    for colour, (start, title) in zip(PALETTE, STARTS.items(), strict=False):
        own = test[test["start"] == start].groupby("epoch")["accuracy"]
        if len(own):
            found = [mean_interval(list(values)) for _, values in own]
            means = [interval.mean for interval in found]
            left.plot(list(own.groups), means, color=colour, marker="o", label=title)
            widths = [interval.half_width or 0.0 for interval in found]
            low = [mean - width for mean, width in zip(means, widths, strict=True)]
            high = [mean + width for mean, width in zip(means, widths, strict=True)]
            left.fill_between(list(own.groups), low, high, color=colour, alpha=0.2, linewidth=0)
        by_rate = sorted(_validation(rows, start).items())
        right.plot(*zip(*by_rate, strict=True), color=colour, marker="o", label=title)
    left.set_xlabel("epoch")
    left.set_ylabel("test accuracy (%)")
    left.set_title("a  trained at the selected rate", loc="left")
    right.set_xscale("log")
    rates = sorted(rows.loc[rows["kind"] == "validation", "rate"].unique())
    right.set_xticks(rates, [f"{rate:g}" for rate in rates])
    right.minorticks_off()
    right.set_xlabel("learning rate")
    right.set_ylabel("validation accuracy (%)")
    right.set_title("b  selection, seed 0", loc="left")
    if right.get_legend_handles_labels()[1]:
        right.legend()
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Is the start from BN's statistics better, faster, and by the position of the zero sets?"""
    final = _final(rows)
    others = ("zero_bias", "random_bias")

    def gains(value: str) -> dict[str, Interval | None]:
        return {STARTS[start]: _gain(final, start, value) for start in others}

    def shown(found: dict[str, Interval | None]) -> str:
        return "; ".join(f"against {name} {describe(gain)}" for name, gain in found.items())

    best, fast = gains("accuracy"), gains("average")
    position = _gain(final, "frozen_deviations")
    return [
        Claim(
            "Figures 5 and 10",
            "Initialized by BN, SGD without BN reaches a higher-performing classifier.",
            decide(list(best.values())),
            f"test accuracy in percentage points, {shown(best)}.{_at_the_edge(rows)}",
        ),
        Claim(
            "Figures 5 and 10",
            "Initialized by BN, SGD without BN converges faster.",
            decide(list(fast.values())),
            f"test accuracy averaged over the epochs, in percentage points, {shown(fast)}.",
        ),
        Claim(
            "Section 4",
            "The gain can be attributed to the position of the initial spline partition.",
            decide([position]),
            "against a start that has BN's σ and no translation by μ, so that the scale of the "
            f"pre-activations is the same: {describe(position)} percentage points.",
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
    return f" The selected rate is at the edge of those tried for: {names}."


PART = Experiment(
    "Figures 5 and 10",
    "Training without BatchNorm from its statistics",
    tasks,
    summarize,
    _caption,
    draw,
    options=common_options,
    claims=claims,
)
