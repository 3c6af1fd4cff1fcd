"""How many of 1.5 n random features a trained layer needs: sparse and pruned sources."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.construction.residual import layer_system
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.assembly import assemble
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.source_file import collapse
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Task, part, read_text, refuse_compared
from bnrecon.reproduction.trainings import obtain
from bnrecon.run.evaluation import evaluate_source
from bnrecon.solvers.base import Solution
from bnrecon.solvers.pruning import prune_to, refit
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024 import pruned_limits
from bnrecon.studies.burkholz2024.layers import RUNS

RANDOM, WEIGHTS = "random", "weights"  # in addition to the options of features.pruning
OVERSAMPLING = 1.5
SOURCE_IMAGES = 64  # per row, through the real source network


def rebuild(
    method: str, shares: Sequence[float], seed: int, options: Sequence[str]
) -> pd.DataFrame:
    """One row per share: errors of the layers, and accuracy.

    Args:
        method: one of ``PRUNINGS``; ``random``: least squares with the first features, as if fewer
            were drawn; ``weights``: the target's weights (id_cond) by magnitude.
        shares: kept features over n.
        seed: the features' seed.
        options: overrides of the run whose target is rebuilt.
    """
    trained, data, device = obtain(options)
    features = FeatureSpec("he_normal", oversampling=OVERSAMPLING)
    if method == WEIGHTS:
        features = FeatureSpec("id_cond", width="maximum")
    plan = plan_layers(trained.network, features, seed=seed)
    solutions = [dict[str, Solution]() for _ in shares]
    for layer in plan.layers:
        solved = _solve(layer, method, shares, device)
        for of_share, solution in zip(solutions, solved, strict=True):
            of_share[layer.name] = solution
    config, rows = trained.about["config"], []
    network = f"{config['target']['name']} on {config['data']['name']}"
    named = {"method": method, "network": network, "activation": config["target"]["activation"]}
    for share, of_share in zip(shares, solutions, strict=True):
        source = assemble(plan, of_share)
        networks = (source.network, collapse(source.network), trained.network)
        outcome = evaluate_source(*networks, data, device, SOURCE_IMAGES)
        errors = [layer.relative_error for layer in source.layers]
        row = named | {"share": share, "seed": seed}
        row |= {"median_error": statistics.median(errors), "largest_error": max(errors)}
        row |= {"layers": len(errors), "n": max(layer.shape.equations for layer in plan.layers)}
        row |= {"target_accuracy": trained.about["accuracy"], "accuracy": outcome.accuracy}
        row |= {"images": outcome.images, "predicted_otherwise": outcome.predictions.differ}
        row |= {"source_images": outcome.source_images}
        rows.append(row | {"largest_logit_difference": outcome.largest_logit_difference})
    return pd.DataFrame(rows)


def _solve(
    layer: PlannedLayer, method: str, shares: Sequence[float], device: torch.device
) -> Iterator[Solution]:
    """A layer's solutions, one per share."""
    system = layer_system(layer.folded.target, layer.draw(), device, orthogonal=False)
    counts = [max(1, round(share * layer.shape.equations)) for share in shares]
    if method == RANDOM:
        return (refit(system, SolverSpec(), torch.arange(count, device=device)) for count in counts)
    return prune_to(system, SolverSpec(), counts, "magnitude" if method == WEIGHTS else method)


