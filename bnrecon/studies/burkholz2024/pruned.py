"""How many of 1.5 n random features a trained layer needs: sparse and pruned sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Experiment, Task, no_overrides
from bnrecon.studies.burkholz2024.pruned_limits import (
    least_error,
    magnitude_error,
    random_error,
    refit_error,
)
from bnrecon.studies.burkholz2024.pruned_networks import OVERSAMPLING, RANDOM, WEIGHTS, rebuild

__all__ = ["PART"]

LABELS = {
    "magnitude": "magnitude",
    RANDOM: "random, refit",
    "refit": "magnitude, refit",
    "iterative": "magnitude, in rounds",
    "l1": "least L1 norm, refit",
    WEIGHTS: "the target's own weights",
}
COLOURS = dict(zip(LABELS, PALETTE, strict=False))
EXACT = 1e-6  # layer errors below this are the solver's tolerance
LOSS = 0.1  # percentage points of accuracy
COMPARED = 0.9  # the share of n at which choosing is compared with drawing fewer
TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("target=vgg18", "data=cifar10", "scale=laptop", "target.width=16"),
    "paper": ("target=vgg18", "data=cifar10", "scale=paper", "target.width=64"),
}
SEEDS = {"smoke": (0,), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
# Shares of the 1.5 n features; kept features over n are 1.5 times these.
ABOVE, AT = (1.0, 0.9, 0.8, 0.7), 2 / 3
BELOW = (0.65, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2)
SHARES = {"smoke": ((1.0, 0.8), (0.6, 0.4)), "laptop": (ABOVE, BELOW), "paper": (ABOVE, BELOW)}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each seed and method, which computes all shares."""
    return [
        Task(
            f"{method}, seed {seed}",
            rebuild,
            {"method": method, "shares": _shares(scale, method), "seed": seed},
            (*TARGETS[scale], *options),
            reads_target=True,
        )
        for seed in SEEDS[scale]
        for method in LABELS
        if method != WEIGHTS or seed == 0  # nothing in it is random
    ]


