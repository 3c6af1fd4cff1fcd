"""Figure 4 (right): permuting Bernoulli masks to fit too few features."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.construction.alignment import complement, overlap_permutation
from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.random_features.averages import intervals_by
from bnrecon.studies.random_features.feature_matrices import COLOURS, FEATURES, feature_matrix
from bnrecon.studies.random_features.permutation_search import (
    CHANNELS,
    DRAWS,
    SEARCHES,
    missing_features,
    permutation_errors,
)

__all__ = ["PART", "bernoulli_mask", "measure_masks"]

DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MISSING = 100  # of the paper's 2500 features
TITLES = SEARCHES | {"assignment": "best of all"}


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each seed."""
    channels = CHANNELS[scale]
    size = {"channels": channels, "missing": missing_features(MISSING, channels)}
    seeds = range(DRAWS[scale])
    return [Task(f"seed {seed}", measure_masks, {"seed": seed} | size) for seed in seeds]


def measure_masks(seed: int, channels: int, missing: int) -> pd.DataFrame:
    """Permute Bernoulli masks to fit n - ``missing`` features.

    For ID cond features the best of all permutations is found, too, by a linear assignment.

    Returns:
        One row for each distribution of features and density of the mask.
    """
    shape = LayerShape(channels, channels)
    width = shape.equations - missing
    rows = []
    for label, name in FEATURES.items():
        matrix = feature_matrix(name, shape, width, seed)
        basis = complement(matrix)
        available = (matrix.abs().sum(1) > 0).double().reshape(channels, channels)
        for density in DENSITIES:
            target = bernoulli_mask(channels, density, seed)
            row = {
                "features": label,
                "density": density,
                "c1": width,
                "channels": channels,
                "seed": seed,
            } | permutation_errors(basis, target, seed)
            if name == "id_cond":
                row["assignment"] = overlap_permutation(available, target)[1] / channels
            rows.append(row)
    return pd.DataFrame(rows)


def bernoulli_mask(channels: int, density: float, seed: int) -> torch.Tensor:
    """Draw a mask (channels, channels) of ones with probability ``density`` and zeros."""
    uniform = Stream(seed, 2_000).uniform((channels, channels), "mask", 0.5).double() + 0.5
    return (uniform < density).double()


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each distribution of features and density of the mask."""
    lines = []
    for (label, density), group in rows.groupby(["features", "density"], sort=False):
        line = {"features": label, "density p": density, "width c1": int(group["c1"].iloc[0])}
        for column, title in TITLES.items():
            values = list(group[column].dropna())
            line[f"rmse, {title}"] = mean_interval(values) if values else None
        lines.append(line)
    return pd.DataFrame(lines)


def draw_figure(rows: pd.DataFrame) -> Figure:
    """Error against the density of the mask, for each distribution of features."""
    figure, axes = new_figure(size=(PAGE, 3.6))
    styles = {"unpermuted": "-", "greedy": ":", "assignment": "--"}
    for label, group in rows.groupby("features", sort=False):
        for column, style in styles.items():
            part = group.dropna(subset=column)
            if part.empty:
                continue
            line = intervals_by(part, "density", column)
            axes.errorbar(
                line.index,
                line["mean"],
                line["half_width"],
                color=COLOURS[label],
                linestyle=style,
                label=label if column == "unpermuted" else None,
            )
    axes.plot([], [], "-", color="black", label="not permuted")
    axes.plot([], [], ":", color="black", label="greedy permutation")
    axes.plot([], [], "--", color="black", label="best of all permutations")
    axes.set_xlabel("density of the mask")
    axes.set_ylabel("root mean squared error")
    axes.legend()
    return figure


PART = Experiment(
    where="Theorem 4.1, Figure 4 (right)",
    title="Permuting Bernoulli masks to fit too few features",
    caption=(
        "Root mean squared errors, with 95% Student-t intervals over draws "
        "(the paper shows standard errors). "
        "For ID cond features the best of all permutations is the solution of a linear assignment."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    formats={f"rmse, {title}": ".4f" for title in TITLES.values()},
)
