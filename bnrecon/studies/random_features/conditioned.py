"""Table 1: training with weights multiplied by fixed, ill-conditioned factors.

A layer W = s ∘ w takes steps -η s² ∘ ∇L(W). With mean(s²) = 1 they go as far along the gradient as
without factors, but are sqrt(mean s⁴) times as long. No rate η matches both: each is compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bnrecon.features.spectrum import aspect_of_condition, quantile
from bnrecon.reporting.statistics import Interval
from bnrecon.reporting.wording import spell
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import paired_difference_by
from bnrecon.reproduction.parts import Decision, Decisions, Task, part, read_reported, read_text
from bnrecon.reproduction.trainings import training_tasks
from bnrecon.studies.random_features.averages import ALIKE, compare_settings
from bnrecon.targets.spec import TrainSpec

TEXT = read_text(__file__)
REPORTED = read_reported(__package__)["table1"]
OPTIONS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke", "seeds=[0]"),
    "laptop": ("data=cifar10", "target=vgg18", "scale=laptop", "target.width=16"),
    "paper": ("data=cifar10", "target=resnet18", "scale=paper", "target.width=64"),
}
# For rows of the printed spectrum; at laptop scale, they were trained before the others.
PRINTED = {"smoke": (), "laptop": ("train.epochs=6",), "paper": ()}
PRINTED_SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
DECIDING = (0, 1, 2)  # seeds fixed before any training; two more were added after looking
BASELINE = "1"
SPLITS = ("training", "test")
POOLED = "condition numbers above 1, pooled"
LONG_BASELINE = "no factors"
CONDITIONS = (10, 100, 1000)  # of the log-uniform spectra
LOG_UNIFORM = {condition: f"log-uniform, {condition}" for condition in CONDITIONS}
WEIGHTS = 1_000_000  # c0 c2, as the paper assumes


def step_length(condition: float) -> float:
    """How much longer steps are with log-uniform factors: sqrt(mean s⁴) / mean s².

    With s = exp(u), u uniform on an interval of length ln κ, both means are integrals of
    exponentials, and the square of the ratio is ln κ (κ² + 1) / (κ² - 1).

    >>> [round(step_length(condition), 2) for condition in (10, 100, 1000)]
    [1.53, 2.15, 2.63]
    """
    squared = condition**2
    return math.sqrt(math.log(condition) * (squared + 1) / (squared - 1))


RATIO = step_length(max(CONDITIONS))
LONGER = f"no factors, learning rate × {RATIO:.2f}"
SHORTER = f"no factors, learning rate / {RATIO:.2f}"
HARDEST = LOG_UNIFORM[max(CONDITIONS)]
HARDEST_SHORTER = f"{HARDEST}, learning rate / {RATIO:.2f}"
# What each is compared with in the table.
BASELINES = {LONGER: LONG_BASELINE, SHORTER: LONG_BASELINE, HARDEST_SHORTER: SHORTER}
ALONG = ((HARDEST, LONG_BASELINE), (HARDEST_SHORTER, SHORTER))
AS_LONG = ((HARDEST, LONGER), (HARDEST_SHORTER, LONG_BASELINE))


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per spectrum and seed (of initial weights, batches and factors)."""
    printed = {condition: (f"target.condition={condition}",) for condition in REPORTED}
    longer: dict[str, tuple[str, ...]] = {LONG_BASELINE: ()}
    for condition, name in LOG_UNIFORM.items():
        longer[name] = (f"target.condition={condition}", "target.spectrum=log_uniform")
    rate = TrainSpec().lr
    faster, slower = (f"train.lr={value:.4g}" for value in (rate * RATIO, rate / RATIO))
    longer |= {LONGER: (faster,), HARDEST_SHORTER: (*longer[HARDEST], slower), SHORTER: (slower,)}
    common = OPTIONS[scale]
    return [
        *training_tasks(printed, (*common, *PRINTED[scale]), PRINTED_SEEDS[scale], options),
        *training_tasks(longer, common, SEEDS[scale], options),
    ]


def energy_apart(one: np.ndarray, other: np.ndarray) -> float:
    """The root mean squared difference of factors of the same rank, of root mean square 1."""
    return float(np.sqrt(np.mean((np.sort(one) - np.sort(other)) ** 2)))


def quantiles_apart(conditions: Sequence[float]) -> float:
    """The largest ``energy_apart`` of Theorem 2.2's law at two of these condition numbers.

    >>> quantiles_apart([5413, 1541601]) < 3e-4
    True
    """
    shares = np.linspace(0, 1, 10_001)
    factors = [quantile(shares, aspect_of_condition(condition)) for condition in conditions]
    return max(energy_apart(one, other) for one, other in itertools.combinations(factors, 2))


