"""Theorem 2.2 and Figure 3: singular values of M and their limit law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.random_features.feature_matrices import (
    ANY_WIDTH,
    COLOURS,
    FEATURES,
    feature_matrix,
    normalize,
)

__all__ = ["PART", "measure_spectrum"]

CHANNELS = {"smoke": 12, "laptop": 50, "paper": 50}
DRAWS = {"smoke": 2, "laptop": 3, "paper": 10}
ASPECTS = (1.0, 1.2)  # c1 / n: 2500 and 3000 features of 50 x 50 channels
BINS = np.linspace(0, 1.2 * (1 + math.sqrt(max(ASPECTS))), 71)  # room for the sparse ones' tail


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each distribution and width."""
    size = {"channels": CHANNELS[scale], "draws": DRAWS[scale]}
    return [
        Task(f"{label}, {aspect:g}", measure_spectrum, {"features": label, "aspect": aspect} | size)
        for aspect in ASPECTS
        for label in FEATURES
        if aspect == 1 or label in ANY_WIDTH
    ]


def measure_spectrum(features: str, aspect: float, channels: int, draws: int) -> pd.DataFrame:
    """Compute the singular values of M, scaled to entries of variance 1/n.

    Args:
        features: a distribution, by the paper's name.
        aspect: λ = c1 / n.
        channels: c0 = c2.
        draws: how many draws to average over.

    Returns:
        One row for each bin of the histogram, with the draws' distances from the law.
    """
    n = channels * channels
    width = round(aspect * n)
    shape = LayerShape(channels, channels)
    matrices = (feature_matrix(FEATURES[features], shape, width, seed) for seed in range(draws))
    values = [torch.linalg.svdvals(normalize(matrix)).numpy() for matrix in matrices]
    shares = np.mean([np.histogram(value, BINS)[0] / len(value) for value in values], 0)
    distances = [spectrum.distance(value, width / n) for value in values]
    return pd.DataFrame(
        {
            "features": features,
            "channels": channels,
            "c1": width,
            "bin_start": BINS[:-1],
            "bin_end": BINS[1:],
            "density": shares / np.diff(BINS),
            "draws": draws,
            "mean_distance": float(np.mean(distances)),
            "largest_distance": max(distances),
            "median_condition_number": float(np.median([_condition(value) for value in values])),
        }
    )


def _condition(values: np.ndarray) -> float:
    """Largest over smallest singular value, infinite where the smallest is rounding."""
    return float(values[0] / values[-1]) if values[-1] > 1e-12 * values[0] else math.inf


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each distribution and width."""
    lines = []
    for (label, width), group in rows.groupby(["features", "c1"], sort=False):
        first = group.iloc[0]
        channels = int(first["channels"])
        aspect = width / channels**2
        lines.append(
            {
                "features": label,
                "channels c0 = c2": channels,
                "width c1": int(width),
                "λ = c1/n": aspect,
                "Kolmogorov-Smirnov distance, mean": first["mean_distance"],
                "largest": first["largest_distance"],
                "condition number, median": first["median_condition_number"],
                "condition number of the law": spectrum.condition_of_aspect(aspect),
                "draws": int(first["draws"]),
            }
        )
    return pd.DataFrame(lines)


def draw_figure(rows: pd.DataFrame) -> Figure:
    """Histograms at both widths, with the law of λ = 1 in black and of λ = c1 / n in red."""
    widths = sorted(rows["c1"].unique())
    figure, (grid,) = new_figure(1, len(widths), (PAGE, 3.0), sharey=True, squeeze=False)
    for axes, width in zip(grid, widths, strict=True):
        part = rows[rows["c1"] == width]
        _draw_histograms(axes, part)
        _draw_laws(axes, width / int(part["channels"].iloc[0]) ** 2)
        axes.set_title(f"c1 = {width}")
        axes.set_xlabel("singular value")
        axes.set_ylim(0, 1.1)
        axes.legend(loc="upper right")
    grid[0].set_ylabel("density")
    return figure


def _draw_histograms(axes: Axes, rows: pd.DataFrame) -> None:
    for label, group in rows.groupby("features", sort=False):
        colour = COLOURS[label]
        if label in ANY_WIDTH:
            edges = [*group["bin_start"], group["bin_end"].iloc[-1]]
            axes.stairs(group["density"], edges, color=colour, label=label)
        else:  # all singular values are 1; each line is drawn in the gaps of the other
            dashes = (0 if label == "ID cond" else 4, (4, 4))
            axes.axvline(1, color=colour, linestyle=dashes, label=f"{label}: all are 1")


def _draw_laws(axes: Axes, aspect: float) -> None:
    for one, colour in {aspect: "red", 1.0: "black"}.items():
        low, high = spectrum.edges(one)
        x = np.linspace(low + 1e-6, high, 400)
        axes.plot(x, spectrum.density(x, one), color=colour, label=f"law, λ = {one:g}")


PART = Experiment(
    where="Theorem 2.2, Figure 3",
    title="Singular values of M and their limit law",
    caption=(
        "M is scaled to entries of variance 1/n. "
        "The distance is the Kolmogorov-Smirnov distance from the law, the mean over draws. "
        "It comes without a test, since singular values are not independent. "
        "The printed density does not integrate to 1. "
        "The law used here is Marchenko and Pastur's, with the edges |1 ± sqrt(c1/n)| "
        "(docs/errata.md, entry 8). "
        "Its smallest singular value at c1 = n is 0, so its condition number is infinite."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    formats={
        "λ = c1/n": "g",
        "Kolmogorov-Smirnov distance, mean": ".3f",
        "largest": ".3f",
        "condition number, median": ".3g",
        "condition number of the law": ".3g",
    },
)
