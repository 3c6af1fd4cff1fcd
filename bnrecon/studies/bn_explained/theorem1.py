"""Theorem 1, Eq. 7-9, Corollary 2: the batch mean fits hyperplanes to a layer's inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Task, no_overrides
from bnrecon.reproduction.sweeps import sweep
from bnrecon.reproduction.texts import Decisions, part
from bnrecon.reproduction.trainings import obtain
from bnrecon.studies.bn_explained.normalized_layers import NormalizedLayer, find_normalized_layers

# Inputs, units, points: also more units than inputs, and fewer points than inputs.
SIZES = {
    "smoke": ((2, 8, 16), (20, 5, 10)),
    "laptop": ((2, 8, 16), (64, 64, 64), (200, 50, 100), (256, 512, 1024)),
    "paper": ((2, 8, 16), (64, 64, 64), (200, 50, 100), (256, 512, 1024), (3072, 1024, 4096)),
}
SEEDS = {"smoke": 2, "laptop": 10, "paper": 10}
BATCHES = {"smoke": (16,), "laptop": (16, 256), "paper": (16, 256)}
ERRORS = ("minimizer_error", "value_error", "excess_error", "centre_error")
DISPLACEMENTS = 8  # other thresholds that every unit's batch mean is compared with
COMPARED = 8  # units of a random layer whose L_k is shown in the figure
THRESHOLDS = {
    "random": "random layers, random t",
    "running": "trained network, running mean",
    "learned": "trained network, learned",
}
UNDONE = 100  # percent that L rises by where the threshold is off by a whole sigma
TOLERANCE = 1e-10  # float64: sums of up to 16,384 terms, relative to a deviation

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "ReLU of normal": lambda generator, shape: np.maximum(generator.normal(size=shape), 0),
    "heavy tails": lambda generator, shape: generator.standard_t(3, size=shape),
}


def distances(points: np.ndarray, weight: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Distances |<w, v> - mu| / ||w|| of points to hyperplanes <w, v> = mu (Eq. 7).

    Args:
        points: (B, D).
        weight: rows w (K, D), none of them zero.
        threshold: mu (K,).

    Returns:
        (B, K).

    >>> distances(np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]]), np.array([2.0]))
    array([[3.]])
    """
    return np.abs(points @ weight.T - threshold) / np.linalg.norm(weight, axis=1)


def mean_squared_distances(
    points: np.ndarray, weight: np.ndarray, threshold: np.ndarray
) -> np.ndarray:
    """The total least squares distance L_k of each unit (K,): the left equality of Eq. 8."""
    return np.square(distances(points, weight, threshold)).mean(0)


