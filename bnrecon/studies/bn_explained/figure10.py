"""Figure 10, Section 4: training without BatchNorm, started from its statistics or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, join, only, part, read_text, sweep
from bnrecon.reproduction.trainings import obtain
from bnrecon.runtime.errors import Diverged
from bnrecon.studies.bn_explained.trained_networks import NOT_AUGMENTED, describe

TEXT = read_text(__file__)
STARTS = {
    "zero_bias": "zero bias",
    "random_bias": "random bias",
    "frozen_statistics": "frozen BN statistics",
    "folded_statistics": "folded BN statistics",
    "frozen_scale": "frozen BN scale",
}
BN = "frozen_statistics"
COLUMNS = {"test accuracy": "accuracy", "first half of the epochs": "early"}
COLUMNS |= {"training accuracy": "training_accuracy"}
SIZES = {
    "smoke": ("data=digits", "scale=smoke"),
    "laptop": ("data=cifar100", "target.width=8", "train.epochs=6", "train.warmup_epochs=1"),
    "paper": ("data=cifar100", "target.width=64", "train.epochs=50", "train.warmup_epochs=5"),
}
OPTIONS = {
    scale: ("target=resnet9", *size, *NOT_AUGMENTED, "train.test_every=1")
    for scale, size in SIZES.items()
}
RATES = {"smoke": [0.01, 0.1], "laptop": [0.03, 0.1, 0.3], "paper": [0.003, 0.01, 0.03, 0.1, 0.3]}
VALIDATION = {"smoke": 64, "laptop": 5000, "paper": 5000}  # images that select the learning rate
SEEDS = {"smoke": 2, "laptop": 3, "paper": 10}


def at_rate(options: Sequence[str], rate: float | str, validation: int) -> tuple[str, ...]:
    """The overrides of a training that is tested on held-out training images."""
    return (*options, f"data.validation={validation}", f"train.lr={rate}", "train.seed=0")


def train_at_rate(start: str, rate: float, options: Sequence[str]) -> pd.DataFrame:
    """Train at one learning rate and test on the validation images: one row per epoch."""
    named = {"start": start, "kind": "validation", "rate": rate, "seed": 0}
    return pd.DataFrame([named | row for row in _epochs(options)])


def train_at_best_rate(
    start: str, seed: int, rates: list[float], validation: int, options: Sequence[str]
) -> pd.DataFrame:
    """Train on all training images at the rate that validation selects; one row per epoch.

    The rate has the largest accuracy on ``validation`` held-out images after the last epoch, at
    seed 0. The trainings that select it are read, or repeated if missing. ``start`` is a value of
    ``target.initialization``.
    """
    reached = {rate: _epochs(at_rate(options, rate, validation))[-1]["accuracy"] for rate in rates}
    best = max(reached, key=reached.__getitem__)
    named = {"start": start, "kind": "test", "rate": best, "seed": seed}
    run = (*options, f"train.lr={best:g}", f"train.seed={seed}")
    return pd.DataFrame([named | row for row in _epochs(run)])


def _epochs(options: Sequence[str]) -> list[dict[str, Any]]:
    """Each epoch's test results; one row with accuracy 0 for a training that diverges."""
    try:
        trained, _, _ = obtain(options)
    except Diverged:
        return [{"epoch": 1, "accuracy": 0.0, "training_accuracy": 0.0, "diverged": True}]
    config = trained.about["config"]
    named = {"diverged": False, "seconds": trained.about["seconds"]}
    named |= {"data": config["data"]["name"], "width": config["target"]["width"]}
    named |= {"batch_size": config["train"]["batch_size"], "images": trained.about["images"]}
    columns = {"epoch": "epoch", "accuracy": "test_accuracy", "training_accuracy": "accuracy"}
    return [{name: row[of] for name, of in columns.items()} | named for row in trained.about["log"]]


def _final(rows: pd.DataFrame) -> pd.DataFrame:
    """The tests after the last epoch, and ``early``, the mean over the first half of the epochs."""
    test = rows[(rows["kind"] == "test") & ~rows["diverged"].astype(bool)].sort_values("epoch")
    first_half = test[test["epoch"] <= test["epoch"].max() / 2]
    early = first_half.groupby(["start", "seed"])["accuracy"].mean().rename("early")
    last = test.groupby(["start", "seed"], sort=False).tail(1)
    return last.merge(early.reset_index(), on=["start", "seed"])


def _validation(rows: pd.DataFrame, start: str) -> pd.DataFrame:
    """Validation accuracy and its standard error after the last epoch, by learning rate."""
    selection = rows[(rows["kind"] == "validation") & (rows["start"] == start)]
    last = selection.sort_values("epoch").groupby("rate").tail(1).sort_values("rate")
    share = last["accuracy"] / 100
    return last.assign(error=100 * (share * (1 - share) / last["images"]) ** 0.5)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per initialization."""
    final = _final(rows)
    lines = []
    for start, title in STARTS.items():
        tested = final[final["start"] == start]
        rates = _validation(rows, start)
        line: dict[str, Any] = {"initialization": title}
        line["validation accuracy by learning rate"] = ", ".join(
            f"{rate:g}: {'diverged' if diverged else f'{accuracy:.1f}'}"
            for rate, accuracy, diverged in rates[["rate", "accuracy", "diverged"]].values
        )
        if len(tested):
            line["rate"] = f"{tested['rate'].iloc[0]:g}"
            for heading, column in COLUMNS.items():
                line[heading] = mean_interval(list(tested[column]))
            if start != BN:
                line["frozen BN statistics minus it"] = describe(_gain(final, start))
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _gain(
    final: pd.DataFrame, start: str, value: str = "accuracy", better: str = BN
) -> Interval | None:
    return intervals.paired_difference_by(final, "start", better, start, value)


def caption_numbers(rows: pd.DataFrame) -> dict[str, Any] | str:
    """The caption's values."""
    trained = rows[~rows["diverged"].astype(bool)]
    if trained.empty:
        return "All trainings so far diverged."
    held_out = trained.loc[trained["kind"] == "validation", "images"]
    diverged = rows[(rows["kind"] == "test") & rows["diverged"].astype(bool)]
    return trained.iloc[0][["width", "data", "batch_size"]].to_dict() | {
        "epochs": int(trained["epoch"].max()),
        "held_out": f"{int(held_out.max()):,}" if len(held_out) else "so far no",
        "diverged": len(diverged.drop_duplicates(["start", "seed"])),
        "seconds": trained.drop_duplicates(["start", "kind", "rate", "seed"])["seconds"].sum(),
    }


