"""Section 5: training with BatchNorm statistics that vary more than those of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import paired_difference_by
from bnrecon.reproduction.parts import Decisions, join, merge, part, read_reported, sweep
from bnrecon.studies.bn_explained import measured_noise, trained_networks

REPORTED = read_reported(__package__)["controlled_noise"]
BATCH = 128
PRINTED = 1.15  # "increasing these variances about 15%"
DAWNBENCH = 64  # width
NOISES = {1.0: "none", PRINTED: "noise"}  # printed factors
NEAR = 0.1  # a measured factor of 1.05 to 1.25 counts as about 15%
DATA = {
    "smoke": ("digits",),
    "laptop": ("cifar10", "cifar100"),
    "paper": ("cifar10", "cifar100", "svhn"),
}
# Nominal factors of the variances, 1 without noise.
FACTORS = {"smoke": (1, PRINTED), "laptop": (1, PRINTED, 4), "paper": (1, PRINTED, 2, 4, 8)}
OPTIONS = {
    "smoke": ("target=resnet9", "scale=smoke", "train.batch_size=128"),
    "laptop": (
        "target=resnet9",
        "target.width=8",
        "data.train_limit=10000",
        "train.epochs=10",
        "train.warmup_epochs=1",
    ),
    "paper": ("target=resnet9", "target.width=64", "train.epochs=30", "train.warmup_epochs=5"),
}
SEEDS = {"smoke": 2, "laptop": 5, "paper": 5}
DRAWS = {"smoke": 20, "laptop": 250, "paper": 1000}  # mini-batches for measuring the noise


def train_with_noise(data: str, factor: float, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """One row: a ResNet-9 with noise that gives ``factor`` times the variances by Eq. 13."""
    trained = trained_networks.train_and_count(options, data=data, factor=factor, seed=seed)
    return trained.assign(kind="trained")


def split(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the rows into trainings and measurements at the start; either may be missing so far."""
    columns = ["accuracy", "seed", "source", "statistic", "layer", "ratio", "error", "draws"]
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, *columns])))
    return rows[rows["kind"] == "trained"], rows[rows["kind"] == "measured"]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per data set and noise, the paper's first."""
    trained, measured = split(rows)
    lines: list[dict[str, Any]] = []
    names = [*REPORTED, *(name for name in rows["data"].unique() if name not in REPORTED)]
    for data, factor in itertools.product(names, sorted({1.0, PRINTED, *rows["factor"]})):
        of_data = trained[trained["data"] == data]
        noisy = of_data[of_data["factor"] == factor]
        factors = measured[(measured["data"] == data) & (measured["factor"] == factor)]
        line: dict[str, Any] = {"data": data, "nominal factor (Eq. 13)": f"{factor:g}"}
        line["V"] = f"{BATCH / factor:.4g}"
        kinds = itertools.product(measured_noise.STATISTICS.items(), measured_noise.SOURCES.items())
        for (statistic, symbol), (source, title) in kinds:
            words = measured_noise.describe_factors(factors, source, statistic)
            line[f"var({symbol}), measured, {title}"] = words if factor != 1 else ""
        line["reported"] = REPORTED.get(data, {}).get(NOISES.get(factor), "")
        for column, title in (("accuracy", "test"), ("training_accuracy", "training")):
            line[f"{title} accuracy"] = mean_interval(list(noisy[column])) if len(noisy) else None
        difference = trained_networks.describe(paired_difference_by(of_data, "factor", factor, 1.0))
        lines.append(line | {"difference to no noise": difference if factor != 1 else ""})
    return pd.DataFrame(lines).fillna("not measured")


def reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """The printed accuracy of trainings without noise, and with the printed noise."""
    printed = REPORTED.get(row["data"], {}).get(NOISES.get(row["factor"]))
    return {"reported_accuracy": printed if row["kind"] == "trained" else None}


