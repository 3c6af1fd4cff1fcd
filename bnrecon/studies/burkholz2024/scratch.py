"""Training normalizations alone from scratch (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, Task, only, part, read_reported, refuse_compared
from bnrecon.reproduction.request import option_name
from bnrecon.reproduction.trainings import train_one
from bnrecon.runtime.hardware import exact_float32
from bnrecon.targets.collapsed_pair import CollapsedPair

REPORTED = read_reported(__package__)["scratch"]
PAPERS_WIDTH = 100
SWITCHED_OFF = 0.01  # |γ| below which Frankle et al. 2021 count a feature as switched off
ACTIVITY_IMAGES = 1000
TARGET = "none: all weights trained"
SHARES = {
    "inner_scales_off": "inner scales off, %",
    "outer_scales_off": "outer scales off, %",
    "channels_never_active": "channels never active, %",
}

COMMON = {
    "smoke": ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
    "laptop": (
        "data=cifar10",
        "scale=laptop",
        "target.width=16",
        "train.epochs=10",
        "train.warmup_epochs=3",
    ),
    "paper": ("data=cifar10", "scale=paper", "target.width=100", "train.warmup_epochs=20"),
}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
# The paper prints the excess as "10*", without the exponent: 100 and 10,000 are tried, at laptop
# scale 100 and 1,000. Usually, scales start at 1; "weights" gives them the steps of weights.
SETTINGS = {
    "smoke": (("batchnorm", 10, "ones"), ("scale", 10, "weights")),
    "laptop": (
        ("batchnorm", 100, "ones"),
        ("scale", 100, "ones"),
        ("batchnorm", 100, "weights"),
        ("scale", 100, "weights"),
        ("batchnorm", 1000, "ones"),
    ),
    "paper": (
        ("batchnorm", 100, "ones"),
        ("batchnorm", 100, "weights"),
        ("batchnorm", 10000, "ones"),
        ("scale", 100, "ones"),
        ("scale", 100, "weights"),
    ),
}
ASIDE = 0.12  # offset of the two starts on the figure's axis
STARTS = {"ones": "1", "weights": "1 / sqrt(3 fan-in)"}
# Added later: the same trainings for longer, at one excess.
LONGER = {"laptop": 30}  # epochs
LONGER_SETTINGS = [setting for setting in SETTINGS["laptop"] if setting[1] == 100]


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per training; the first train targets, as for Tables 1 and 2."""
    refuse_compared(options, ("target.inner", "target.excess", "target.start", "train.seed"))
    planned = _trainings((*COMMON[scale], *options), SEEDS[scale], SETTINGS[scale])
    if scale in LONGER and "train.epochs" not in map(option_name, options):
        epochs = f"train.epochs={LONGER[scale]}"
        common = [epochs if option_name(o) == "train.epochs" else o for o in COMMON[scale]]
        longer = _trainings((*common, *options), SEEDS[scale], LONGER_SETTINGS)
        end = f", {LONGER[scale]} epochs"
        planned += [dataclasses.replace(task, name=f"{task.name}{end}") for task in longer]
    return planned


def _trainings(
    common: Sequence[str], seeds: Sequence[int], settings: Sequence[tuple[str, int, str]]
) -> list[Task]:
    """Targets, then every setting once before any repeats."""
    usual = [item for item in common if option_name(item) != "train.warmup_epochs"]
    tasks = []
    for seed in seeds:
        name, options = (f"target, seed {seed}", [f"train.seed={seed}"]) if seed else ("target", [])
        arguments: dict[str, Any] = {"inner": TARGET, "excess": None, "seed": seed}
        tasks.append(Task(name, train, arguments, ("target=vgg18", *usual, *options)))
    for seed, (inner, excess, start) in itertools.product(seeds, settings):
        arguments = {"inner": inner, "excess": excess, "seed": seed}
        name, words = f"{inner}, {excess}, seed {seed}", "usual"
        if start == "weights":  # a start at 1 is the default
            arguments, words = arguments | {"start": start}, start
            name += ", started for the steps of weights"
        options = [f"target.inner={inner}", f"target.excess={excess}", f"target.start={words}"]
        options = ["target=vgg18_normalization", *common, *options, f"train.seed={seed}"]
        tasks.append(Task(name, train, arguments, tuple(options)))
    return tasks


