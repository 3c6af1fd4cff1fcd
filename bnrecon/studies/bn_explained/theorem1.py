"""Theorem 1, Eq. 7-9, Corollary 2: the batch mean fits hyperplanes to a layer's inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task, no_overrides
from bnrecon.reproduction.trainings import obtain
from bnrecon.studies.bn_explained.normalized_layers import find_normalized_layers
from bnrecon.studies.bn_explained.total_least_squares import batch_moments, check_layer

__all__ = ["PART", "check_random", "check_trained"]

# Inputs, units, points: also more units than inputs, and fewer points than inputs.
SIZES = {
    "smoke": ((2, 8, 16), (20, 5, 10)),
    "laptop": ((2, 8, 16), (64, 64, 64), (200, 50, 100), (256, 512, 1024)),
    "paper": ((2, 8, 16), (64, 64, 64), (200, 50, 100), (256, 512, 1024), (3072, 1024, 4096)),
}
SEEDS = {"smoke": 2, "laptop": 10, "paper": 10}
BATCHES = {"smoke": (16,), "laptop": (16, 256), "paper": (16, 256)}
TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("data=digits", "target=vgg_small", "scale=laptop"),
    "paper": ("data=digits", "target=vgg_small", "scale=paper"),
}
ERRORS = ("minimizer_error", "value_error", "excess_error", "centre_error")
TOLERANCE = 1e-10  # float64: sums of up to 16,384 terms, relative to a deviation

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "ReLU of normal": lambda generator, shape: np.maximum(generator.normal(size=shape), 0),
    "heavy tails": lambda generator, shape: generator.standard_t(3, size=shape),
}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each size of random layer, and one for a trained network."""
    found = [
        Task(
            f"random, D = {inputs}, K = {units}, B = {points}",
            check_random,
            {"inputs": inputs, "units": units, "points": points, "seeds": SEEDS[scale]},
        )
        for inputs, units, points in SIZES[scale]
    ]
    trained = Task(
        "trained network",
        check_trained,
        {"batches": list(BATCHES[scale])},
        (*TARGETS[scale], *options),
    )
    return [*found, trained]


def check_random(inputs: int, units: int, points: int, seeds: int) -> pd.DataFrame:
    """One row for each distribution of inputs and seed; weights are normal."""
    rows = []
    for seed in range(seeds):
        for name, distribution in DISTRIBUTIONS.items():
            generator = np.random.Generator(np.random.Philox(seed))
            batch = distribution(generator, (points, inputs))
            weight = generator.normal(size=(units, inputs))
            mean, _ = batch_moments(batch, weight)
            row = {"layer": f"random, {name}", "dimension": inputs, "units": units}
            row |= {"points": points, "seed": seed}
            rows.append(row | check_layer(batch, weight, mean, generator))
    return pd.DataFrame(rows)


