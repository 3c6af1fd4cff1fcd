"""Figure 3 of Random features for normalization layers and its double descent: singular values of M for every feature distribution."""

from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import torch

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import canvas
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiments import Pieces
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix

__all__ = [
    "RANDOM",
    "condition_numbers",
    "descent",
    "descent_summary",
    "draw_descent",
    "draw_spectra",
    "spectra",
    "spectra_pieces",
    "spectra_summary",
]


SIDES = {"smoke": 12, "laptop": 50, "paper": 50}  # c0 = c2


ASPECTS = (1.0, 1.2)  # c1 = 2500 and 3000 at c0 = c2 = 50


COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")


BINS = 70


RANDOM = (
    "He normal",
    "orthogonal",
    "ER normal",
    "ER sign",
)  # the distributions that have a width to choose


def normalized(matrix: torch.Tensor) -> torch.Tensor:
    """M scaled so that its entries have variance 1 / n, as the theorem asks for."""
    n, width = matrix.shape
    return matrix * (math.sqrt(width) / float(matrix.norm()))


def spectra_pieces(scale: str, words: object = ()) -> Pieces:
    """A piece for each distribution and width."""
    return {
        f"{label}, {aspect:g}": lambda label=label, aspect=aspect: spectra(scale, label, aspect)
        for aspect in ASPECTS
        for label in FEATURES
        if aspect == 1 or label in RANDOM
    }


def spectra(scale: str, label: str, aspect: float) -> pd.DataFrame:
    """Histogram of singular values, in one line a bin, with their distance from the law; mean over draws."""
    side, draws = SIDES[scale], {"smoke": 2, "laptop": 3, "paper": 10}[scale]
    n = side * side
    width = round(aspect * n)
    values = [
        torch.linalg.svdvals(
            normalized(feature_matrix(FEATURES[label], LayerShape(side, side), width, seed))
        ).numpy()
        for seed in range(draws)
    ]
    distances = [spectrum.distance(value, width / n) for value in values]
    edges = np.linspace(
        0, 1.2 * (1 + math.sqrt(max(ASPECTS))), BINS + 1
    )  # room for the sparse ones' tail
    histogram = np.mean(
        [np.histogram(value, edges)[0] / len(value) for value in values], 0
    ) / np.diff(edges)
    conditions = [
        value[0] / value[-1] if value[-1] > 1e-12 * value[0] else math.inf for value in values
    ]
    return pd.DataFrame(
        {
            "features": label,
            "c0 = c2": side,
            "c1": width,
            "from": edges[:-1],
            "to": edges[1:],
            "density": histogram,
            "draws": draws,
            "distance": float(np.mean(distances)),
            "largest distance": max(distances),
            "condition": float(np.median(conditions)),
        }
    )


def spectra_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a distribution and width: distance from the law, condition number."""
    lines = []
    for (label, width), group in frame.groupby(["features", "c1"], sort=False):
        first = group.iloc[0]
        side = int(first["c0 = c2"])
        aspect = width / side**2
        lines.append(
            {
                "features": label,
                "c0 = c2": side,
                "c1": int(width),
                "λ = c1/n": f"{aspect:g}",
                "Kolmogorov-Smirnov distance": f"{first['distance']:.3f} (largest {first['largest distance']:.3f})",
                "condition number, median": f"{first['condition']:.3g}",
                "the law's": f"{spectrum.condition_of_aspect(aspect):.3g}",
                "draws": int(first["draws"]),
            }
        )
    return pd.DataFrame(lines)


def draw_spectra(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Histograms at both widths; black the law with λ = 1, red with λ = c1 / n, as in the paper's figure."""
    widths = sorted(frame["c1"].unique())
    with canvas(
        file, kind, 1, len(widths), figsize=(5 * len(widths), 3.8), sharey=True, squeeze=False
    ) as (figure, grid):
        for axes, width in zip(grid[0], widths, strict=True):
            part = frame[frame["c1"] == width]
            n = int(part["c0 = c2"].iloc[0]) ** 2
            for (label, group), colour in zip(
                part.groupby("features", sort=False), COLOURS, strict=False
            ):
                if label in ("ID cond", "Ortho cond"):
                    dashes = (
                        0 if label == "ID cond" else 4,
                        (4, 4),
                    )  # each in the gaps of the other
                    axes.axvline(
                        1.0, color=colour, linewidth=1, linestyle=dashes, label=f"{label}: all at 1"
                    )
                    continue
                axes.stairs(
                    group["density"],
                    [*group["from"], group["to"].iloc[-1]],
                    color=colour,
                    label=label,
                )
            for aspect, colour in {width / n: "red", 1.0: "black"}.items():
                low, high = spectrum.edges(aspect)
                x = np.linspace(low + 1e-6, high, 400)
                axes.plot(
                    x,
                    spectrum.density(x, aspect),
                    color=colour,
                    linewidth=1.2,
                    label=f"law, λ = {aspect:g}",
                )
            axes.set_ylim(0, 1.2)
            axes.set_title(f"c1 = {width}")
            axes.set_xlabel("singular value")
            axes.legend(fontsize=7)
        grid[0][0].set_ylabel("density")


