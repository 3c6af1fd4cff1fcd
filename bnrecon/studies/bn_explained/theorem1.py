"""Theorem 1, Eq. 7-9, Corollary 2: the batch mean fits hyperplanes to a layer's inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.reconstruction.folding import FoldedLayer, find_layers
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reproduction.parts import Decisions, below, join, part, sweep
from bnrecon.reproduction.trainings import obtain


@dataclass(frozen=True)
class NormalizedLayer:
    """A linear layer or convolution in front of a BatchNorm, on one batch, float64."""

    name: str  # of the linear layer
    points: np.ndarray  # its inputs (B, D); a convolution's patches, one point per position
    weight: np.ndarray  # (K, D)
    batch_mean: np.ndarray  # mu (K,), as the BatchNorm module computes it
    batch_deviation: np.ndarray  # sigma (K,), with 1/B and without the module's epsilon
    stored_mean: np.ndarray  # the trained network's running mean (K,)
    # Where a stored pre-activation is zero: running mean - beta sigma / gamma (K,)
    stored_threshold: np.ndarray


Norm = nn.BatchNorm1d | nn.BatchNorm2d


@torch.no_grad()
def find_normalized_layers(network: nn.Module, images: torch.Tensor) -> list[NormalizedLayer]:
    """The layers followed by a BatchNorm, in order, on this batch in training mode.

    The network is not changed.

    Raises:
        ValueError: such a layer has a bias, or more than one group.
    """
    network = copy.deepcopy(network).double().eval()
    layers = [layer for layer in find_layers(network).layers if layer.norm is not None]
    passed: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def remember(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        passed[module] = inputs[0], output

    for layer in layers:
        layer.module.register_forward_hook(remember)
        cast(Norm, layer.norm).momentum = 0.0  # keeps the running statistics
    network.train()(images.double())
    return [_as_matrices(layer, *passed[layer.module]) for layer in layers]


def _as_matrices(
    folded: FoldedLayer, inputs: torch.Tensor, output: torch.Tensor
) -> NormalizedLayer:
    """One layer; mean and deviation of the batch are computed by a fresh BatchNorm."""
    layer, norm = folded.module, cast(Norm, folded.norm)
    if layer.bias is not None or getattr(layer, "groups", 1) > 1:
        raise ValueError(f"{folded.name}: must have no bias and one group")
    stored_mean, variance = _statistics(norm)
    threshold = stored_mean - norm.bias * (variance + norm.eps).sqrt() / norm.weight
    fresh = type(norm)(norm.num_features, momentum=1.0, affine=False, dtype=torch.float64).train()
    fresh(output)
    mean, unbiased = _statistics(fresh)
    count = output.numel() // norm.num_features
    deviation = (unbiased * ((count - 1) / count)).sqrt()
    return NormalizedLayer(
        folded.name,
        _patches(layer, inputs).numpy(),
        layer.weight.flatten(1).numpy(),
        *(array.numpy() for array in (mean, deviation, stored_mean, threshold)),
    )


def _statistics(norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the running mean and of the running, unbiased variance."""
    return norm.get_buffer("running_mean").clone(), norm.get_buffer("running_var").clone()


def _patches(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """The vectors (B, D) that a layer's weight multiplies."""
    if isinstance(layer, nn.Linear):
        return inputs
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer.padding, str)
    sizes = layer.kernel_size, layer.dilation, layer.padding, layer.stride
    return nn.functional.unfold(inputs, *sizes).transpose(1, 2).flatten(0, 1)


# Inputs, units, points: including more units than inputs, and fewer points than inputs.
SIZES = {
    "smoke": ((2, 8, 16), (20, 5, 10)),
    "laptop": ((2, 8, 16), (64, 64, 64), (200, 50, 100), (256, 512, 1024)),
    "paper": ((2, 8, 16), (64, 64, 64), (200, 50, 100), (256, 512, 1024), (3072, 1024, 4096)),
}
SEEDS = {"smoke": 2, "laptop": 10, "paper": 10}
BATCHES = {"smoke": [16], "laptop": [16, 256], "paper": [16, 256]}
ERRORS = {
    "minimizer_error": "error of the minimizer",
    "value_error": "error of σ²/‖w‖²",
    "excess_error": "error of the excess",
    "centre_error": "distance of the mean",
}
OFFSETS = {
    "running_offset": "offset, running mean",
    "learned_offset": "offset, learned",
    "map_offset": "offset, mean map",
}
DISPLACEMENTS = 8  # other thresholds that every unit's batch mean is compared with
COMPARED = 8  # units of a random layer whose L_k is shown in the figure
THRESHOLDS = {
    "random": "random layers, random t",
    "running": "trained network, running mean",
    "learned": "trained network, learned",
}
UNDONE = 100  # percent by which L rises if the threshold is off by a whole sigma
TOLERANCE = 1e-10  # float64: sums of up to 16,384 terms, relative to a deviation

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "ReLU of normal": lambda generator, shape: np.maximum(generator.normal(size=shape), 0),
    "heavy tails": lambda generator, shape: generator.standard_t(3, size=shape),
}


