"""Which reading of the recipe gives targets like the paper's (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reproduction.parts import Decisions, Task, part, read_reported
from bnrecon.reproduction.trainings import training_tasks

PRINTED = read_reported(__package__)["table1"]["target"]
ACTIVATIONS = tuple(PRINTED)
PLANS: Mapping[str, tuple[str, ...]] = {
    "2, 3, 4, 4, 4, five poolings": (),
    "4, 4, 4, 5, four poolings": ("target.groups=[4,4,4,5]",),
    "5, 4, 4, 4, three poolings": ("target.groups=[5,4,4,4]", "target.poolings=3"),
}
FIRST, _, THIRD = PLANS
AFTER = "BatchNorm after the activation"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "weight decay 1e-4": ("train.weight_decay=1e-4",),
    "no decay of normalizations": ("train.norm_decay=0",),
    "float32": ("train.precision=float32",),
    AFTER: ("target.norm_position=after",),
    "padding by reflection": ("target.padding=reflect",),
}
CENTRED = "sigmoid less 1/2"
COMMON = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("data=cifar10", "target=vgg18", "scale=laptop", "target.width=32"),
    "paper": ("data=cifar10", "target=vgg18", "scale=paper", "target.width=64"),
}
SMOKE = ("target.groups=[1,1]", "target.poolings=1")  # plans for 8x8 images


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One training per setting, plans first, from one seed."""
    plans = {
        plan: SMOKE if scale == "smoke" and overrides else overrides
        for plan, overrides in PLANS.items()
    }
    variants = {variant: (*plans[THIRD], *changed) for variant, changed in VARIANTS.items()}

    def by_activation(named: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {
            f"{name}; {activation}": (*overrides, f"target.activation={activation}")
            for name, overrides in named.items()
            for activation in ACTIVATIONS
        }

    centred = (*plans[THIRD], "target.activation=centred_sigmoid")
    settings = by_activation(plans) | {f"{CENTRED}; sigmoid": centred} | by_activation(variants)
    return training_tasks(settings, COMMON[scale], (0,), options)


def tabulate(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Pivot a column: settings in rows, activations in columns."""
    names = rows["setting"].str.rsplit("; ", n=1, expand=True)
    wide = rows.assign(setting=names[0], activation=names[1]).pivot_table(
        index="setting", columns="activation", values=column, sort=False
    )
    return wide.reindex(columns=[name for name in ACTIVATIONS if name in wide])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting: test accuracies and training accuracies."""
    accuracy, training = tabulate(rows, "accuracy"), tabulate(rows, "training_accuracy")
    lines = []
    for setting in accuracy.index:
        line: dict[str, str] = {"setting": setting}
        for name in accuracy:
            test, train = accuracy.loc[setting, name], training.loc[setting, name]
            line[f"{name}: test (training)"] = f"{test:.2f} ({train:.2f})" if test == test else ""
        lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw test accuracies by setting, a mark per activation, and printed ones as dotted lines."""
    accuracy = tabulate(rows, "accuracy")
    figure, axes = new_figure(size=(PAGE, 0.32 * len(accuracy) + 1.2))
    for colour, name in zip(PALETTE, accuracy, strict=False):
        axes.plot(accuracy[name], range(len(accuracy)), "o", color=colour, label=name)
        axes.axvline(PRINTED[name], color=colour, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(accuracy)), accuracy.index)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy, % (dotted: in print, width 64, 205 epochs)")
    axes.legend(loc="lower left", fontsize="small")
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Numbers for the plan, padding and BatchNorm's position; one training each decides nothing."""
    accuracy = tabulate(rows, "accuracy")
    plans = accuracy.reindex([FIRST, THIRD])
    gains = (plans.loc[THIRD] - plans.loc[FIRST]).dropna()
    verdicts: dict[str, bool | str] = {}
    numbers: dict[str, object] = {}
    if len(gains):
        numbers["gains"] = ", ".join(f"{gain:.2f} ({name})" for name, gain in gains.items())
        verdicts["plan"] = "undecided"
    wide = accuracy.reindex(index=[THIRD, CENTRED], columns=["tanh", "sigmoid"])
    tanh, sigmoid, _, centred = wide.to_numpy(float).ravel()
    if tanh == tanh and sigmoid == sigmoid and centred == centred:
        reflected = accuracy.reindex(["padding by reflection"], columns=["sigmoid"]).iloc[0, 0]
        named = {"centred": centred, "sigmoid": sigmoid, "tanh": tanh, "reflected": reflected}
        numbers |= {n: f"{value:.2f}" if value == value else "?" for n, value in named.items()}
        verdicts["padding"] = "undecided"
    after = accuracy.reindex([AFTER]).loc[AFTER].dropna()
    if "relu" in after and len(after) > 1:
        behind = [name for name in after.index if name != "relu"]
        numbers |= {"gaps": _gaps(after, behind), "printed": _gaps(PRINTED, behind)}
        verdicts["order"] = "undecided"
    return verdicts, numbers


def _gaps(accuracies: Mapping[str, float], names: Sequence[str]) -> str:
    """By how many points each activation is behind relu."""
    return ", ".join(f"{accuracies['relu'] - accuracies[name]:.2f} ({name})" for name in names)


PART = part(__file__, tasks, summarize, draw, decide)