def condition_numbers(matrix: torch.Tensor) -> dict[str, float]:
    """Condition number of M over its nonzero singular values, and how far MᵀM is from diagonal.

    The paper says that orthogonal weights make "the columns of M orthogonal"; the largest off-diagonal entry of MᵀM over the diagonal's
    mean says by how much they are not.
    """
    values = torch.linalg.svdvals(matrix)
    nonzero = values[values > 1e-12 * values[0]]
    gram = matrix.T @ matrix
    diagonal = gram.diagonal().mean()
    off = (gram - torch.diag(gram.diagonal())).abs().max()
    return {"condition": float(nonzero[0] / nonzero[-1]), "off-diagonal": float(off / diagonal)}


def descent(scale: str, label: str) -> pd.DataFrame:
    """Condition numbers over widths around n, for each draw."""
    side, draws = (
        {"smoke": 6, "laptop": 20, "paper": 50}[scale],
        {"smoke": 2, "laptop": 10, "paper": 10}[scale],
    )
    n = side * side
    widths = sorted(
        {
            round(factor * n)
            for factor in (
                0.25,
                0.5,
                0.7,
                0.85,
                0.95,
                0.98,
                1.0,
                1.02,
                1.05,
                1.15,
                1.3,
                1.5,
                2.0,
                3.0,
            )
        }
    )
    lines = []
    for width in widths:
        for seed in range(draws):
            found = condition_numbers(
                feature_matrix(FEATURES[label], LayerShape(side, side), width, seed)
            )
            lines.append(
                {"features": label, "c0 = c2": side, "c1": width, "c1 / n": width / n, "seed": seed}
                | found
            )
    return pd.DataFrame(lines)


def descent_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a distribution: condition numbers at some widths, geometric mean over draws, and MᵀM's off-diagonals."""
    lines = []
    for label, group in frame.groupby("features", sort=False):
        line = {"features": label, "c0 = c2": int(group["c0 = c2"].iloc[0])}
        for aspect, part in group.groupby("c1 / n"):
            if min(abs(aspect - wanted) for wanted in (0.5, 0.95, 1.0, 1.05, 1.5, 3.0)) < 2e-3:
                line[f"κ at c1/n = {aspect:.3g}"] = (
                    f"{np.exp(np.log(part['condition']).mean()):.3g}"
                )
        at = group[(group["c1 / n"] - 1).abs() < 1e-9]
        line["largest off-diagonal of MᵀM / diagonal, c1 = n"] = mean_interval(
            list(at["off-diagonal"])
        ).format()
        line["draws"] = group["seed"].nunique()
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def draw_descent(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Condition number against c1 / n, one line a distribution, geometric means, draws from smallest to largest shaded, with the law's."""
    with canvas(file, kind, figsize=(6, 4)) as (figure, axes):
        for (label, group), colour in zip(
            frame.groupby("features", sort=False), COLOURS, strict=False
        ):
            by_width = group.groupby("c1 / n")["condition"]
            middle = by_width.agg(lambda values: np.exp(np.log(values).mean()))
            axes.semilogy(middle.index, middle, marker="o", markersize=3, color=colour, label=label)
            axes.fill_between(
                by_width.min().index, by_width.min(), by_width.max(), color=colour, alpha=0.15
            )
        near = np.geomspace(1e-5, 2, 200)
        for aspects, label in (
            (1 - near[near <= 0.75], "the law, infinite at 1"),
            (1 + near, None),
        ):
            law = [spectrum.condition_of_aspect(aspect) for aspect in aspects]
            axes.semilogy(aspects, law, color="black", linewidth=1, label=label)
        axes.axvline(1, color="grey", linewidth=1, linestyle=":")
        axes.set_xlabel("c1 / n")
        axes.set_ylabel("condition number of M")
        axes.legend(fontsize=8)