def check_trained(batches: Sequence[int], options: Sequence[str]) -> pd.DataFrame:
    """One row for each normalized layer of a trained network and batch of training images.

    Root mean squares over units, in sigma: ``running_offset`` is how far the running mean is from
    the batch mean, ``learned_offset`` how far the learned scale and shift move the threshold.
    A hyperplane that is off by an offset has an L_k larger by the factor 1 + offset².
    """
    trained, data, _ = obtain(options)
    network = trained.network.cpu()
    rows = []
    for size in batches:
        images = next(iter(data.plain_train_batches(size, torch.device("cpu"), size)))
        for layer in find_normalized_layers(network, images):
            generator = np.random.Generator(np.random.Philox(0))
            alive = layer.batch_deviation > 0
            offsets = {
                "running_offset": layer.stored_mean - layer.batch_mean,
                "learned_offset": layer.stored_threshold - layer.stored_mean,
            }
            row = {
                "layer": layer.name,
                "dimension": layer.points.shape[1],
                "units": len(layer.weight),
                "points": len(layer.points),
                "seed": 0,
                "images": size,
                "accuracy": trained.about["accuracy"],
            }
            row |= {
                name: float(np.sqrt(np.square(offset / layer.batch_deviation)[alive].mean()))
                for name, offset in offsets.items()
            }
            checked = check_layer(
                layer.points, layer.weight[alive], layer.batch_mean[alive], generator
            )
            rows.append(row | checked)
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per kind of layer: the largest errors."""
    lines = []
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
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


CAPTION = (
    "Largest errors in float64 over units and seeds. Minimizer: difference of the batch mean to "
    "the least-squares solution, in σ. Excess: L(t) - L(μ) against (t - μ)²/‖w‖² for eight random "
    "thresholds t a unit; better thresholds are those with a smaller L. Distance of the mean of "
    "the inputs to a unit's hyperplane, relative to the unit's root mean squared distance. "
    "Layers of the trained network (digits) are its convolutions, their points the patches of a "
    "batch of training images. Offsets, root mean square over units, in σ: of the running mean "
    "from the batch mean, and of the hyperplane by the learned scale and shift. An offset raises L "
    "by the factor 1 + offset²."
)


def draw(rows: pd.DataFrame) -> Figure:
    """Relative errors of all layers against the number of points."""
    figure, axes = new_figure()
    labels = ("minimizer", "σ²/‖w‖²", "excess", "mean on the hyperplanes")
    for error, label, colour in zip(ERRORS, labels, PALETTE, strict=False):
        largest = rows.groupby("points")[error].max().clip(lower=1e-17)
        axes.loglog(largest.index, largest, marker="o", color=colour, label=label)
    axes.set_xlabel("points B")
    axes.set_ylabel("largest error, float64")
    axes.legend()
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 1, Eq. 8 and Corollary 2, decided by the largest errors."""
    worst = {name: float(rows[name].max()) for name in ERRORS}
    better, layers = int(rows["better"].sum()), len(rows)
    compared = int(8 * rows["units"].sum())

    def confirmed(*values: float) -> str:
        return "confirmed" if max(values) < TOLERANCE else "not confirmed"

    found = [
        Claim(
            "Theorem 1",
            "The batch mean is the unique minimizer of the total least squares distance.",
            confirmed(worst["minimizer_error"], worst["excess_error"], better),
            f"{better} of {compared} other thresholds are better; the least-squares solution "
            f"differs by at most {worst['minimizer_error']:.0e} σ, the excess from (t - μ)²/‖w‖² "
            f"by {worst['excess_error']:.0e}, over {layers} layers.",
        ),
        Claim(
            "Eq. 8",
            "The mean squared distance is σ²/‖w‖².",
            confirmed(worst["value_error"]),
            f"largest relative error {worst['value_error']:.0e} at the batch mean; at another "
            "threshold t it is larger by (t - μ)²/‖w‖², which Eq. 8 as printed leaves out.",
        ),
        Claim(
            "Corollary 2",
            "All hyperplanes of a layer pass through the mean of its inputs.",
            confirmed(worst["centre_error"]),
            f"largest distance {worst['centre_error']:.0e} of a unit's root mean squared one.",
        ),
    ]
    if "learned_offset" in rows and rows["learned_offset"].notna().any():
        trained = rows.dropna(subset=["learned_offset"])
        largest = trained[trained["images"] == trained["images"].max()]["learned_offset"]
        found.append(
            Claim(
                "Appendix D",
                'With a learned β training can "undo" the fit.',
                "confirmed" if largest.max() > 0.01 else "not confirmed",
                f"learned scales and shifts move the hyperplanes by {largest.min():.2f} to "
                f"{largest.max():.2f} σ (root mean square, by layer).",
            )
        )
    return found


PART = Experiment(
    "Theorem 1, Eq. 7-9, Corollary 2",
    "The batch mean fits a layer's hyperplanes to its inputs by total least squares",
    tasks,
    summarize,
    CAPTION,
    draw,
    options=no_overrides,
    claims=claims,
)
