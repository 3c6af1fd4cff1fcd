"""What was done about sparse and pruned sources, what is known, and the answers in words."""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.statistics import mean_interval
from bnrecon.studies.burkholz2024.pruned_limits import least_error
from bnrecon.studies.burkholz2024.pruned_loss import LOSS, is_small, loss_of
from bnrecon.studies.burkholz2024.pruned_settings import (
    COMPARED,
    DERIVED,
    LABELS,
    OVERSAMPLING,
    RANDOM,
    WEIGHTS,
)

__all__ = ["caption"]


def caption(rows: pd.DataFrame) -> str:
    """What was done, what is known, and how many features are needed.

    Args:
        rows: of the tasks, with columns ``network`` and ``activation``.
    """
    first = rows.iloc[0]
    return (
        f"Trained targets ({', '.join(rows['network'].unique())}; {_accuracies(rows)}), largest "
        f"layer n = {int(first['n']):,}, are rebuilt from c1 = 1.5 n "
        "he_normal features a layer. In every layer a share of them is kept; the scales γ of the "
        "others are exactly 0. Second scales are 1. Features are ranked by |γ| times the norm of "
        "their column of M. "
        "Magnitude: those that rank first in the minimum-norm solution, with their scales there. "
        "Magnitude, refit: the same features, with scales by least squares, as in all methods that "
        "follow. In rounds: each round solves, and leaves 95% of the features, which is how "
        "lottery tickets are pruned. Least L1 norm: those that rank first in an approximate "
        "solution of least L1 norm. Random: any features, which is to draw fewer. A "
        "target's own weights: the largest κ n of the n weights themselves (id_cond, M = I, c1 "
        "= n). Layer errors are ‖W' - W‖ / ‖W‖: the median over layers, averaged over seeds and "
        "targets, and the largest of all. Loss is in percentage points of accuracy below the "
        "target's; images predicted otherwise than by the target are summed over targets and "
        "seeds, which share the test images. ± is the half-width of the 95% Student-t interval "
        "over seeds of the features, chosen in advance; a target and the test images are fixed, so "
        "that it does not say how a target of another training would fare. Targets after the first "
        "were added when its results were known. With a target's own weights nothing is random. "
        f"Loss at most {LOSS}: yes or no where the whole interval is on one side, else open. "
        f"{int(first['source_images'])} images a row go through the real source network, the "
        "others through its collapsed form. "
        "Derived, for M of independent normal entries and n → ∞, whatever the target (dashed; no "
        "number is fitted): from n features on a refit is exact (Theorem 2.3), whichever are kept; "
        "with κ n < n random ones the error is √(1 - κ); the errors of magnitude and its refit "
        "follow from the Marchenko-Pastur law. "
        f"{_against_derived(rows)}No choice of κ n among 1.5 n features falls below the dotted "
        "line, by counting choices: "
        f"{least_error(0.9, OVERSAMPLING):.0e} at κ = 0.9, {least_error(0.5, OVERSAMPLING):.2f} at "
        "κ = 0.5. Open: whether choices between that line and the methods here exist, and can be "
        f"found. {_against_random(rows)}{_answer(rows)}"
    )


def _accuracies(rows: pd.DataFrame) -> str:
    """The targets by activation: test accuracies in percent."""
    by_target = rows.groupby("activation", sort=False)["target_accuracy"].first()
    return ", ".join(f"{name} {accuracy:.2f}%" for name, accuracy in by_target.items())


def _against_derived(rows: pd.DataFrame) -> str:
    """By how much measured median errors differ from those derived."""
    found = []
    for method, (error, exact) in DERIVED.items():
        own = rows[(rows["method"] == method) & (rows["share"] < exact - 1e-6)]
        means = own.groupby(["activation", "share"])["median_error"].mean()
        ratios = [mean / error(float(str(share))) for (_, share), mean in means.items()]
        if ratios:
            found.append(f"{min(ratios):.2f} to {max(ratios):.2f} ({LABELS[method]})")
    return f"Median errors are these times {', '.join(found)}. " if found else ""


def _against_random(rows: pd.DataFrame) -> str:
    """What choosing κ n of 1.5 n features gains over drawing κ n, paired by seed."""
    found = []
    for name, compared in rows[rows["share"] == COMPARED].groupby("activation", sort=False):
        by_seed = compared.pivot(index="seed", columns="method", values="accuracy")
        gains = [
            f"{mean_interval(list(gain))} by {label}"
            for method, label in LABELS.items()
            if {method, RANDOM} <= set(by_seed) and method not in (RANDOM, WEIGHTS)
            if len(gain := (by_seed[method] - by_seed[RANDOM]).dropna())
        ]
        if gains:
            drawn = mean_interval(list(by_seed[RANDOM].dropna()))
            found.append(f"{name} from {drawn}: {', '.join(gains)}")
    if not found:
        return ""
    return (
        f"Accuracy that choosing {COMPARED:g} n of 1.5 n features gains over drawing {COMPARED:g} "
        f"n, in points, seed by seed: {'; '.join(found)}. "
    )


def _answer(rows: pd.DataFrame) -> str:
    """From which kept share on each method loses at most 0.1 points, by target."""
    found = []
    for method, label in LABELS.items():
        own = rows[rows["method"] == method]
        by_target = own.groupby("activation", sort=False)
        answers = {name: _smallest_share(method, group) for name, group in by_target}
        if 1 < len(answers) == rows["activation"].nunique() and len(set(answers.values())) == 1:
            found.append(f"{label} {next(iter(answers.values()))} (every target)")
        elif answers:
            listed = ", ".join(f"{answer} ({name})" for name, answer in answers.items())
            found.append(f"{label} {listed}")
    return (
        f"Smallest share kept, of those tried, from which on the loss is at most {LOSS} points "
        "with its whole interval, and in brackets from which on it is so in the mean but open: "
        f"{'; '.join(found)}."
    )


def _smallest_share(method: str, rows: pd.DataFrame) -> str:
    """The answer for one method and target, as "1 n [0.9 n]"."""
    losses = {float(str(share)): loss_of(group) for share, group in rows.groupby("share")}
    decided = {share: is_small(method, loss) for share, loss in losses.items()}
    sure = _smallest({share: answer == "yes" for share, answer in decided.items()})
    likely = _smallest(
        {share: decided[share] != "no" and loss.mean <= LOSS for share, loss in losses.items()}
    )
    words = "none" if sure is None else f"{sure:g} n"
    if likely is not None and (sure is None or likely < sure):
        words += f" [{likely:g} n]"
    return words


def _smallest(small: dict[float, bool]) -> float | None:
    """From which share on, downwards from the largest, all losses are small."""
    smallest = None
    for share in sorted(small, reverse=True):
        if not small[share]:
            break
        smallest = share
    return smallest