def caption_numbers(rows: pd.DataFrame) -> dict[str, Any] | str:
    """The caption's values."""
    trained, measured = split(rows)
    if trained.empty or measured.empty:
        return "Computed in part: trainings or measurements are missing so far."
    return {
        "width": trained["width"].iloc[0],
        "training": trained_networks.describe_training(trained),
        "batch": BATCH,
        "draws": measured["draws"].iloc[0],
        "error": 100 * (measured["error"] / measured["ratio"]).max(),
        "printed": PRINTED,
        "seconds": trained["seconds"].sum(),
    }


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the change in accuracy by nominal factor, and measured factors by BatchNorm."""
    trained, measured = split(rows)
    figure, (first, *others) = new_figure(1, 3, (PAGE, 2.6))
    others[1].sharey(others[0])
    _draw_accuracies(first, trained)
    for axes, statistic in zip(others, measured_noise.STATISTICS, strict=True):
        measured_noise.draw_factors(axes, measured[measured["factor"] == PRINTED], statistic)
    for axes, letter in zip((first, *others), "abc", strict=True):
        axes.set_title(f"({letter})")
    if others[1].get_legend_handles_labels()[1]:
        others[1].legend(loc="upper right")
    return figure


def _draw_accuracies(axes: Axes, trained: pd.DataFrame) -> None:
    """Draw the difference to no noise against the nominal factor, a line per data set."""
    for number, (data, some) in enumerate(trained.groupby("data", sort=False)):
        factors = sorted(factor for factor in some["factor"].unique() if factor != 1)
        changes = [paired_difference_by(some, "factor", factor, 1.0) for factor in factors]
        beside = [factor * (1 + 0.02 * number) for factor in factors]
        means = [d.mean if d else float("nan") for d in changes]
        widths = [d.bar if d else float("nan") for d in changes]
        style: dict[str, Any] = {"color": PALETTE[number], "label": f"{data}"}
        axes.errorbar(beside, means, widths, marker="o", capsize=2, **style)
        if printed := REPORTED.get(data):
            gain = float(printed["noise"]) - float(printed["none"])
            style["label"] = f"{data}, reported"
            axes.plot([0.95 * PRINTED], [gain], "*", **style)
    axes.axhline(0, color="grey", linewidth=0.8, zorder=0)
    axes.set(xscale="log", xlabel="nominal factor of the variances")
    axes.set_ylabel("change in test accuracy (points)")
    ticks = sorted(factor for factor in trained["factor"].unique() if factor != 1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    if axes.get_legend_handles_labels()[1]:
        axes.set_ylim(top=axes.get_ylim()[1] + 0.6 * np.ptp(axes.get_ylim()))  # for the legend
        axes.legend(loc="upper right")


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide whether noise raises accuracy, is the paper's, whether more lowers it, and margins."""
    trained, measured = split(rows)
    measured = measured[measured["source"] == "noise"]
    noise = measured[measured["factor"] == PRINTED]
    small = _changes(trained, PRINTED)
    far = (noise["ratio"] - PRINTED).abs() + 4 * noise["error"] > NEAR
    raised, largest = intervals.decide(small.values()), trained["factor"].max()
    changes = (f"{data} {trained_networks.describe(one)}" for data, one in small.items())
    numbers: dict[str, Any] = {"small": ", ".join(changes)}
    for name in measured_noise.STATISTICS:  # for the first BatchNorm and the others
        some = noise[noise["statistic"] == name]
        first, ratios = some["layer"] == some["layer"].min(), some["ratio"]
        numbers[name] = {"first": span(ratios[first], ".2f"), "others": span(ratios[~first], ".2f")}
    above = measured[(measured["factor"] == largest) & (measured["statistic"] == "mean")]
    ratios = above.loc[above["layer"] > above["layer"].min(), "ratio"]
    numbers["rise"] = span(ratios, ".0f", absent="not measured")
    # The trainings decide only if their variances are raised by about 15%.
    literal = "undecided" if noise.empty or far.any() else raised
    verdicts = {"as in Figure 7": raised, "15%": literal, "margin": "not at the paper's size"}
    more = [_decide_large(trained, largest)] if largest > PRINTED else []
    return merge((verdicts, numbers), *more)


def _decide_large(trained: pd.DataFrame, factor: float) -> Decisions:
    """Can large noise be detrimental? One data set is enough, all intervals together at 95%."""
    count = trained["data"].nunique()
    changes = _changes(trained, factor, 1 - 0.05 / count)
    lowered = [intervals.decide([-change]) for change in changes.values() if change is not None]
    raised = len(lowered) == count and set(lowered) == {"contradicted"}
    verdict = "confirmed" if "confirmed" in lowered else "contradicted" if raised else "undecided"
    numbers = {"largest": factor, "data_sets": count, "changes": _with_ends(changes)}
    if verdict != "undecided" and trained["width"].max() < DAWNBENCH:
        verdict = "not at the paper's size"
    return {"large": verdict}, numbers


def _changes(
    trained: pd.DataFrame, factor: float, confidence: float = 0.95
) -> dict[str, Interval | None]:
    """Accuracy with noise minus that without, by data set."""
    return {
        str(data): paired_difference_by(some, "factor", factor, 1.0, confidence=confidence)
        for data, some in trained.groupby("data", sort=False)
    }


def _with_ends(changes: dict[str, Interval | None]) -> str:
    """Means with both ends, as ± means the 95% interval of a single mean."""
    return ", ".join(
        f"{data} {trained_networks.describe(change)}"
        if change is None or change.half_width is None
        else f"{data} {change.mean:+.2f} ({change.ends[0]:+.2f} to {change.ends[1]:+.2f})"
        for data, change in changes.items()
    )


RUNS = {scale: ("data={data}", *common) for scale, common in OPTIONS.items()}
NOISY = {
    scale: [(f, "" if f == 1 else f"target.virtual_batch={BATCH / f:.6g}") for f in factors]
    for scale, factors in FACTORS.items()
}
MEASURED = {scale: [f for f in factors if f != 1] for scale, factors in FACTORS.items()}
TASKS = join(
    sweep(
        train_with_noise,
        "{data}, nominal factor {factor:g}, seed {seed}",
        {"seed": SEEDS, "data": DATA, ("factor", "_noise"): NOISY},
        runs={scale: (*run, "{_noise}", "train.seed={seed}") for scale, run in RUNS.items()},
        compared={"data", "target.virtual_batch", "train.seed", "train.batch_size"},
    ),
    sweep(
        measured_noise.measure_noise,
        "{data}, noise measured",
        {"data": DATA},
        {"factors": MEASURED, "draws": DRAWS},
        {scale: (*run, "train.seed=0") for scale, run in RUNS.items()},
    ),
)
SHOWN = "data|nominal factor|reported|test accuracy|difference"
PART = part(
    __file__,
    TASKS,
    summarize,
    draw,
    decide,
    numbers=caption_numbers,
    options=OPTIONS,
    reported=reported,
    excerpt=lambda table: table[table["test accuracy"] != "not measured"].filter(regex=SHOWN),
)
