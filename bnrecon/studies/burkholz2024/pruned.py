"""How many of 1.5 n random features a trained layer needs: sparse and pruned sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
MARKERS = dict(zip(LABELS, "osD^vX", strict=True))
EXACT = 1e-6  # layer errors below this are the solver's tolerance
LOSS = 0.1  # percentage points of accuracy
LOWEST = -1.0  # point of accuracy lost that the figure still shows
DERIVED: dict[str, tuple[Callable[[float], float], float]] = {  # errors, and from where they are 0
    RANDOM: (random_error, 1.0),
    "magnitude": (lambda share: magnitude_error(share, OVERSAMPLING), OVERSAMPLING),
    "refit": (lambda share: refit_error(share, OVERSAMPLING), 1.0),
}
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
            drawn = 1.0 if method == WEIGHTS else OVERSAMPLING  # c1 / n
            loss = _loss(group)
            lines.append(
                {
                    "kept by": label,
                    "kept / n": share,
                    "kept / c1": float(str(share)) / drawn,
                    "median layer error": group["median_error"].mean(),
                    "largest layer error": group["largest_error"].max(),
                    "accuracy": mean_interval(list(group["accuracy"])),
                    "loss": loss,
                    f"loss at most {LOSS}": _is_small(method, loss),
                    "images predicted otherwise": (
                        f"{group['predicted_otherwise'].sum():,} of {group['images'].sum():,}"
                    ),
                }
            )
    return pd.DataFrame(lines)


def _loss(rows: pd.DataFrame) -> Interval:
    return mean_interval(list(rows["target_accuracy"] - rows["accuracy"]))


def _is_small(method: str, loss: Interval) -> str:
    """Whether the loss is at most 0.1 points: decided by both ends of its interval."""
    half_width = 0.0 if method == WEIGHTS else loss.half_width  # nothing in these is random
    limit = LOSS + 1e-9  # accuracies are multiples of 1 / images, but not as floating point
    if half_width is None or loss.mean - half_width <= limit < loss.mean + half_width:
        return "open"
    return "yes" if loss.mean + half_width <= limit else "no"


def caption(rows: pd.DataFrame) -> str:
    """What was done, what is known, and how many features are needed."""
    first = rows.iloc[0]
    return (
        f"A trained target (VGG18, relu, CIFAR-10; at smoke scale a small VGG on digits), "
        f"largest layer n = {int(first['n']):,}, is rebuilt from c1 = 1.5 n "
        "he_normal features a layer. In every layer a share of them is kept; the scales γ of the "
        "others are exactly 0. Second scales are 1. Features are ranked by |γ| times the norm of "
        "their column of M. "
        "Magnitude: those that rank first in the minimum-norm solution, with their scales there. "
        "Magnitude, refit: the same features, with scales by least squares, as in all methods that "
        "follow. In rounds: each round solves, and leaves 95% of the features, which is how "
        "lottery tickets are pruned. Least L1 norm: those that rank first in an approximate "
        "solution of least L1 norm. Random: any features, which is to draw fewer. The "
        "target's own weights: the largest κ n of the n weights themselves (id_cond, M = I, c1 "
        "= n). Layer errors are ‖W' - W‖ / ‖W‖: the median over layers, averaged over seeds, "
        "and the largest of all. Accuracy is in percent, loss in percentage points below the "
        "target's; images predicted otherwise than by the target are summed over seeds, which "
        "share the test images. ± is the half-width of the 95% Student-t interval over seeds of"
        " the features, chosen in advance; target and test images are fixed, so that it does "
        "not say how another target would fare. With the target's own weights nothing is "
        "random. "
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


def _against_derived(rows: pd.DataFrame) -> str:
    """By how much measured median errors differ from those derived."""
    found = []
    for method, (error, exact) in DERIVED.items():
        own = rows[(rows["method"] == method) & (rows["share"] < exact - 1e-6)]
        means = own.groupby("share")["median_error"].mean()
        if len(ratios := [mean / error(float(str(share))) for share, mean in means.items()]):
            found.append(f"{min(ratios):.2f} to {max(ratios):.2f} ({LABELS[method]})")
    return f"Median errors are these times {', '.join(found)}. " if found else ""


def _against_random(rows: pd.DataFrame) -> str:
    """What choosing κ n of 1.5 n features gains over drawing κ n, paired by seed."""
    compared = rows[rows["share"] == COMPARED]
    by_seed = compared.pivot(index="seed", columns="method", values="accuracy")
    gains = [
        f"{mean_interval(list(gain))} by {label}"
        for method, label in LABELS.items()
        if {method, RANDOM} <= set(by_seed) and method not in (RANDOM, WEIGHTS)
        if len(gain := (by_seed[method] - by_seed[RANDOM]).dropna())
    ]
    if not gains:
        return ""
    drawn = mean_interval(list(by_seed[RANDOM].dropna()))
    return (
        f"Drawing {COMPARED:g} n features leaves an accuracy of {drawn}; choosing {COMPARED:g} n "
        f"of 1.5 n gains, in points, seed by seed: {', '.join(gains)}. "
    )


def _answer(rows: pd.DataFrame) -> str:
    """From which kept share on each method loses at most 0.1 points."""
    found = []
    for method, label in LABELS.items():
        own = rows[rows["method"] == method]
        if own.empty:
            continue
        losses = {float(str(share)): _loss(group) for share, group in own.groupby("share")}
        decided = {share: _is_small(method, loss) for share, loss in losses.items()}
        sure = _smallest({share: answer == "yes" for share, answer in decided.items()})
        likely = _smallest(
            {share: decided[share] != "no" and loss.mean <= LOSS for share, loss in losses.items()}
        )
        words = "none" if sure is None else f"{sure:g} n"
        if likely is not None and (sure is None or likely < sure):
            words += f" (open down to {likely:g} n, where the mean is small but not its interval)"
        found.append(f"{label} {words}")
    return (
        f"Smallest share kept, of those tried, from which on the loss is at most {LOSS} points "
        f"with its whole interval: {'; '.join(found)}."
    )


def _smallest(small: dict[float, bool]) -> float | None:
    """From which share on, downwards from the largest, all losses are small."""
    smallest = None
    for share in sorted(small, reverse=True):
        if not small[share]:
            break
        smallest = share
    return smallest


def draw(rows: pd.DataFrame) -> Figure:
    """Loss of accuracy, and the median layer error, against kept features over n."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 3.6))
    for place, (method, label) in enumerate(LABELS.items()):
        own = rows[rows["method"] == method].groupby("share")
        shares = np.array([float(str(share)) for share, _ in own])
        losses = [_loss(group) for _, group in own]
        style = {"color": COLOURS[method], "marker": MARKERS[method], "markersize": 3.5}
        left.errorbar(
            shares + 0.005 * (place - 2.5),  # so that intervals do not cover each other
            [loss.mean for loss in losses],
            [loss.half_width or 0 for loss in losses],
            capsize=1.5,
            elinewidth=0.7,
            label=label,
            **style,
        )
        errors = own["median_error"].mean()
        right.plot(shares, errors.where(errors > EXACT), **style)
    _draw_derived(right)
    left.set_yscale("symlog", linthresh=LOSS, linscale=0.5)
    left.set_ylim(LOWEST, 110)
    left.set_yticks(
        [LOWEST, -LOSS, 0, LOSS, 1, 10, 100], ["−1", "−0.1", "0", "0.1", "1", "10", "100"]
    )
    left.yaxis.minorticks_off()
    left.axhline(LOSS, color="black", linewidth=0.8, linestyle=":")
    left.set_ylabel("accuracy lost, percentage points")
    right.set_yscale("log")
    right.set_ylim(1e-3, 1.5)
    right.set_ylabel("median relative error of a layer")
    right.legend(loc="upper right")
    left.set_title(f"(a) dotted: a loss of {LOSS}; axis ends at −1")
    right.set_title("(b) from n features on a refit is exact")
    for axes in (left, right):
        axes.axvline(1, color="grey", linewidth=0.8)
        axes.set_xlim(0.25, OVERSAMPLING + 0.05)
        axes.set_xlabel("κ: features kept, over n (grey: n)")
    seeds = rows["seed"].nunique()
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        title=f"features kept by (largest n = {rows['n'].max():,}; {seeds} "
        f"seed{'s, 95% intervals' if seeds > 1 else ''}; of the target's own weights one choice)",
        title_fontsize=7,
    )
    return figure


def _draw_derived(axes: Axes) -> None:
    """What is known of the layer errors, in the colours of the methods."""
    for method, (error, exact) in DERIVED.items():
        shares = np.linspace(0.2, exact - 1e-4, 400)
        errors = [error(float(share)) for share in shares]
        axes.plot(shares, errors, "--", color=COLOURS[method], linewidth=0.9)
    axes.plot([], [], "k--", linewidth=0.9, label="derived")
    shares = np.linspace(0.2, 0.9999, 400)
    least = [least_error(float(share), OVERSAMPLING) for share in shares]
    axes.plot(shares, least, "k:", linewidth=1, label="no choice is below")


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
