"""Sect. 5: training the scales of dense random features from scratch, and how far steps go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.reproduction.study import read_reported
from bnrecon.reproduction.trainings import compare_settings, training_tasks
from bnrecon.studies.random_features.scales_claims import claims
from bnrecon.studies.random_features.scales_figure import draw
from bnrecon.studies.random_features.scales_settings import (
    MAIN,
    MATCHED,
    ONES,
    SHOWN,
    SLOWED,
    WEIGHTS,
    at_step,
)

__all__ = ["PART"]

REPORTED = read_reported(__package__)["section5"]


@dataclass(frozen=True)
class Schedule:
    """Options at a scale; the paper does not give the warm-up's length.

    Attributes:
        options: of all trainings.
        main: of the four main settings.
        view: of the trainings at several steps.
        steps: relative steps, those of weights as PyTorch starts them being 1.
        seeds: fixed before any training.
    """

    options: tuple[str, ...]
    main: tuple[str, ...]
    view: tuple[str, ...]
    steps: tuple[float, ...]
    seeds: tuple[int, ...]


SCHEDULES = {
    "smoke": Schedule(
        ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
        (),
        ("train.epochs=1",),
        (1 / 8, 1),
        (0, 1),
    ),
    "laptop": Schedule(
        ("data=cifar10", "scale=laptop", "target.width=16"),
        (),  # 30 epochs, 2 of them warm-up
        ("train.epochs=6",),
        (1 / 512, 1 / 64, 1 / 8, 1, 8),
        (0, 1, 2),
    ),
    "paper": Schedule(
        ("data=cifar10", "scale=paper", "target.width=100"),
        ("train.epochs=500", "train.warmup_epochs=20"),
        ("train.epochs=30",),
        (1 / 4096, 1 / 512, 1 / 64, 1 / 8, 1, 8),
        (0, 1, 2),
    ),
}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=vgg18_normalization", *SCHEDULES[scale].options)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The four main settings for each seed, then both ways of training at several steps.

    The features are n + 100 of he_normal for each layer, with scales alone between the two
    convolutions.
    """
    schedule = SCHEDULES[scale]
    common = common_options(scale)
    view = {
        at_step(kind, step): (*MAIN[kind], f"target.step={step:g}")
        for step in schedule.steps
        for kind in (MATCHED, WEIGHTS)
    }
    return [
        *training_tasks(MAIN, (*common, *schedule.main), schedule.seeds, options),
        *training_tasks(view, (*common, *schedule.view), schedule.seeds, options),
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each setting."""
    reported = {
        ONES: f"{REPORTED['long']}; {REPORTED['short']}",
        WEIGHTS: REPORTED["weights"],
    }
    baselines = {name: WEIGHTS for name in (ONES, MATCHED, SLOWED)}
    for schedule in SCHEDULES.values():
        baselines |= {at_step(MATCHED, step): at_step(WEIGHTS, step) for step in schedule.steps}
    columns = {name: {"reported, width 100": value} for name, value in reported.items()}
    table = compare_settings(rows, "trained", columns, baselines)
    return table.replace({"trained": SHOWN, "compared with": SHOWN})


def caption(rows: pd.DataFrame) -> str:
    """Says what is trained, and by how much the step of scales differs."""
    width = int(rows["width"].iloc[0])
    return (
        "Each layer has n + 100 He-normal features and only scales between its two convolutions, "
        "which are computed as one; weights: the same network with one trained convolution instead "
        "of each pair. "
        "Behind a normalization only the step relative to the weight counts. Scales that start at "
        "1, PyTorch's default, which neither paper says it changes, go 3 · fan-in times less far "
        f"along the gradient than weights, {27 * width:,} times in a layer of {width} channels. "
        "The matched start is 1 / sqrt(3 · fan-in): on average the same distance along the "
        "gradient, the default of target=vgg18_normalization. The length of such a step is "
        "sqrt(1 + n/c1) times that of weights', about sqrt(2). Weights with steps shortened by "
        "3 fan-in start at root mean square 1. The derivation is in "
        "bnrecon/targets/relative_step.py. Learning rate, warm-up, weight decay and the outer "
        "normalizations are the same in all settings. Weight decay makes relative steps longer in "
        "all of them, so that in trainings as long as the paper's the start counts for less: its "
        "300 to 500 epochs are not judged by shorter ones. Its two accuracies, of 300 epochs and "
        "of 500 with warm-up, differ by both; it does not say what their ± is. "
        "A relative step is varied by the start alone, which is a learning rate of the inner "
        "scales or weights alone. "
        "Figure: (a) the four settings at full length; (b) short trainings by relative step, that "
        "of weights as PyTorch starts them being 1. "
        "Training accuracies are means over the last epoch, with augmentation. "
        "± is the half-width of the 95% Student-t interval over seeds, three at laptop scale, "
        "fixed before; the intervals are not corrected for their number."
    )


PART = Experiment(
    where="Sect. 5, CIFAR10",
    title="Training the scales of dense random features from scratch: the step and the rest",
    caption=caption,
    tasks=tasks,
    summary=summarize,
    draw=draw,
    options=common_options,
    claims=claims,
)