def draw(rows: pd.DataFrame) -> Figure:
    """Draw test accuracy against epochs, its difference to zero bias, and the rate's selection."""
    figure, (left, middle, right) = new_figure(1, 3, (PAGE, 2.8))
    test = rows[(rows["kind"] == "test") & ~rows["diverged"].astype(bool)]
    for number, (colour, (start, title)) in enumerate(zip(PALETTE, STARTS.items(), strict=False)):
        style: dict[str, Any] = {"color": colour, "marker": "os^Dv"[number], "markersize": 3}
        beside = number - (len(STARTS) - 1) / 2  # bars of one epoch or rate stand side by side
        means = test[test["start"] == start].groupby("epoch")["accuracy"].mean()
        left.plot(means.index, means, label=title, **style)
        epochs = test.groupby("epoch") if start != "zero_bias" else ()
        gains = {epoch: _gain(some, "zero_bias", better=start) for epoch, some in epochs}
        points = [(epoch, gain) for epoch, gain in gains.items() if gain]
        middle.errorbar(
            [epoch + 0.15 * beside for epoch, _ in points],
            [gain.mean for _, gain in points],
            [gain.bar for _, gain in points],
            linestyle="",
            **style,
        )
        rates = _validation(rows, start)
        rates = rates[~rates["diverged"].astype(bool)]
        bars = rates["accuracy"], rates["error"]
        right.errorbar(rates["rate"] * 1.03**beside, *bars, label=title, **style)
    left.set(xlabel="epoch", ylabel="test accuracy (%)", title="a  at the selected rate")
    middle.axhline(0, color="grey", linewidth=0.8, zorder=0)
    middle.set(
        xlabel="epoch", ylabel="accuracy minus zero bias's (points)", title="b  paired by seed"
    )
    for axes in (left, middle):
        axes.xaxis.get_major_locator().set_params(integer=True)
    right.set(xscale="log", xlabel="learning rate", ylabel="validation accuracy (%)")
    right.set_title("c  selection, seed 0")
    rates = sorted(rows.loc[rows["kind"] == "validation", "rate"].unique())
    right.set_xticks(rates, [f"{rate:g}" for rate in rates])
    right.minorticks_off()
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Is the start from BN's statistics better and faster, due to the position of the zero sets?"""
    final, edge = _final(rows), _at_the_edge(rows)

    def gains(value: str = "accuracy", better: str = BN) -> dict[str, Interval | None]:
        rivals = ("zero_bias", "random_bias")
        return {STARTS[start]: _gain(final, start, value, better) for start in rivals}

    best, fast, folded = gains(), gains("early"), gains(better="folded_statistics")
    translation = _gain(final, "frozen_scale")
    reasons = intervals.decide([*folded.values(), translation])
    numbers = {
        name: " and ".join(f"{describe(gain)} against {start}" for start, gain in of_kind.items())
        for name, of_kind in (("best", best), ("fast", fast), ("folded", folded))
    }
    return {
        "better": "undecided" if edge else intervals.decide(best.values()),
        "faster": "undecided" if edge else intervals.decide(fast.values()),
        "Section 4": "contradicted" if reasons == "contradicted" else "undecided",
        "Figure 5": "not at the paper's size",
    }, numbers | {"edge": edge, "translation": describe(translation)}


def _at_the_edge(rows: pd.DataFrame) -> str:
    """The initializations whose selected rate is the smallest or largest tried."""
    tried = rows.loc[rows["kind"] == "validation", "rate"]
    chosen = rows[rows["kind"] == "test"].drop_duplicates("start")
    edge = chosen[chosen["rate"].isin([tried.min(), tried.max()])]["start"]
    names = ", ".join(STARTS[start] for start in edge)
    return " " + TEXT.sentence("edge", names=names) if names else ""


BY_START = {("start", "_title"): tuple(STARTS.items())}
RUNS = {scale: (*run, "target.initialization={start}") for scale, run in OPTIONS.items()}
TASKS = join(
    sweep(
        train_at_rate,
        "{_title}, rate {rate:g}, validation",
        BY_START | {"rate": RATES},
        runs={scale: at_rate(run, "{rate:g}", VALIDATION[scale]) for scale, run in RUNS.items()},
        compared={"target.initialization", "data.validation", "train.lr", "train.seed"},
    ),
    sweep(
        train_at_best_rate,
        "{_title}, seed {seed}",
        {"seed": SEEDS, **BY_START},
        {"rates": RATES, "validation": VALIDATION},
        RUNS,
    ),
)
UNUSED = ["validation accuracy by learning rate", "rate", "training accuracy"]
EXCERPT = only(drop=[*UNUSED, "first half of the epochs"])
PART = part(
    __file__, TASKS, summarize, draw, decide, caption_numbers, options=OPTIONS, excerpt=EXCERPT
)