def _shares(scale: str, method: str) -> list[float]:
    """Kept features over n; above n a refit is exact and needs no row."""
    above, below = SHARES[scale]
    shares = {"magnitude": (*above, AT, *below), WEIGHTS: below}.get(method, (AT, *below))
    return [round(OVERSAMPLING * share, 6) for share in shares]


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per method and share, with intervals over seeds."""
    lines = []
    for method, label in LABELS.items():
        own = rows[rows["method"] == method]
        for share, group in own.groupby("share", sort=False):
            of_features = float(str(share)) / OVERSAMPLING
            lines.append(
                {
                    "kept by": label,
                    "kept / n": share,
                    "kept / c1": of_features if method != WEIGHTS else None,
                    "median layer error": group["median_error"].mean(),
                    "largest layer error": group["largest_error"].max(),
                    "accuracy": mean_interval(list(group["accuracy"])),
                    "loss": _loss(group),
                    "images predicted otherwise": (
                        f"{group['predicted_otherwise'].sum():,} of {group['images'].sum():,}"
                    ),
                }
            )
    return pd.DataFrame(lines)


def _loss(rows: pd.DataFrame) -> Interval:
    return mean_interval(list(rows["target_accuracy"] - rows["accuracy"]))


def caption(rows: pd.DataFrame) -> str:
    """What was done, what is known, and how many features are needed."""
    first = rows.iloc[0]
    return (
        f"A trained target, largest layer n = {int(first['n']):,}, is rebuilt from 1.5 n "
        "he_normal features a layer, of which some keep their scales; the others' are 0. A "
        "feature contributes |γ| times the norm of its column of M. Magnitude: the largest "
        "contributions of the minimum-norm solution, as they are. Magnitude, refit: the same with "
        "new scales by least squares. Magnitude, in rounds: each round leaves 95% of the features "
        "and solves again, as lottery tickets are pruned. Least L1 norm, refit: the largest "
        "contributions of the solution of least L1 norm, with new scales. Random, refit: any "
        "features, which is drawing fewer. The target's own weights: the largest of the n weights "
        "as they are (id_cond, M = I); nothing in it is random. Second scales are 1. Layer "
        "errors are ‖W' - W‖ / ‖W‖: the median over layers, averaged over seeds, and the largest. "
        "± is the half-width of the 95% Student-t interval over seeds of the features, fixed "
        f"before; one target. {int(first['source_images'])} images a row go through the real "
        "source network, the others through its collapsed form. "
        "Known: from n features on a refit is exact (Theorem 2.3), whichever are kept, and the "
        "least L1 norm has a solution of at most n nonzeros, two thirds of 1.5 n. With κ n < n "
        "features chosen at random the error is √(1 - κ). A refit makes that of magnitude √(1 - κ) "
        "times as large, as what is left out is nearly independent of what is kept (dashed lines, "
        "without a fitted number). No choice of κ n among 1.5 n features falls below the dotted "
        "line, derived by counting choices for M of independent normal entries: "
        f"{least_error(0.9, OVERSAMPLING):.0e} at κ = 0.9, {least_error(0.5, OVERSAMPLING):.2f} at "
        "κ = 0.5. None of this depends on the target: a random M has no direction that suits a "
        "trained weight. Open: whether choices between the methods here and that line exist, and "
        f"can be found. {_against_random(rows)}{_answer(rows)}"
    )


def _against_random(rows: pd.DataFrame) -> str:
    """What choosing κ n of 1.5 n features gains over drawing κ n, paired by seed."""
    by_seed = rows[rows["share"] == COMPARED].pivot(
        index="seed", columns="method", values="accuracy"
    )
    gains = [
        f"{mean_interval(list(gain))} by {label}"
        for method, label in LABELS.items()
        if {method, RANDOM} <= set(by_seed) and method not in (RANDOM, WEIGHTS)
        if len(gain := (by_seed[method] - by_seed[RANDOM]).dropna())
    ]
    if not gains:
        return ""
    return (
        f"Points of accuracy gained by choosing {COMPARED:g} n of 1.5 n features instead of "
        f"drawing {COMPARED:g} n: {', '.join(gains)}. "
    )


def _answer(rows: pd.DataFrame) -> str:
    """The smallest kept share of each method whose loss is at most 0.1 points."""
    found = []
    for method, label in LABELS.items():
        own = rows[rows["method"] == method]
        losses = {float(share): _loss(group) for share, group in own.groupby("share")}
        certain, mean = (_smallest(losses, with_interval) for with_interval in (True, False))
        if mean is not None:
            surely = "none" if certain is None else f"{certain:g} n"
            several = max(loss.n for loss in losses.values()) > 1
            found.append(f"{label} {mean:g} n" + (f" ({surely})" if several else ""))
    listed = "; ".join(found) or "none of those tried"
    return (
        f"Smallest share from which on the loss is at most {LOSS} points, in brackets with the "
        f"upper end of its interval: {listed}."
    )


def _smallest(losses: dict[float, Interval], with_interval: bool) -> float | None:
    """From which share on, downwards from the largest, all losses are within the bound."""
    smallest = None
    for share in sorted(losses, reverse=True):
        loss = losses[share]
        if loss.mean + (loss.half_width or 0.0 if with_interval else 0.0) > LOSS:
            break
        smallest = share
    return smallest


def draw(rows: pd.DataFrame) -> Figure:
    """Loss of accuracy, and the median layer error, against kept features over n."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 3.3))
    for method, label in LABELS.items():
        own = rows[rows["method"] == method].groupby("share")
        shares = [float(str(share)) for share, _ in own]
        losses = [_loss(group) for _, group in own]
        style = {"color": COLOURS[method], "marker": "o", "markersize": 3}
        left.errorbar(
            shares,
            [loss.mean for loss in losses],
            [loss.half_width or 0 for loss in losses],
            capsize=2,
            label=label,
            **style,
        )
        errors = own["median_error"].mean()
        right.plot(shares, errors.where(errors > EXACT), **style)
    _draw_derived(right)
    left.set_yscale("symlog", linthresh=LOSS)
    left.axhline(LOSS, color="grey", linewidth=0.8, linestyle=":")
    left.set_ylabel("accuracy lost, percentage points")
    right.set_yscale("log")
    right.set_ylim(1e-3, 1.5)
    right.set_ylabel("median relative error of a layer")
    right.legend(loc="lower left")
    for letter, axes in zip("ab", (left, right), strict=True):
        _mark_n(axes, letter)
    seeds = rows["seed"].nunique()
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        title=f"features are kept by; {seeds} seed{'s' if seeds > 1 else ''}, 95% intervals",
        title_fontsize=7,
    )
    return figure


def _draw_derived(axes: Axes) -> None:
    """What is known of the layer errors, in the colours of the methods."""
    below, all_shares = np.linspace(0.2, 0.9999, 400), np.linspace(0.2, 1.49, 400)
    random = [random_error(kappa) for kappa in below]
    axes.plot(below, random, "--", color=COLOURS[RANDOM], linewidth=0.9)
    refitted = [refit_error(kappa, OVERSAMPLING) for kappa in below]
    axes.plot(below, refitted, "--", color=COLOURS["refit"], linewidth=0.9)
    magnitude = [magnitude_error(kappa, OVERSAMPLING) for kappa in all_shares]
    axes.plot(all_shares, magnitude, "--", color=COLOURS["magnitude"], linewidth=0.9)
    axes.plot([], [], "k--", linewidth=0.9, label="derived")
    least = [least_error(kappa, OVERSAMPLING) for kappa in below]
    axes.plot(below, least, "k:", linewidth=1, label="no choice is below")


def _mark_n(axes: Axes, letter: str) -> None:
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_title(f"({letter}) grey line: n features", loc="left")
    axes.set_xlabel("κ: features kept, over n")


PART = Experiment(
    "Sect. 1.1, lottery tickets",
    "How many of 1.5 n random features a trained network needs",
    tasks,
    summary,
    caption,
    draw,
    options=no_overrides,
    formats={
        "kept / n": ".3f",
        "kept / c1": ".3f",
        "median layer error": ".1e",
        "largest layer error": ".1e",
    },
)
