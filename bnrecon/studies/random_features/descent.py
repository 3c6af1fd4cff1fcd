"""Sect. 2.1: the condition number of M peaks where there are as many features as equations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import COLUMN, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.random_features.averages import geometric_mean
from bnrecon.studies.random_features.feature_matrices import (
    ANY_WIDTH,
    COLOURS,
    FEATURES,
    feature_matrix,
)

__all__ = ["PART", "measure_descent", "orthogonality"]

CHANNELS = {"smoke": 6, "laptop": 20, "paper": 50}
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}
OVERSAMPLING = (0.25, 0.5, 0.7, 0.85, 0.95, 0.98, 1.0, 1.02, 1.05, 1.15, 1.3, 1.5, 2.0, 3.0)
PRINTED = (0.5, 0.95, 1.0, 1.05, 1.5, 3.0)  # oversampling in the table


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each distribution whose width can be chosen."""
    size = {"channels": CHANNELS[scale], "draws": DRAWS[scale]}
    return [Task(label, measure_descent, {"features": label} | size) for label in ANY_WIDTH]


def measure_descent(features: str, channels: int, draws: int) -> pd.DataFrame:
    """Condition numbers of M (n, c1) for widths c1 around n: one row for each width and draw."""
    shape = LayerShape(channels, channels)
    n = shape.equations
    rows = []
    for width in sorted({round(factor * n) for factor in OVERSAMPLING}):
        for seed in range(draws):
            matrix = feature_matrix(FEATURES[features], shape, width, seed)
            row = {
                "features": features,
                "channels": channels,
                "c1": width,
                "oversampling": width / n,
                "seed": seed,
            }
            rows.append(row | orthogonality(matrix))
    return pd.DataFrame(rows)


def orthogonality(matrix: torch.Tensor) -> dict[str, float]:
    """How far the columns of M are from orthonormal.

    The paper says that orthogonal weights make "the columns of M orthogonal" (Sect. 2.1).

    Returns:
        The condition number over nonzero singular values, and the largest off-diagonal entry of
        MᵀM over the mean diagonal entry.
    """
    values = torch.linalg.svdvals(matrix)
    nonzero = values[values > 1e-12 * values[0]]
    gram = matrix.T @ matrix
    diagonal = gram.diagonal().mean()
    largest = (gram - torch.diag(gram.diagonal())).abs().max()
    return {
        "condition_number": float(nonzero[0] / nonzero[-1]),
        "largest_off_diagonal": float(largest / diagonal),
    }


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each distribution: condition numbers at some widths, and MᵀM at c1 = n."""
    lines = []
    for label, group in rows.groupby("features", sort=False):
        line = {"features": label, "channels c0 = c2": int(group["channels"].iloc[0])}
        for oversampling, part in group.groupby("oversampling"):
            if min(abs(oversampling - printed) for printed in PRINTED) < 2e-3:
                line[_heading(oversampling)] = geometric_mean(part["condition_number"])
        square = group[(group["oversampling"] - 1).abs() < 1e-9]
        line["largest off-diagonal of MᵀM / diagonal, c1 = n"] = mean_interval(
            list(square["largest_off_diagonal"])
        )
        lines.append(line | {"draws": group["seed"].nunique()})
    return pd.DataFrame(lines)


def _heading(oversampling: float) -> str:
    return f"condition number at c1/n = {oversampling:.3g}"


def draw_figure(rows: pd.DataFrame) -> Figure:
    """Geometric means of the condition number over c1 / n; the range of draws is shaded."""
    figure, axes = new_figure(size=(COLUMN, 2.8))
    for label, group in rows.groupby("features", sort=False):
        numbers = group.groupby("oversampling")["condition_number"]
        means = numbers.agg(geometric_mean)
        axes.semilogy(means.index, means, marker="o", color=COLOURS[label], label=label)
        axes.fill_between(
            means.index, numbers.min(), numbers.max(), color=COLOURS[label], alpha=0.15
        )
    near = np.geomspace(1e-5, 2, 200)
    for aspects, label in (
        (1 - near[near <= 0.75], "law, infinite at 1"),
        (1 + near, None),
    ):
        law = [spectrum.condition_of_aspect(aspect) for aspect in aspects]
        axes.semilogy(aspects, law, color="black", label=label)
    axes.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("oversampling c1 / n")
    axes.set_ylabel("condition number of M")
    axes.legend()
    return figure


PART = Experiment(
    where="Sect. 2.1",
    title="Double descent of the condition number",
    caption=(
        "Condition numbers are taken over nonzero singular values; their geometric means over "
        "draws are shown. "
        "The paper says that orthogonal weights make the columns of M orthogonal. "
        "They do not: (MᵀM)_kl = (BᵀB)_kl (A Aᵀ)_kl is zero only if one of the two factors is. "
        "For ID cond and Ortho cond one always is. "
        "Random orthogonal weights have more features than channels, c1 > c0 and c1 > c2, so that "
        "neither all rows of A nor all columns of B can be orthogonal to each other "
        "(docs/errata.md, entry 9). "
        "The interval is the 95% Student-t interval over draws."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    formats={_heading(oversampling): ".3g" for oversampling in PRINTED},
)