def draws_apart(condition: float, factors: int = WEIGHTS) -> float:
    """``energy_apart`` of two independent draws of this many factors from Theorem 2.2's law.

    >>> draws_apart(10123, 10_000) > 10 * quantiles_apart([10123, 1541601])
    True
    """
    shares = np.random.default_rng(0).random((2, factors))
    one, other = quantile(shares, aspect_of_condition(condition))
    return energy_apart(one, other)


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """The printed spectrum's ill-conditioned rows as replicates: their means, by seed.

    Only seeds that all conditions share.
    """
    names = [condition for condition in REPORTED if condition != BASELINE]
    replicates = rows[rows["setting"].isin(names)]
    whole = replicates.groupby("seed").filter(lambda group: len(group) == len(names))
    return whole.groupby("seed", as_index=False).mean(numeric_only=True).assign(setting=POOLED)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per spectrum, with the paper's accuracies on ImageNet."""
    reported = {
        condition: {f"reported, ImageNet, {split}": f"{accuracies[split]:g}" for split in SPLITS}
        for condition, accuracies in REPORTED.items()
    }
    baselines = {POOLED: BASELINE} | dict.fromkeys(LOG_UNIFORM.values(), LONG_BASELINE)
    is_printed = rows["setting"].isin(REPORTED)
    printed = rows[is_printed & rows["seed"].isin(DECIDING)]
    ordered = pd.concat([printed, pooled(printed), rows[~is_printed]])
    return compare_settings(ordered, "condition number", reported, baselines | BASELINES)


def reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """The printed accuracies on ImageNet, by condition number."""
    printed = REPORTED.get(row["setting"], {})
    return {f"reported_imagenet_{split}": printed.get(split) for split in SPLITS}


def caption_numbers(rows: pd.DataFrame) -> dict[str, Any]:
    """How little the factors of the larger condition numbers differ, and a note on other rates."""
    conditions = sorted(float(name) for name in set(rows["setting"]) & set(REPORTED) - {BASELINE})
    at_other_rates = set(rows["setting"]) & set(BASELINES)
    numbers = rows[["width", "epochs"]].min().to_dict() | {"differ": ""}
    if len(conditions) > 1:
        apart = quantiles_apart(conditions)
        numbers["differ"] = TEXT.sentence("differ", condition=conditions[0], apart=apart) + " "
    both = pd.concat([rows, pooled(rows)])
    numbers["added"] = spell(paired_difference_by(both, "setting", POOLED, BASELINE))
    numbers["at_other_rates"] = TEXT.sentence("rates") if at_other_rates else ""
    return numbers


def decide(rows: pd.DataFrame) -> Decisions:
    """Does ill conditioning cost accuracy, and can it explain why the last row is lowest?"""
    both = pd.concat([rows, pooled(rows)])
    cost = paired_difference_by(both[both["seed"].isin(DECIDING)], "setting", POOLED, BASELINE)
    decisions: list[Decision] = [
        ("cost", "not at the paper's size", {"cost": spell(cost)}),
        ("cause", "undecided", {}),
    ]
    longer = {
        condition: paired_difference_by(rows, "setting", name, LONG_BASELINE)
        for condition, name in LOG_UNIFORM.items()
    }
    if any(longer.values()):
        numbers = {"differences": ", ".join(f"{spell(one)} at {c:,}" for c, one in longer.items())}
        decisions.append(("varied", decide_fall(*longer.values()), numbers))
    if set(rows["setting"]) & set(BASELINES):
        decisions.append(_at_equal_steps(rows))
    return [*decisions, _order(rows)]


def _order(rows: pd.DataFrame) -> Decision:
    """From 10,123 to 1,541,601: can the described factors be the reason?"""
    before, after = "10123", "1541601"
    apart = quantiles_apart([float(before), float(after)])
    drawn = draws_apart(float(before))
    difference = paired_difference_by(rows[rows["seed"].isin(DECIDING)], "setting", after, before)
    numbers = {"before": REPORTED[before]["test"], "after": REPORTED[after]["test"]}
    numbers |= {"apart": apart, "drawn": drawn}
    verdict = "undecided" if apart < drawn else decide_fall(difference)
    return "order", verdict, numbers | {"difference": spell(difference)}


def _at_equal_steps(rows: pd.DataFrame) -> Decision:
    """Is the accuracy lower at equal steps, however they are matched?"""
    along, as_long = (
        [paired_difference_by(rows, "setting", *pair) for pair in pairs]
        for pairs in (ALONG, AS_LONG)
    )
    alone = paired_difference_by(rows, "setting", LONGER, LONG_BASELINE)
    numbers = {"condition": max(CONDITIONS), "ratio": RATIO, "alone": spell(alone)}
    numbers |= {"along": "; ".join(map(spell, along)), "as_long": "; ".join(map(spell, as_long))}
    return "steps", decide_fall(*along, *as_long), numbers


def decide_fall(*differences: Interval | None) -> str:
    """Whether all are below 0; two seeds are enough."""
    return intervals.decide((one and -one for one in differences), least=2)


UNUSED = [*ALIKE, "compared with", "training accuracy", "reported, ImageNet, training"]
PART = part(
    __file__,
    tasks,
    summarize,
    decide=decide,
    numbers=caption_numbers,
    options=OPTIONS,
    reported=reported,
    excerpt=lambda table: table.head(len(REPORTED) + 1).drop(columns=UNUSED),  # and pooled
)