def train(
    inner: str, excess: int | None, seed: int, options: Sequence[str], start: str = "ones"
) -> pd.DataFrame:
    """One row: the trained network's accuracy and its shares of switched-off features."""
    setting = {"inner": inner, "excess": excess, "start": start, "seed": seed}
    return pd.DataFrame([setting | train_one(options, switched_off)])


def switched_off(network: nn.Module, data: Images, device: torch.device) -> dict[str, float]:
    """Percentages of scales with |γ| < 0.01 and of channels that are never positive.

    The network is a trained VGG, of frozen pairs or as usual; up to 1,000 test images are used.
    """
    features = network.get_submodule("features")  # without the normalization of logits
    inner = [module.gamma for module in network.modules() if isinstance(module, CollapsedPair)]
    norms = [module for module in features.modules() if isinstance(module, nn.BatchNorm2d)]
    silent: dict[nn.Module, torch.Tensor] = {}

    def watch(module: nn.Module, _: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        quiet = (output <= 0).all(dim=(0, 2, 3)) if output.ndim == 4 else (output <= 0).all(0)
        silent[module] = quiet & silent.get(module, torch.ones_like(quiet))

    handles = [norm.register_forward_hook(watch) for norm in norms]
    with torch.inference_mode(), exact_float32():
        for x, _ in data.test_batches(250, device, limit=ACTIVITY_IMAGES):
            network(x)
    for handle in handles:
        handle.remove()
    return {
        "inner_scales_off": _share([gamma.abs() < SWITCHED_OFF for gamma in inner]),
        "outer_scales_off": _share([norm.weight.abs() < SWITCHED_OFF for norm in norms]),
        "channels_never_active": _share(list(silent.values())),
    }


def _share(flags: list[torch.Tensor]) -> float:
    """The share of true values in percent."""
    return 100 * float(torch.cat(flags).float().mean()) if flags else float("nan")


def _named_starts(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the start to the rows; scales start at 1 if the task names none."""
    start = rows["start"] if "start" in rows else pd.Series("", rows.index)
    return rows.assign(start=start.where(start == "weights", "ones"))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting, with intervals over its seeds."""
    lines = []
    by = ["epochs", "inner", "excess", "start"]
    groups = _named_starts(rows).groupby(by, sort=False, dropna=False)
    for (epochs, inner, excess, start), group in groups:
        line = {
            "between the convolutions": inner,
            "excess": "" if pd.isna(excess) else f"{int(excess)}",
            "scales start at": "" if inner == TARGET else STARTS[start],
            "width": int(group["width"].iloc[0]),
            "epochs": int(epochs),
            "reported, width 100": REPORTED["accuracy"] if inner == "batchnorm" else "",
            "test accuracy": mean_interval(list(group["accuracy"])),
        }
        for name, heading in SHARES.items():
            measured = not group[name].isna().all()
            line[heading] = mean_interval(list(group[name])) if measured else None
        lines.append(line | {"seconds": group["seconds"].mean()})
    return pd.DataFrame(lines)


def reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """The printed accuracy of scales trained with BatchNorm between the convolutions."""
    return {"reported_accuracy": REPORTED["accuracy"] if row["inner"] == "batchnorm" else None}


def by_start(rows: pd.DataFrame) -> pd.DataFrame:
    """Test accuracies by setting and seed: for scales by start, and for a target's weights."""
    rows = _named_starts(rows)
    is_target = rows["inner"] == TARGET
    columns = ["epochs", "inner", "excess", "seed", "start"]
    accuracy = rows[~is_target].set_index(columns)["accuracy"].unstack("start")
    accuracy = accuracy.reindex(columns=list(STARTS))
    target = rows[is_target].set_index(["epochs", "seed"])["accuracy"]
    same = accuracy.index.droplevel(["inner", "excess"])
    return accuracy.assign(target=target.reindex(same).to_numpy())


def _intervals(values: pd.Series) -> dict[str, Interval]:
    """Means over seeds, by setting."""
    by_setting = values.dropna().groupby(["inner", "excess"])
    return {
        f"{inner}, n + {excess:.0f}": mean_interval(list(of_seeds))
        for (inner, excess), of_seeds in reversed(list(by_setting))
    }


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide how far scratch is behind weights, and what longer steps of inner scales change."""
    accuracy, epochs = by_start(rows), int(rows["epochs"].max())
    # By the longest schedule, whose seeds were fixed before.
    accuracy = accuracy[accuracy.index.get_level_values("epochs") == epochs]
    target, ones, weights = (accuracy[name] for name in ("target", "ones", "weights"))
    compared = {
        "behind": target - ones,
        "gains": weights - ones,
        "closed": weights - (target + ones) / 2,
    }
    last, lasting = (
        str(next((gap for name, gap in _intervals(gaps).items() if "batchnorm" in name), "unknown"))
        for gaps in (compared["behind"], target - weights)
    )
    width = int(rows["width"].max())
    numbers: dict[str, Any] = {name: _spell(values) for name, values in compared.items()}
    numbers |= {"last": last, "lasting": lasting, "width": width, "epochs": epochs}
    numbers |= {"lacking": _spell(target - weights)} | REPORTED
    verdicts = {
        name: intervals.decide(_intervals(values).values()) for name, values in compared.items()
    }
    if width < PAPERS_WIDTH:
        verdicts |= {"behind": "not at the paper's size", "below": verdicts["behind"]}
    return verdicts, numbers


def _spell(values: pd.Series) -> str:
    listed = (f"{name}: {interval}" for name, interval in _intervals(values).items())
    return "; ".join(listed) or "not computed yet"


def draw(rows: pd.DataFrame) -> Figure:
    """Draw accuracies by epochs, setting and start, with those of the targets.

    Means over seeds have 95% intervals from three seeds on; crosses are trainings.
    """
    targets, accuracies = rows[rows["inner"] == TARGET], by_start(rows)
    weights = {epochs: list(group["accuracy"]) for epochs, group in targets.groupby("epochs")}
    trained = accuracies.index.get_level_values("epochs")
    lengths = sorted({*trained, *weights})
    figure, grid = new_figure(1, max(len(lengths), 1), (PAGE, 2.9), sharey=True, squeeze=False)
    for letter, epochs, axes in zip("abcdef", lengths, grid[0], strict=False):
        is_trained = epochs in trained
        of_epochs = accuracies.xs(epochs, level="epochs") if is_trained else accuracies.iloc[:0]
        _panel(axes, of_epochs, weights.get(epochs, ()))
        axes.set_title(f"({letter}) {epochs} epochs")
    grid[0][0].set_ylabel("test accuracy (%)")
    draw_legend(figure, 3)
    return figure


def _panel(axes: Axes, accuracies: pd.DataFrame, weights: Sequence[float]) -> None:
    settings = list(accuracies.groupby(["inner", "excess"], sort=False))
    for (start, label), colour, side in zip(STARTS.items(), PALETTE, (-ASIDE, ASIDE), strict=False):
        for number, (_, of_setting) in enumerate(settings):
            values = of_setting[start].dropna()
            if values.empty:
                continue
            value, at = mean_interval(list(values)), number + side
            # The interval of two values would hide the others.
            half = value.bar if value.n > 2 else float("nan")
            axes.plot([at] * len(values), values, "x", color=colour, markersize=3, alpha=0.6)
            name = f"scales start at {label}"
            axes.errorbar(at, value.mean, half, color=colour, marker="o", capsize=2, label=name)
    if weights:
        style: dict[str, Any] = {"color": "grey", "linestyle": "--"}
        axes.axhline(sum(weights) / len(weights), label="all weights trained", **style)
    names = [f"{inner}\nn + {excess:.0f}" for (inner, excess), _ in settings]
    axes.set_xticks(range(len(settings)), names)
    axes.set(xlim=(-0.5, max(len(settings), 1) - 0.5), xlabel="between the convolutions; features")


FORMATS = {"seconds": ".0f"}
EXCERPT = only(drop=["width", "epochs", "reported, width 100", "seconds", *SHARES.values()])
PART = part(
    __file__,
    tasks,
    summarize,
    draw,
    decide,
    reported=reported,
    formats=FORMATS,
    excerpt=lambda table: EXCERPT(table[table["epochs"] == table["epochs"].max()]),
)
