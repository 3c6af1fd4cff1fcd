"""Theorem 2.2 and Figure 3: singular values of M and their limit law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decision, Decisions, only, part, sweep, table
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH, COLOURS, normalized_matrix


def printed_edges(aspect: float) -> tuple[float, float]:
    """The edges λ- = 1 - sqrt(λ) and λ+ for λ = max(n/c1, c1/n); the aspect is c1/n.

    The text has λ+² = 1 + sqrt(λ); λ+ = 1 + sqrt(λ) is meant.

    >>> printed_edges(1.0)
    (0.0, 2.0)
    """
    root = math.sqrt(max(aspect, 1 / aspect))
    return abs(1 - root), 1 + root


def printed_density(x: np.ndarray, aspect: float) -> np.ndarray:
    """sqrt((x² - λ-²)(λ+² - x²)) / (λ π x) with ``printed_edges``."""
    low, high = printed_edges(aspect)
    x = np.asarray(x, dtype=float)
    inside = np.clip((x**2 - low**2) * (high**2 - x**2), 0, None)
    return np.sqrt(inside) / (max(aspect, 1 / aspect) * math.pi * x)


def printed_distribution(x: np.ndarray, aspect: float) -> np.ndarray:
    """The integral of ``printed_density`` up to x, over its mass: the law without its atom at 0.

    >>> printed_distribution(np.array([0.0, 1.0, 2.0]), 1.0).round(3)
    array([0.   , 0.609, 1.   ])
    """
    low, high = printed_edges(aspect)
    angle = np.linspace(0, math.pi, 4001)[1:-1]  # dense at both edges
    grid = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    weights = printed_density(grid, aspect) * np.sin(angle)
    return np.interp(x, grid, (np.cumsum(weights) - weights / 2) / weights.sum(), left=0, right=1)


CHANNELS = {"smoke": 12, "laptop": 50, "paper": 50}
DRAWS = {"smoke": 2, "laptop": 3, "paper": 10}
ASPECTS = (1.0, 1.2, 0.8)  # c1 / n: the paper's 2500 and 3000 features, and 2000
BINS = np.linspace(0, 2.4, 71)  # room for the tail of sparse features
MAGENTA = "#c800a8"  # unlike the colours of the distributions
CLOSE = 0.05  # the law describes a histogram up to this Kolmogorov-Smirnov distance


def measure_spectrum(features: str, aspect: float, channels: int, draws: int) -> pd.DataFrame:
    """Compute the singular values of M, scaled to entries of variance 1 / max(n, c1).

    For c1 = ``aspect`` n and c0 = c2 = ``channels``: one row per bin of the histogram, the mean
    over draws, with the draws' distances from the law of λ = min(n/c1, c1/n).
    """
    n = channels * channels
    width = round(aspect * n)
    scale = min(1.0, math.sqrt(n / width))  # ``normalized_matrix`` has the variance 1 / n
    shape = LayerShape(channels, channels)
    matrices = (normalized_matrix(features, shape, width, seed) for seed in range(draws))
    values = [torch.linalg.svdvals(matrix).numpy() * scale for matrix in matrices]
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


def _distance(group: pd.DataFrame) -> Interval:
    """The draws' distance from the law; a single draw has no half-width."""
    row = group.iloc[0]
    mean, half_width = float(row["mean_distance"]), float(row["distance_half_width"])
    return Interval(mean, None if math.isnan(half_width) else half_width, int(row["draws"]))


def _printed_distance(group: pd.DataFrame) -> float:
    """The distance of a mean histogram, at its bins' ends, from the printed density over its mass.

    It is at most the mean distance of the draws. Entries in print have variance 1/n.
    """
    first = group.iloc[0]
    aspect = first["c1"] / first["channels"] ** 2
    ends = group["bin_end"].to_numpy()
    shares = (group["density"] * (group["bin_end"] - group["bin_start"])).cumsum().to_numpy()
    printed = printed_distribution(ends * math.sqrt(max(1.0, aspect)), aspect)
    return float(np.abs(shares - printed).max())


