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
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import decide
from bnrecon.studies.random_features.feature_matrices import (
    ANY_WIDTH,
    COLOURS,
    FEATURES,
    feature_matrix,
    normalize,
)
from bnrecon.studies.random_features.printed_law import (
    printed_density,
    printed_distribution,
    printed_edges,
)

__all__ = ["PART", "measure_spectrum"]

CHANNELS = {"smoke": 12, "laptop": 50, "paper": 50}
DRAWS = {"smoke": 2, "laptop": 3, "paper": 10}
ASPECTS = (1.0, 1.2, 0.8)  # c1 / n: the paper's 2500 and 3000 features, and 2000
BINS = np.linspace(0, 2.4, 71)  # room for the sparse ones' tail
MAGENTA = "#c800a8"  # unlike the colours of the distributions
CLOSE = 0.05  # a Kolmogorov-Smirnov distance up to which the law describes a histogram


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
    """Compute the singular values of M, scaled to entries of variance 1 / max(n, c1).

    Args:
        features: a distribution, by the paper's name.
        aspect: c1 / n.
        channels: c0 = c2.
        draws: how many draws to average over.

    Returns:
        One row for each bin of the histogram, with the draws' distances from the law of
        λ = min(n/c1, c1/n).
    """
    n = channels * channels
    width = round(aspect * n)
    scale = min(1.0, math.sqrt(n / width))  # ``normalize`` makes the variance 1 / n
    shape = LayerShape(channels, channels)
    matrices = (feature_matrix(FEATURES[features], shape, width, seed) for seed in range(draws))
    values = [torch.linalg.svdvals(normalize(matrix)).numpy() * scale for matrix in matrices]
    shares = np.mean([np.histogram(value, BINS)[0] / len(value) for value in values], 0)
    distance = mean_interval([spectrum.distance(value, _ratio(width, n)) for value in values])
    return pd.DataFrame(
        {
            "features": features,
            "channels": channels,
            "c1": width,
            "bin_start": BINS[:-1],
            "bin_end": BINS[1:],
            "density": shares / np.diff(BINS),
            "draws": draws,
            "mean_distance": distance.mean,
            "distance_half_width": distance.half_width,
            "smallest_value": float(np.mean([value[-1] for value in values])),
            "largest_value": float(np.mean([value[0] for value in values])),
            "median_condition_number": float(np.median([_condition(value) for value in values])),
        }
    )


def _ratio(width: int, n: int) -> float:
    """The λ of Figure 3's caption where c1 > n, and its inverse below: min(n/c1, c1/n)."""
    return min(n / width, width / n)


def _distance(row: pd.Series) -> Interval:
    """The draws' distance from the law; a single draw has no half-width."""
    half_width = row["distance_half_width"]
    return Interval(
        row["mean_distance"], None if pd.isna(half_width) else half_width, int(row["draws"])
    )


def _printed_distance(group: pd.DataFrame) -> float:
    """The distance of a mean histogram, at its bins' ends, from the printed density over its mass.

    It is at most the mean distance of the draws. The print has entries of variance 1/n.
    """
    first = group.iloc[0]
    aspect = first["c1"] / first["channels"] ** 2
    ends = group["bin_end"].to_numpy()
    shares = (group["density"] * (group["bin_end"] - group["bin_start"])).cumsum().to_numpy()
    printed = printed_distribution(ends * math.sqrt(max(1.0, aspect)), aspect)
    return float(np.abs(shares - printed).max())


def _condition(values: np.ndarray) -> float:
    """Largest over smallest singular value, infinite where the smallest is rounding."""
    return float(values[0] / values[-1]) if values[-1] > 1e-12 * values[0] else math.inf


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each distribution and width."""
    lines = []
    for (label, width), group in rows.groupby(["features", "c1"], sort=False):
        first = group.iloc[0]
        channels = int(first["channels"])
        ratio = _ratio(width, channels**2)
        low, high = spectrum.edges(ratio)
        lines.append(
            {
                "features": label,
                "c0 = c2": channels,
                "c1": int(width),
                "λ": ratio,
                "distance from the law": _distance(first),
                "singular values": f"{first['smallest_value']:.3f} to {first['largest_value']:.3f}",
                "edges of the law": f"{low:.3f} to {high:.3f}",
                "condition number, median": first["median_condition_number"],
                "of the law": spectrum.condition_of_aspect(ratio),
                "from the printed density": _printed_distance(group),
            }
        )
    return pd.DataFrame(lines)


def draw_figure(rows: pd.DataFrame) -> Figure:
    """Histograms at each width, with the law of λ = 1 in black and of λ in magenta.

    Where the printed density is another one, for c1 < n, it is dashed.
    """
    widths = list(dict.fromkeys(rows["c1"]))
    figure, (grid,) = new_figure(1, len(widths), (PAGE, 2.9), sharey=True, squeeze=False)
    for letter, axes, width in zip("abc", grid, widths, strict=False):
        part = rows[rows["c1"] == width]
        channels = int(part["channels"].iloc[0])
        _draw_histograms(axes, part)
        _draw_laws(axes, width / channels**2)
        axes.set_title(f"({letter}) $c_0=c_2={channels}$, $c_1={width}$")
        axes.set_xlabel("singular value")
        axes.set_ylim(0, 0.9)
        axes.set_xlim(0, BINS[-1])
    grid[0].set_ylabel(f"density, {rows['draws'].iloc[0]} draws")
    handles = {
        label: handle
        for axes in grid
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
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
    """The law of λ in magenta with its name in the panel, and that of λ = 1 in black."""
    ratio = min(aspect, 1 / aspect)
    if aspect < 1:
        low, high = printed_edges(aspect)
        x = np.linspace(low + 1e-6, high, 400)
        printed = f"as printed: λ = {1 / aspect:.3g}"
        axes.plot(x, printed_density(x, aspect), color="dimgray", linestyle="--", label=printed)
    for one, colour in {ratio: MAGENTA, 1.0: "black"}.items():
        low, high = spectrum.edges(one)
        x = np.linspace(low + 1e-6, high, 400)
        label = "law, λ = 1" if one == 1 else None
        axes.plot(x, spectrum.density(x, one), color=colour, label=label)
    if ratio != 1:
        axes.text(
            0.97,
            0.95,
            f"magenta: law, λ = {ratio:.3g}",
            color=MAGENTA,
            transform=axes.transAxes,
            ha="right",
            va="top",
        )


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does the printed density describe M, and does the repaired one?"""
    rows = rows[rows["features"].isin(ANY_WIDTH)]
    found = rows.drop_duplicates(["features", "c1"])
    return [*_density_claims(rows), *_law_claims(found)]