def distances(points: np.ndarray, weight: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Distances |<w, v> - mu| / ||w|| (B, K) of points to hyperplanes <w, v> = mu (Eq. 7).

    Points are (B, D), rows w (K, D), none of them zero, and thresholds mu (K,).

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
    """Compare Theorem 1, Eq. 8 and Corollary 2 for a layer with direct computations.

    The inputs are (B, D), the rows (K, D), and ``mean`` is the mu (K,) of the normalization.

    Returns:
        ``minimizer_error``: largest difference to the least-squares solution, in sigma.
        ``value_error``: largest relative difference of L_k(mu) to sigma² / ||w||².
        ``excess_error``: largest relative difference of L_k(t) - L_k(mu) to (t - mu)² / ||w||²,
        relative to L_k(t).
        ``better``: how many other thresholds t have a smaller L_k; none by Theorem 1.
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


def check_random(inputs: int, units: int, points: int, seeds: int) -> pd.DataFrame:
    """One row per distribution of inputs and seed; weights are normal.

    The first seed also has rows of ``_threshold_rows`` for normal thresholds.
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
    """One row per normalized layer of a trained network and batch of training images.

    Units that are constant on the batch are omitted. Root mean squares over units, in sigma:
    ``running_offset`` is how far the running mean is from the batch mean, ``learned_offset`` how
    far the learned scale and shift move the threshold; ``map_offset``, for convolutions, how far
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
    running = (layer.stored_mean - layer.batch_mean)[alive]
    offsets = (running, (layer.stored_threshold - layer.stored_mean)[alive], maps.mean(0) - mean)
    row = named | {"kind": "layer", "units": len(weight), "seed": 0}
    for name, offset in zip(OFFSETS, offsets, strict=True):
        row[name] = float(np.sqrt(np.square(offset / deviation).mean()))
    generator = np.random.Generator(np.random.Philox(0))
    rows = [row | check_layer(layer.points, weight, mean, generator)]
    learned = layer.batch_mean + layer.stored_threshold - layer.stored_mean
    for which, threshold in (("running", layer.stored_mean), ("learned", learned)):
        rows += _threshold_rows(named, which, (layer.points, weight), threshold[alive])
    return rows


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per type of layer: the largest errors."""
    lines = []
    rows = rows[rows["kind"] == "layer"].astype({"units": int})
    grouped = rows.groupby(["layer", "dimension", "units", "points"], sort=False)
    for (layer, dimension, units, points), group in grouped:
        line = {"layer": layer, "inputs D": dimension, "units": units, "points B": points}
        line |= {"better thresholds": int(group["better"].sum())}
        line |= {title: f"{group[name].max():.0e}" for name, title in ERRORS.items()}
        if "learned_offset" in group and group["learned_offset"].notna().all():
            line |= {title: f"{group[name].mean():.3f}" for name, title in OFFSETS.items()}
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def draw(rows: pd.DataFrame) -> Figure:
    """Draw measured L(t) / L(mu) of units on Theorem 1's parabola, and near its minimum."""
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
    """Decide Theorem 1, Eq. 8, Corollary 2 by the largest errors; training's effect on the fit."""
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
    numbers["images"] = rows["images"].max()
    layers = rows[rows["images"] == numbers["images"]]
    maps, learned = layers["map_offset"], layers["learned_offset"]
    # The mean of offset² over units is the mean rise of L_k.
    rise = 100 * np.square(learned)
    for name, values in (("maps", maps), ("learned", learned), ("rise", rise)):
        numbers[name] = [values.min(), values.max()]
    verdicts["feature maps"] = bool(maps.max() < TOLERANCE)
    verdicts["beta"] = True if rise.max() > UNDONE else "undecided"
    return verdicts, numbers


NAME, OVER = "random, D = {inputs}, K = {units}, B = {points}", ("inputs", "units", "points")
RUNS = {scale: ("data=digits", "target=vgg_small", f"scale={scale}") for scale in SIZES}
SIZE = {"batches": BATCHES}
TASKS = join(
    sweep(check_random, NAME, {OVER: SIZES}, {"seeds": SEEDS}),
    sweep(check_trained, "trained network", {}, SIZE, runs=RUNS, reads_target=True),
)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