def batch_moments(points: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (K,) of W z over the batch, the deviation by 1/B (Eq. 3)."""
    outputs = points @ weight.T
    return outputs.mean(0), outputs.std(0)


def compare_thresholds(
    points: np.ndarray, weight: np.ndarray, threshold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (t - mu) / sigma (K,) of thresholds t, and L_k(t) / L_k(mu) (K,), by distances.

    By Theorem 1 and Eq. 8 the ratio is 1 + offset².

    >>> points = np.array([[0.0], [2.0]])
    >>> compare_thresholds(points, np.array([[5.0]]), np.array([15.0]))
    (array([2.]), array([5.]))
    """
    mean, deviation = batch_moments(points, weight)
    losses = (mean_squared_distances(points, weight, values) for values in (threshold, mean))
    return (threshold - mean) / deviation, np.divide(*losses)


def check_layer(
    points: np.ndarray, weight: np.ndarray, mean: np.ndarray, generator: np.random.Generator
) -> dict[str, float]:
    """Compare what Theorem 1, Eq. 8 and Corollary 2 say of a layer with direct computations.

    Args:
        points: the layer's inputs (B, D).
        weight: its rows (K, D).
        mean: the batch mean mu (K,) that the normalization computes.
        generator: draws the other thresholds.

    Returns:
        ``minimizer_error``: largest difference to the least-squares solution, in sigma.
        ``value_error``: largest relative difference of L_k(mu) to sigma² / ||w||².
        ``excess_error``: largest relative difference of L_k(t) - L_k(mu) to (t - mu)² / ||w||²,
        relative to L_k(t).
        ``better``: how many other thresholds t have a smaller L_k; Theorem 1 says none.
        ``centre_error``: largest distance of the mean of the inputs to a hyperplane, relative to
        the unit's root mean squared distance.
    """
    outputs = points @ weight.T
    _, deviation = batch_moments(points, weight)
    norms = np.linalg.norm(weight, axis=1)
    solution = np.linalg.lstsq(np.ones((len(points), 1)), outputs, rcond=None)[0][0]
    value = mean_squared_distances(points, weight, mean)
    excess, better = 0.0, 0
    for _ in range(DISPLACEMENTS):
        other = mean + deviation * generator.normal(size=len(mean))
        loss = mean_squared_distances(points, weight, other)
        expected = np.square((other - mean) / norms)
        excess = max(excess, float((np.abs(loss - value - expected) / loss).max()))
        better += int((loss < value).sum())
    centre = distances(points.mean(0, keepdims=True), weight, mean)[0]
    return {
        "minimizer_error": float((np.abs(solution - mean) / deviation).max()),
        "value_error": float(np.abs(value / np.square(deviation / norms) - 1).max()),
        "excess_error": excess,
        "better": better,
        "centre_error": float((centre * norms / deviation).max()),
    }


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each size of random layer, and one for a trained network."""
    random = sweep(
        check_random,
        "random, D = {inputs}, K = {units}, B = {points}",
        {("inputs", "units", "points"): SIZES},
        {"seeds": SEEDS},
    )
    trained = Task(
        "trained network",
        check_trained,
        {"batches": list(BATCHES[scale])},
        ("data=digits", "target=vgg_small", f"scale={scale}", *options),
        reads_target=True,
    )
    return [*random(scale, options), trained]


def check_random(inputs: int, units: int, points: int, seeds: int) -> pd.DataFrame:
    """One row for each distribution of inputs and seed; weights are normal.

    For the first seed also rows of ``_threshold_rows``, of normal thresholds.
    """
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name, distribution in DISTRIBUTIONS.items():
            generator = np.random.Generator(np.random.Philox(seed))
            batch = distribution(generator, (points, inputs))
            weight = generator.normal(size=(units, inputs))
            mean, deviation = batch_moments(batch, weight)
            named = {"layer": f"random, {name}", "dimension": inputs, "points": points}
            row = named | {"kind": "layer", "units": units, "seed": seed}
            rows.append(row | check_layer(batch, weight, mean, generator))
            if seed == 0:
                other = (mean + deviation * generator.normal(size=units))[:COMPARED]
                rows += _threshold_rows(named, "random", (batch, weight[:COMPARED]), other)
    return pd.DataFrame(rows)


def _threshold_rows(
    named: dict[str, Any], which: str, layer: tuple[np.ndarray, np.ndarray], values: np.ndarray
) -> list[dict[str, Any]]:
    """One row per unit of a layer (points, weight): a threshold's offset and L_k(t) / L_k(mu)."""
    compared = zip(*compare_thresholds(*layer, values), strict=True)
    return [
        named | {"kind": "threshold", "threshold": which, "offset": offset, "loss_ratio": ratio}
        for offset, ratio in compared
    ]


def check_trained(batches: Sequence[int], options: Sequence[str]) -> pd.DataFrame:
    """One row for each normalized layer of a trained network and batch of training images.

    Units that are constant on the batch are left out. Root mean squares over units, in sigma:
    ``running_offset`` is how far the running mean is from the batch mean, ``learned_offset`` how
    far the learned scale and shift move the threshold; ``map_offset``, of a convolution, how far
    the mean of whole feature maps is from the hyperplanes of all positions. Further rows are those
    of ``_threshold_rows``.
    """
    trained, data, _ = obtain(options)
    network = trained.network.cpu()
    rows: list[dict[str, Any]] = []
    for size in batches:
        images = next(iter(data.plain_train_batches(size, torch.device("cpu"), size)))
        for layer in find_normalized_layers(network, images):
            named = {"layer": layer.name, "dimension": layer.points.shape[1]}
            named |= {"points": len(layer.points), "images": size}
            rows += _trained_rows(layer, named | {"accuracy": trained.about["accuracy"]})
    return pd.DataFrame(rows)


def _trained_rows(layer: NormalizedLayer, named: dict[str, Any]) -> list[dict[str, Any]]:
    alive = layer.batch_deviation > 0
    weight, mean, deviation = (
        values[alive] for values in (layer.weight, layer.batch_mean, layer.batch_deviation)
    )
    maps = (layer.points @ weight.T).reshape(named["images"], -1, len(weight))
    offsets = {
        "running_offset": (layer.stored_mean - layer.batch_mean)[alive] / deviation,
        "learned_offset": (layer.stored_threshold - layer.stored_mean)[alive] / deviation,
        "map_offset": (maps.mean(0) - mean) / deviation,
    }
    row = named | {"kind": "layer", "units": len(weight), "seed": 0}
    row |= {name: float(np.sqrt(np.square(offset).mean())) for name, offset in offsets.items()}
    generator = np.random.Generator(np.random.Philox(0))
    rows = [row | check_layer(layer.points, weight, mean, generator)]
    learned = layer.batch_mean + layer.stored_threshold - layer.stored_mean
    for which, threshold in (("running", layer.stored_mean), ("learned", learned)):
        rows += _threshold_rows(named, which, (layer.points, weight), threshold[alive])
    return rows


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per kind of layer: the largest errors."""
    lines = []
    rows = rows[rows["kind"] == "layer"].astype({"units": int})
    grouped = rows.groupby(["layer", "dimension", "units", "points"], sort=False)
    for (layer, dimension, units, points), group in grouped:
        line = {"layer": layer, "inputs D": dimension, "units": units, "points B": points}
        line |= {
            "better thresholds": int(group["better"].sum()),
            "error of the minimizer": f"{group['minimizer_error'].max():.0e}",
            "error of σ²/‖w‖²": f"{group['value_error'].max():.0e}",
            "error of the excess": f"{group['excess_error'].max():.0e}",
            "distance of the mean": f"{group['centre_error'].max():.0e}",
        }
        if "learned_offset" in group and group["learned_offset"].notna().all():
            line["offset, running mean"] = f"{group['running_offset'].mean():.3f}"
            line["offset, learned"] = f"{group['learned_offset'].mean():.3f}"
            line["offset, mean map"] = f"{group['map_offset'].mean():.3f}"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def draw(rows: pd.DataFrame) -> Figure:
    """Measured L(t) / L(mu) of units on the parabola of Theorem 1, and near its minimum."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.8))
    offsets, sizes = np.linspace(-2.5, 2.5, 121), np.logspace(-4, 0.7, 2)
    left.plot(offsets, 1 + offsets**2, color="black", linewidth=0.8)
    right.loglog(sizes, sizes**2, color="black", linewidth=0.8)
    for (which, label), colour in zip(THRESHOLDS.items(), (PALETTE[2], *PALETTE[:2]), strict=True):
        units = rows[(rows["kind"] == "threshold") & (rows["threshold"] == which)]
        shown = {"color": colour, "label": label, "markersize": 3, "linewidth": 0}
        left.plot(units["offset"], units["loss_ratio"], "o", **shown)
        right.plot(units["offset"].abs(), units["loss_ratio"] - 1, "o", **shown)
    left.set(xlabel="offset (t - μ) / σ", ylabel="L(t) / L(μ)")
    right.set(xlabel="size of the offset", ylabel="L(t) / L(μ) - 1")
    left.legend()
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Theorem 1, Eq. 8 and Corollary 2 by the largest errors; what training does to the fit."""
    rows = rows[rows["kind"] == "layer"]
    worst = {name: float(rows[name].max()) for name in ERRORS}
    better = int(rows["better"].sum())
    numbers: dict[str, Any] = worst | {"better": better, "layers": len(rows)}
    numbers["compared"] = int(DISPLACEMENTS * rows["units"].sum())
    unique = max(worst["minimizer_error"], worst["excess_error"], better) < TOLERANCE
    verdicts: dict[str, bool | str] = {"Theorem 1": unique}
    verdicts["Eq. 8"] = worst["value_error"] < TOLERANCE
    verdicts["Corollary 2"] = worst["centre_error"] < TOLERANCE
    if "images" not in rows or rows["images"].isna().all():
        return verdicts, numbers
    layers = rows[rows["images"] == rows["images"].max()]
    maps, learned = layers["map_offset"], layers["learned_offset"]
    # The mean of offset² over units is the mean rise of L_k.
    rise = 100 * np.square(learned)
    for name, values in (("maps", maps), ("learned", learned), ("rise", rise)):
        numbers[name] = [values.min(), values.max()]
    verdicts["feature maps"] = bool(maps.max() < TOLERANCE)
    verdicts["beta"] = True if rise.max() > UNDONE else "undecided"
    return verdicts, numbers


PART = part(__file__, tasks, summarize, draw, decide, options=no_overrides)
