"""Sect. 5: training the scales of dense random features from scratch, and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pandas as pd

from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import spell
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import differences_by_seed, paired_difference_by
from bnrecon.reproduction.parts import Decisions, Task, part, read_reported
from bnrecon.reproduction.trainings import training_tasks
from bnrecon.studies.random_features.averages import ALIKE, compare_settings, errorbar_by

REPORTED = read_reported(__package__)["section5"]
TARGET = "target=vgg18_normalization"
OPTIONS = {
    "smoke": (TARGET, "data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
    # 30 epochs, 2 of them warm-up
    "laptop": (TARGET, "data=cifar10", "scale=laptop", "target.width=16"),
    "paper": (TARGET, "data=cifar10", "scale=paper", "target.width=100"),
}
# For the four main settings; the paper does not give the warm-up's length.
PRINTED = {"smoke": (), "laptop": (), "paper": ("train.epochs=500", "train.warmup_epochs=20")}
# For trainings at several relative steps; weights with PyTorch's start have step 1.
SHORT = {"smoke": "train.epochs=1", "laptop": "train.epochs=6", "paper": "train.epochs=30"}
LAPTOP_STEPS = (1 / 512, 1 / 64, 1 / 8, 1, 8)
STEPS = {"smoke": (1 / 8, 1), "laptop": LAPTOP_STEPS, "paper": (1 / 4096, *LAPTOP_STEPS)}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2), "paper": (0, 1, 2)}  # fixed before any training
ONES = "scales, started at 1"
MATCHED = "scales, started for the steps of weights"  # matched start
WEIGHTS = "weights"
SLOWED = "weights, slowed down alike"
# Names on the page that differ.
SHOWN = {SLOWED: "weights, steps 3 fan-in times shorter", MATCHED: "scales, matched start"}
STEP = ", relative step "
MAIN = {
    ONES: ("target.inner=scale", "target.start=ones"),
    MATCHED: ("target.inner=scale", "target.start=weights"),
    WEIGHTS: ("target.features=none", "target.start=weights"),
    SLOWED: ("target.features=none", "target.start=ones"),
}
SCALES_COLOUR, WEIGHTS_COLOUR = PALETTE[1], PALETTE[0]
LABELS = {
    ONES: ("scales,\nstart 1", SCALES_COLOUR),
    SLOWED: ("weights,\nshort steps", WEIGHTS_COLOUR),
    MATCHED: ("scales,\nmatched start", SCALES_COLOUR),
    WEIGHTS: ("weights", WEIGHTS_COLOUR),
}
PRINTED_ACCURACY = {ONES: f"{REPORTED['long']}; {REPORTED['short']}", WEIGHTS: REPORTED["weights"]}
PRINTED_EPOCHS = 300  # the shorter of the paper's trainings
LEAST_SEEDS = 2  # the half-width shows how little two seeds tell


def at_step(kind: str, step: float) -> str:
    """The name of scales or weights at a relative step.

    >>> at_step(WEIGHTS, 1 / 8), at_step(MATCHED, 8)
    ('weights, relative step 1/8', 'scales, relative step 8')
    """
    return f"{kind.partition(',')[0]}{STEP}{Fraction(step)}"


def step_of(setting: str) -> float | None:
    """The relative step in such a name; ``None`` for the main settings.

    >>> step_of(at_step(WEIGHTS, 1 / 8)), step_of(WEIGHTS)
    (0.125, None)
    """
    _, separator, step = setting.partition(STEP)
    return float(Fraction(step)) if separator else None


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The four main settings for each seed, then both trainings at several steps.

    Each layer has n + 100 he_normal features, with only scales between the two convolutions.
    """
    common, seeds = OPTIONS[scale], SEEDS[scale]
    view = {
        at_step(kind, step): (*MAIN[kind], f"target.step={step:g}")
        for step in STEPS[scale]
        for kind in (MATCHED, WEIGHTS)
    }
    return [
        *training_tasks(MAIN, (*common, *PRINTED[scale]), seeds, options),
        *training_tasks(view, (*common, SHORT[scale]), seeds, options),
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting."""
    baselines = dict.fromkeys((ONES, MATCHED, SLOWED), WEIGHTS)
    for steps in STEPS.values():
        baselines |= {at_step(MATCHED, step): at_step(WEIGHTS, step) for step in steps}
    columns = {name: {"reported, width 100": value} for name, value in PRINTED_ACCURACY.items()}
    table = compare_settings(rows, "trained", columns, baselines)
    return table.replace({"trained": SHOWN, "compared with": SHOWN})


def draw(rows: pd.DataFrame) -> Figure:
    """Draw both panels, with 95% intervals over seeds."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.7))
    _settings(left, rows)
    _steps(right, rows)
    for axes in (left, right):
        axes.set_ylabel("test accuracy (%)")
    return figure


def _settings(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a point per setting, with its mean in numbers."""
    for x, (setting, (_, colour)) in enumerate(LABELS.items()):
        group = rows[rows["setting"] == setting]
        if group.empty:
            continue
        errorbar_by(axes, group.assign(x=x), "x", "accuracy", color=colour, marker="o", capsize=2)
        mean = mean_interval(list(group["accuracy"])).mean
        axes.annotate(f"{mean:.1f}", (x, mean), (5, -3), textcoords="offset points")
        axes.set_title(f"(a) {_conditions(group)}")
    axes.set_xticks(range(len(LABELS)), [label for label, _ in LABELS.values()])
    axes.set_xlim(-0.5, len(LABELS) - 0.4)


def _steps(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw accuracy by relative step, and the step of scales that start at 1."""
    view = rows.assign(step=rows["setting"].map(step_of)).dropna(subset="step")
    for name, colour, aside in (("scales", SCALES_COLOUR, -1), ("weights", WEIGHTS_COLOUR, 1)):
        group = view[view["setting"].str.startswith(name + STEP)]
        group = group.assign(x=group["step"] * 2 ** (0.08 * aside))
        style = {"color": colour, "marker": "o", "capsize": 2, "label": name}
        errorbar_by(axes, group, "x", "accuracy", **style)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("relative step along the gradient (weights: 1)")
    if view.empty:
        return
    steps = sorted(set(view["step"]))
    axes.set_xticks(steps, [str(Fraction(step)) for step in steps])
    short = 1 / (27 * int(view["width"].iloc[0]))
    axes.axvline(short, color="grey", linestyle=":", label="scales that start at 1")
    axes.legend()
    axes.set_title(f"(b) {_conditions(view)}")


def _conditions(rows: pd.DataFrame) -> str:
    """Width, epochs and number of seeds."""
    width, epochs = (int(rows[name].iloc[0]) for name in ("width", "epochs"))
    seeds = rows.groupby("setting")["seed"].nunique().max()
    return f"width {width}, {epochs} epochs, n = {seeds}"


def step_share(rows: pd.DataFrame) -> Interval | None:
    """The percentage of the gap between scales and weights that the matched start closes.

    The mean, with its interval, of a ratio per seed that all three settings have.
    """
    groups = {name: rows[rows["setting"] == name] for name in (ONES, WEIGHTS, MATCHED)}
    gap, closed = (differences_by_seed(groups[name], groups[ONES]) for name in (WEIGHTS, MATCHED))
    shares = (100 * closed / gap).dropna()
    return mean_interval(list(shares)) if len(shares) else None


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide the paper's sentence; beyond it, the step's share of the gap, and the rest."""
    pairs = {"gap": (WEIGHTS, ONES), "remaining": (WEIGHTS, MATCHED)}
    pairs |= {"slowed": (WEIGHTS, SLOWED), "alike": (SLOWED, ONES)}
    differences = {one: paired_difference_by(rows, "setting", *of) for one, of in pairs.items()}
    share, epochs, width = step_share(rows), int(rows["epochs"].max()), int(rows["width"].max())
    gap = intervals.decide([differences["gap"]], LEAST_SEEDS)
    verdicts = {
        "below": gap,
        "step": intervals.decide([share and share - 50], LEAST_SEEDS),
        "equal steps": intervals.decide([differences["remaining"]], LEAST_SEEDS),
    }
    short = epochs < PRINTED_EPOCHS
    verdicts |= {"in print, short": "not at the paper's size"} if short else {"in print": gap}
    numbers: dict[str, Any] = {name: spell(one) for name, one in differences.items()}
    numbers["share"] = "a share not computed yet" if share is None else f"{share:.0f} %"
    # The factor by which the step of scales is shorter.
    numbers["shorter"] = 27 * width
    return verdicts, numbers | {"epochs": epochs, "width": width}


UNUSED = [*ALIKE, "training accuracy", "compared with"]
PART = part(
    __file__,
    tasks,
    summarize,
    draw,
    decide,
    options=OPTIONS,
    reported=lambda row: {"reported_accuracy": PRINTED_ACCURACY.get(row["setting"])},
    excerpt=lambda table: table[table["trained"].map(step_of).isna()].drop(columns=UNUSED),
)