def _density_claims(rows: pd.DataFrame) -> list[Claim]:
    """Decided by the settings of fewer features than equations: elsewhere both are the same law."""
    if rows.empty:
        return []
    fewer = rows[rows["c1"] < rows["channels"] ** 2]
    wrong, right, evidence = [], [], []
    for (label, width), group in fewer.groupby(["features", "c1"], sort=False):
        first, printed = group.iloc[0], _printed_distance(group)
        low, high = _distance(first).ends
        wrong.append(printed > max(CLOSE, high))
        right.append(printed < min(CLOSE, low))
        evidence.append(f"{label} {printed:.3f} ({first['mean_distance']:.3f}), c1 = {width}")
    measured = "; ".join(evidence) or "no setting yet"
    low, high = printed_edges(0.8)
    edges = spectrum.edges(0.8)
    verdict = "false as stated" if wrong and all(wrong) else "open"
    return [
        Claim(
            "Theorem 2.2, density",
            "p(x) = sqrt((x² - λ-²)(λ+² - x²)) / (λπx) with λ = max(c2 c0/c1, c1/(c2 c0)) is the "
            "density of singular values of M with entries of variance 1/(c0 c2).",
            "confirmed" if right and all(right) else verdict,
            f"for c1 < n, distances from it, divided by its mass (and from the law): {measured}. "
            f"At c1 = 0.8 n the printed edges are {low:.3f} and {high:.3f}, the law's "
            f"{edges[0]:.3f} and {edges[1]:.3f}. For c1 ≥ n it is the law without its atom, the "
            "c1 - n zero singular values of MᵀM. Repair: λ = c1/n without the maximum, and the "
            "atom of 1 - 1/λ for λ > 1. λ+² = 1 + sqrt(λ) is read as λ+ = 1 + sqrt(λ), a "
            "misprint.",
        )
    ]


def _law_claims(found: pd.DataFrame) -> list[Claim]:
    if found.empty:
        return []
    worst = found.loc[found["mean_distance"].idxmax()]
    return [
        Claim(
            "Figure 3",
            "The singular values of the standard random features follow approximately the law "
            "(Marchenko and Pastur's, whose density of singular values is a quarter of a circle at "
            "c1 = n; the paper calls it a semi-circle law).",
            decide((CLOSE - _distance(row) for _, row in found.iterrows()), least=2),
            f"for the law the Kolmogorov-Smirnov distance is at most "
            f"{worst['mean_distance']:.3f} ({worst['features']}, c1 = {worst['c1']}) in "
            f"{len(found)} settings of c0 = c2 = {worst['channels']}, n = {worst['draws']} draws "
            f"each; confirmed is an interval up to {CLOSE:g}.",
        )
    ]


PART = Experiment(
    where="Theorem 2.2, Figure 3",
    title="Singular values of M and their limit law",
    caption=(
        "M is scaled to entries of variance 1/max(n, c1), n = c0 c2. For c1 ≤ n this is the "
        "theorem's 1/n, and the law is its density with λ = c1/n; for c1 > n it goes with Figure "
        "3's λ = n/c1, and the law is that of the n values that are not 0. It is Marchenko and "
        "Pastur's, sqrt((x² - λ-²)(λ+² - x²)) / (λπx) with the edges λ± = 1 ± sqrt(λ) "
        '(docs/errata.md, entry 8). "From the printed density" has the theorem\'s λ ≥ 1 instead, '
        "at the scale of variance 1/n, and is divided by its mass, c1/n for c1 < n (undivided it "
        "is at least 1 - c1/n away): the distance of the mean histogram at its bins' ends, which "
        "is at most the mean distance. "
        "The distance is the Kolmogorov-Smirnov distance, its mean ± the half-width of the 95% "
        "Student-t interval over n draws of M. It comes without a test, since singular values are "
        "not independent; ID cond and Ortho cond are no random features of the theorem. "
        "The law's smallest singular value at c1 = n is 0, so that its condition number is "
        "infinite. Smallest and largest singular values are means over draws."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    formats={
        "λ": ".3g",
        "distance from the law": ".3f",
        "condition number, median": ".3g",
        "of the law": ".3g",
        "from the printed density": ".3f",
    },
    claims=claims,
)