def _condition(values: np.ndarray) -> float:
    """Largest over smallest singular value, infinite if the smallest is rounding."""
    return float(values[0] / values[-1]) if values[-1] > 1e-12 * values[0] else math.inf


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per distribution and width."""
    ratios = [_ratio(*size) for size in zip(rows["c1"], rows["channels"] ** 2, strict=True)]
    rows, ends = rows.assign(ratio=ratios), ["smallest_value", "largest_value"]
    columns: dict[str, Any] = {
        "features": "features",
        "c0 = c2": "channels",
        "c1": "c1",
        "λ": "ratio",
        "distance from the law": _distance,
        "singular values": lambda group: _ends(*group[ends].iloc[0]),
        "edges of the law": lambda group: _ends(*spectrum.edges(group["ratio"].iloc[0])),
        "condition number, median": "median_condition_number",
        "of the law": lambda group: spectrum.condition_of_aspect(group["ratio"].iloc[0]),
        "distance from the printed density": _printed_distance,
    }
    return table(rows, ["features", "c1"], False, **columns)


def _ends(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def draw(rows: pd.DataFrame) -> Figure:
    """Draw histograms at each width, with the law of λ = 1 in black and of λ in magenta.

    For c1 < n, where the printed density differs, it is dashed.
    """
    widths = list(dict.fromkeys(rows["c1"]))
    figure, (grid,) = new_figure(1, len(widths), (PAGE, 2.9), sharey=True, squeeze=False)
    for letter, axes, width in zip("abc", grid, widths, strict=False):
        group = rows[rows["c1"] == width]
        channels = int(group["channels"].iloc[0])
        _draw_histograms(axes, group)
        _draw_laws(axes, width / channels**2)
        title = f"({letter}) $c_0=c_2={channels}$, $c_1={width}$"
        axes.set(title=title, xlabel="singular value", ylim=(0, 0.9), xlim=(0, BINS[-1]))
    grid[0].set_ylabel(f"density, {rows['draws'].iloc[0]} draws")
    draw_legend(figure, 5, "lower")
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
    """Draw the law of λ in magenta, named in the panel, and that of λ = 1 in black."""
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
        label = f"magenta: law, λ = {ratio:.3g}"
        where: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top"}
        axes.text(0.97, 0.95, label, color=MAGENTA, **where)


def decide(rows: pd.DataFrame) -> Decisions:
    """Does the printed density describe M, and does the repaired one?"""
    rows = rows[rows["features"].isin(ANY_WIDTH)]
    return [] if rows.empty else [_density(rows), _law(rows)]


def _density(rows: pd.DataFrame) -> Decision:
    """Decided by settings with fewer features than equations: elsewhere both are the same law."""
    fewer = rows[rows["c1"] < rows["channels"] ** 2]
    groups = [group for _, group in fewer.groupby(["features", "c1"])]
    distances = [(_distance(group), _printed_distance(group)) for group in groups]
    wrong = [printed > max(CLOSE, distance.ends[1]) for distance, printed in distances]
    right = [printed < min(CLOSE, distance.ends[0]) for distance, printed in distances]
    verdict = "needs a correction" if wrong and all(wrong) else "undecided"
    numbers = {"printed_distances": span((printed for _, printed in distances), ".3f")}
    numbers |= {"distances": span((distance.mean for distance, _ in distances), ".3f")}
    return "density", "confirmed" if right and all(right) else verdict, numbers


def _law(rows: pd.DataFrame) -> Decision:
    settings = rows.drop_duplicates(["features", "c1"])
    distances = [_distance(group) for _, group in rows.groupby(["features", "c1"])]
    worst = settings.loc[settings["mean_distance"].idxmax()]
    verdict = intervals.decide((CLOSE - distance for distance in distances), least=2)
    return "law", verdict, {"worst": worst, "settings": len(settings), "close": CLOSE}


PAIRS = [(aspect, n) for aspect in ASPECTS for n in COLOURS if aspect == 1 or n in ANY_WIDTH]
SIZE = {"channels": CHANNELS, "draws": DRAWS}
TASKS = sweep(measure_spectrum, "{features}, {aspect:g}", {("aspect", "features"): PAIRS}, SIZE)
FORMATS = dict.fromkeys(["λ", "condition number, median", "of the law"], ".3g")
FORMATS |= dict.fromkeys(["distance from the law", "distance from the printed density"], ".3f")
UNUSED = ["c0 = c2", "λ", "edges of the law", "condition number, median", "of the law"]
RANDOM = only("features", *ANY_WIDTH, drop=["singular values", *UNUSED])
MORE: Any = {"formats": FORMATS, "excerpt": lambda table: RANDOM(only("c1", 2000, 2500)(table))}
PART = part(__file__, TASKS, summarize, draw, decide, **MORE)