LABELS = {
    "magnitude": "magnitude",
    RANDOM: "random, refit",
    "refit": "magnitude, refit",
    "iterative": "magnitude, in rounds",
    "l1": "least L1 norm, refit",
    WEIGHTS: "the target's own weights (not random)",
}
DERIVED: dict[str, tuple[Callable[[float], float], float]] = {  # errors, and where they reach 0
    RANDOM: (pruned_limits.random_error, 1.0),
    "magnitude": (lambda share: pruned_limits.magnitude_error(share, OVERSAMPLING), OVERSAMPLING),
    "refit": (lambda share: pruned_limits.refit_error(share, OVERSAMPLING), 1.0),
}
NETWORK = "vgg18 on cifar10"  # of every scale except smoke
FIRST = "relu"  # the default target.activation
ADDED = ("tanh", "sigmoid", "leaky_relu")  # after the results of relu were known
ACTIVATIONS = ((FIRST,), *((name, f"target.activation={name}") for name in ADDED))
SEEDS = {"smoke": (0,), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
# Shares of the 1.5 n features; kept features over n are 1.5 times these.
ABOVE, AT = (1.0, 0.9, 0.8, 0.7), 2 / 3
BELOW = (0.65, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2)
SHARES = {"smoke": ((1.0, 0.8), (0.6, 0.4)), "laptop": (ABOVE, BELOW), "paper": (ABOVE, BELOW)}
LOSS = 0.1  # percentage points of accuracy
# Where methods differ; with n features, a refit is exact.
EXCERPT = "`kept / n` == 0.9 or `kept / n` == 1 and `kept by` == 'random, refit'"
DETAILS = ["kept / c1", "largest layer error", "changed predictions"]
COLOURS = dict(zip(LABELS, PALETTE, strict=False))
MARKERS = dict(zip(LABELS, "osD^vX", strict=True))
SHADES = ("black", "#9a9a9a", "#dca000", "#00a3a3")  # not the methods' colours
TARGET_COLOURS = dict(zip((FIRST, *ADDED), SHADES, strict=True))
EXACT = 1e-6  # layer errors below this are the solver's tolerance
LOWEST = -1.0  # lowest loss in the figure, in points
TICKS = {-1: "−1", -LOSS: "−0.1", 0: "0", LOSS: "0.1", 1: "1", 10: "10", 100: "100"}
TEXT = read_text(__file__)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per target, seed and method, for all shares."""
    refuse_compared(options, ("target.activation", "features"))
    return [
        Task(
            f"{'' if activation == FIRST else f'{activation}, '}{method}, seed {seed}",
            rebuild,
            {"method": method, "shares": _shares(scale, method), "seed": seed},
            (*RUNS[scale], *named, *options),
            reads_target=True,
        )
        for activation, *named in ACTIVATIONS[: 1 if scale == "smoke" else None]
        for seed in SEEDS[scale]
        for method in LABELS
        if method != WEIGHTS or seed == 0  # nothing in it is random
    ]


def _shares(scale: str, method: str) -> list[float]:
    """Kept features over n; above n a refit is exact and needs no row."""
    above, below = SHARES[scale]
    shares = {"magnitude": (*above, AT, *below), WEIGHTS: below}.get(method, (AT, *below))
    return [round(OVERSAMPLING * share, 6) for share in shares]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per method and share: layer errors, and for each target the loss over seeds."""
    rows = _name_targets(rows)
    targets = rows["activation"].unique()
    lines = []
    for method, label in LABELS.items():
        for share, group in rows[rows["method"] == method].groupby("share", sort=False):
            drawn = 1.0 if method == WEIGHTS else OVERSAMPLING  # c1 / n
            by_target = group.groupby("activation", sort=False)
            losses = {name: loss_of(of_target) for name, of_target in by_target}
            line = {"kept by": label, "kept / n": share, "kept / c1": float(str(share)) / drawn}
            line["median layer error"] = group["median_error"].mean()
            line["largest layer error"] = group["largest_error"].max()
            line |= {f"loss, {name}": losses.get(name) for name in targets}
            line[f"loss at most {LOSS}"] = _verdict(method, losses, len(targets))
            counts = f"{group['predicted_otherwise'].sum():,} of {group['images'].sum():,}"
            lines.append(line | {"changed predictions": counts})
    return pd.DataFrame(lines)


def _name_targets(rows: pd.DataFrame) -> pd.DataFrame:
    """Name target and activation in early rows, which were stored without them."""
    activation = rows["activation"] if "activation" in rows else pd.Series("", rows.index)
    network = rows["network"] if "network" in rows else pd.Series(None, rows.index, dtype=object)
    return rows.assign(
        activation=activation.where(activation.isin(ADDED), FIRST), network=network.fillna(NETWORK)
    )


def _verdict(method: str, losses: dict[str, Interval], targets: int) -> str:
    """One word if all targets are known and agree, else each word's targets."""
    by_word: dict[str, list[str]] = {}
    for name, loss in losses.items():
        by_word.setdefault(is_small(method, loss), []).append(name)
    if len(by_word) == 1 and len(losses) == targets:
        return next(iter(by_word))
    words = [word for word in ("yes", "undecided", "no") if word in by_word]
    return "; ".join(f"{word}: {', '.join(by_word[word])}" for word in words)


def loss_of(rows: pd.DataFrame) -> Interval:
    """Points of accuracy below the target's, over seeds of one method, share and target."""
    return mean_interval(list(rows["target_accuracy"] - rows["accuracy"]))


def is_small(method: str, loss: Interval) -> str:
    """Whether the loss is at most 0.1 points: decided by both ends of its interval."""
    if method == WEIGHTS:  # nothing in these is random
        loss = Interval(loss.mean, 0.0, loss.n)
    limit = LOSS + 1e-9  # accuracies are multiples of 1 / images, but not as floating point
    return {1: "yes", 0: "undecided", -1: "no"}[(limit - loss).sign]


def caption_numbers(rows: pd.DataFrame) -> dict[str, Any]:
    """The targets, and measured against derived errors."""
    rows = _name_targets(rows)
    accuracies = rows.groupby("activation", sort=False)["target_accuracy"].first()
    return {
        "networks": ", ".join(rows["network"].unique()),
        "accuracies": ", ".join(f"{name} {value:.2f}%" for name, value in accuracies.items()),
        "n": int(rows["n"].iloc[0]),
        "images": int(rows["source_images"].iloc[0]),
        "against_derived": _against_derived(rows),
        "least_at_09": pruned_limits.least_error(0.9, OVERSAMPLING),
        "least_at_05": pruned_limits.least_error(0.5, OVERSAMPLING),
    }


def _against_derived(rows: pd.DataFrame) -> str:
    """The ratios of measured to derived median errors."""
    spans = []
    for method, (error, exact) in DERIVED.items():
        partial = rows[(rows["method"] == method) & (rows["share"] < exact - 1e-6)]
        means = partial.groupby(["activation", "share"])["median_error"].mean()
        ratios = [mean / error(float(str(share))) for (_, share), mean in means.items()]
        if ratios:
            spans.append(f"{span(ratios, '.2f')} ({LABELS[method]})")
    return TEXT.sentence("against derived", ratios=", ".join(spans)) if spans else ""


def draw(rows: pd.DataFrame) -> Figure:
    """Draw a panel of losses per target, median layer errors, and losses against errors."""
    rows = _name_targets(rows)
    targets = list(rows.groupby("activation", sort=False))
    panels = len(targets) + 2
    columns = 2 if panels == 4 else 3
    lines = -(-panels // columns)
    figure, grid = new_figure(lines, columns, (PAGE, 2.4 * lines + 0.7))
    axes = list(np.ravel(grid))
    for unused in axes[panels:]:
        unused.remove()
    for number, (name, of_target) in enumerate(targets):
        _draw_losses(axes[number], of_target)
        accuracy = of_target["target_accuracy"].iloc[0]
        axes[number].set_title(f"({'abcdefgh'[number]}) {name}, {accuracy:.2f}%")
        if number % columns == 0:
            axes[number].set_ylabel("accuracy lost, points")
    errors, against = axes[len(targets) : panels]
    _draw_errors(errors, rows)
    errors.set_title(f"({'abcdefgh'[panels - 2]}) layer errors")
    _draw_against(against, rows)
    against.set_title(f"({'abcdefgh'[panels - 1]}) loss by layer error")
    for panel in axes[: panels - 1]:
        panel.axvline(1, color="grey", linewidth=0.8)
        panel.set(xlim=(0.25, OVERSAMPLING + 0.05), xlabel="κ: features kept, over n")
    seeds = rows["seed"].nunique()
    several = "s, 95% intervals" if seeds > 1 else ""
    title = (
        f"features kept by (largest n = {rows['n'].max():,}, grey; {seeds} seed{several}; of a "
        f"target's own weights one choice;\ndotted: a loss of {LOSS}; axes end at −1)"
    )
    options: Any = {"loc": "outside lower center", "ncols": 3, "title_fontsize": 7}
    figure.legend(*axes[0].get_legend_handles_labels(), title=title, **options)
    return figure


def _draw_losses(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw one target's losses with their intervals, by method and share."""
    for number, method in enumerate(LABELS):
        by_share = list(rows[rows["method"] == method].groupby("share"))
        shares = np.array([float(str(share)) for share, _ in by_share])
        losses = [loss_of(group) for _, group in by_share]
        axes.errorbar(
            shares + 0.005 * (number - 2.5),  # so that intervals do not cover each other
            [loss.mean for loss in losses],
            [loss.bar for loss in losses],
            capsize=1.5,
            elinewidth=0.7,
            ecolor=(COLOURS[method], 0.35),  # bars that end below the axes cross all lines
            label=LABELS[method],
            **_style(method),
        )
    _scale_losses(axes)


def _style(method: str) -> dict[str, Any]:
    colour, marker = COLOURS[method], MARKERS[method]
    return {"color": colour, "marker": marker, "markersize": 3, "linewidth": 1}


def _scale_losses(axes: Axes) -> None:
    """Scale linearly around 0 and logarithmically above the small loss, which is dotted."""
    axes.set_yscale("symlog", linthresh=LOSS, linscale=0.5)
    axes.set_ylim(LOWEST, 110)
    axes.set_yticks(list(TICKS), list(TICKS.values()))
    axes.yaxis.minorticks_off()
    axes.axhline(LOSS, color="black", linewidth=0.8, linestyle=":")


def _draw_errors(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw median errors, averaged over seeds and targets, with derived errors and a bound."""
    for method in LABELS:
        errors = rows[rows["method"] == method].groupby("share")["median_error"].mean()
        axes.plot(errors.where(errors > EXACT), **_style(method))
    for method, (error, exact) in DERIVED.items():
        shares = np.linspace(0.2, exact - 1e-4, 400)
        derived = [error(float(share)) for share in shares]
        axes.plot(shares, derived, "--", color=COLOURS[method], linewidth=0.9)
    axes.plot([], [], "k--", linewidth=0.9, label="derived")
    shares = np.linspace(0.2, 0.9999, 400)
    least = [pruned_limits.least_error(float(share), OVERSAMPLING) for share in shares]
    axes.plot(shares, least, "k:", linewidth=1, label="no choice is below")
    # Room for the legend.
    axes.set(yscale="log", ylim=(1e-3, 12), ylabel="median relative error")
    axes.legend(loc="upper right", fontsize=6)


def _draw_against(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw mean losses against mean errors: do layer errors decide, or method and target?"""
    means = rows.assign(loss=rows["target_accuracy"] - rows["accuracy"])
    by_target = means[means["median_error"] > EXACT].groupby("activation", sort=False)
    for name, of_target in by_target:
        colour = TARGET_COLOURS[str(name)]
        for method, of_method in of_target.groupby("method"):
            points = of_method.groupby("share")[["median_error", "loss"]].mean()
            axes.plot(*points.to_numpy().T, linestyle="", **_style(str(method)) | {"color": colour})
        axes.plot([], [], linewidth=4, color=colour, label=name)  # shapes stand for methods
    _scale_losses(axes)
    axes.set(xscale="log", xlabel="median relative error")
    axes.legend(loc="lower right", fontsize=6)


FORMATS = {"kept / n": ".3f", "kept / c1": ".3f"}
FORMATS |= {"median layer error": ".1e", "largest layer error": ".1e"}
MORE: dict[str, Any] = {"formats": FORMATS}
MORE["excerpt"] = lambda table: table.query(EXCERPT).drop(columns=DETAILS)
PART = part(__file__, tasks, summarize, draw, numbers=caption_numbers, **MORE)
