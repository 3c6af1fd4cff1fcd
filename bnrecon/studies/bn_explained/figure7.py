"""Figure 7: distributions of mu and sigma over mini-batches, and of noise-controlled ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.study import read_reported
from bnrecon.studies.bn_explained.batch_statistics import (
    additive_variance,
    biased,
    chi_square_freedom,
    finite_population,
    variance_of_mean,
    variance_of_variance,
)

__all__ = ["KINDS", "PART", "measure_unit"]

REPORTED = read_reported(__package__)["figure7"]
MEANS, VARIANCES = REPORTED["means"], REPORTED["variances"]
BATCH, VIRTUAL, SAMPLES = (REPORTED[name] for name in ("batch", "virtual_batch", "samples"))
DRAWS = {"smoke": 500, "laptop": 50_000, "paper": 200_000}
BINS = {"smoke": 15, "laptop": 50, "paper": 50}
KINDS = {
    "shuffled": f"mini-batches of {BATCH}, without replacement",
    "independent": f"mini-batches of {BATCH}, with replacement",
    "controlled": f"noise-controlled, {BATCH} as {VIRTUAL}",
    "virtual": f"mini-batches of {VIRTUAL}, with replacement",
}
COLOURS = {"shuffled": "black", "controlled": PALETTE[3]}


def _batches(
    kind: str, samples: np.ndarray, draws: int, generator: np.random.Generator
) -> np.ndarray:
    """Mini-batches (draws, B) of the training set."""
    size = VIRTUAL if kind == "virtual" else BATCH
    if kind != "shuffled":
        return samples[generator.integers(len(samples), size=(draws, size))]
    return np.stack([generator.permutation(samples)[:size] for _ in range(draws)])


def measure_unit(unit: int, draws: int, bins: int, seed: int) -> pd.DataFrame:
    """Histograms of mu and sigma over mini-batches of one training set.

    Args:
        unit: its number in the paper's figure.
        draws: mini-batches.
        bins: of a histogram.
        seed: of the training set and the mini-batches.

    Returns:
        A row for each bin of each kind and statistic. ``average`` is of the statistic;
        ``variance`` of mu or sigma², and ``predicted`` the one of Eq. 13 with the training set's
        own moments, the variance of sigma² as printed; ``target`` the same for the kind's size.
    """
    generator = np.random.Generator(np.random.Philox(key=(seed, unit)))
    samples = MEANS[unit] + VARIANCES[unit] ** 0.5 * generator.normal(size=SAMPLES)
    variance = float(samples.var())
    fourth = float(((samples - samples.mean()) ** 4).mean())
    rows = []
    for kind in KINDS:
        drawn = _batches(kind, samples, draws, generator)
        means, variances = drawn.mean(1), drawn.var(1)
        if kind == "controlled":
            noise = additive_variance(variance, BATCH, VIRTUAL) ** 0.5
            means = means + noise * generator.normal(size=draws)
            freedom = chi_square_freedom(variance, fourth, BATCH, VIRTUAL)
            variances = variances * generator.chisquare(freedom, size=draws) / freedom
        size = BATCH if kind in ("shuffled", "independent") else VIRTUAL
        predicted = {
            "mean": variance_of_mean(variance, size),
            "deviation": variance_of_variance(variance, fourth, size),
        }
        found = {"mean": (means, means), "deviation": (np.sqrt(variances), variances)}
        for statistic, (values, noisy) in found.items():
            density, edges = np.histogram(values, bins, density=True)
            row = {"unit": unit, "kind": kind, "statistic": statistic, "batch": size}
            row |= {"draws": draws, "average": float(values.mean())}
            row |= {"variance": float(noisy.var(ddof=1)), "predicted": predicted[statistic]}
            rows += [
                row | {"left": float(low), "right": float(high), "density": float(value)}
                for low, high, value in zip(edges, edges[1:], density, strict=False)
            ]
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per unit."""
    return [
        Task(
            f"unit {unit + 1}",
            measure_unit,
            {"unit": unit, "draws": DRAWS[scale], "bins": BINS[scale], "seed": 0},
        )
        for unit in range(len(MEANS))
    ]


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per unit, kind and statistic: measured variance to Eq. 13, and with the factors."""
    found = rows.drop_duplicates(["unit", "kind", "statistic"]).copy()
    found["printed"] = found["variance"] / found["predicted"]
    factor = np.where(found["statistic"] == "deviation", found["batch"].map(biased), 1.0)
    shuffled = np.where(found["kind"] == "shuffled", finite_population(BATCH, SAMPLES), 1.0)
    return found.assign(repaired=found["printed"] / (factor * shuffled))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per unit and kind of mini-batch."""
    lines = []
    ratios = _ratios(rows).set_index(["unit", "kind", "statistic"])
    for unit in sorted(rows["unit"].unique()):
        for kind, title in KINDS.items():
            mean, deviation = (ratios.loc[(unit, kind, name)] for name in ("mean", "deviation"))
            lines.append(
                {
                    "W z": f"N({MEANS[unit]}, {VARIANCES[unit]})",
                    "statistics": title,
                    "mean of μ": f"{mean['average']:.3f}",
                    "mean of σ": f"{deviation['average']:.3f}",
                    "var(μ) to Eq. 13": f"{mean['printed']:.3f}",
                    "repaired": f"{mean['repaired']:.3f}",
                    "var(σ²) to Eq. 13": f"{deviation['printed']:.3f}",
                    "repaired, σ²": f"{deviation['repaired']:.3f}",
                }
            )
    return pd.DataFrame(lines)


def _caption(rows: pd.DataFrame) -> str:
    error = 100 * (2 / rows["draws"].iloc[0]) ** 0.5
    return (
        f"A training set of {SAMPLES} normal samples; variances of μ and of σ² over "
        f"{rows['draws'].iloc[0]} mini-batches to those of Eq. 13 with the training set's own "
        f"moments, for the size of the mini-batch that is mimicked; standard error about "
        f"{error:.1f}%. Repaired: Eq. 13 times ((B-1)/B)² for the σ² of Eq. 3 and, without "
        f"replacement, times (N-B)/(N-1), exact for μ and close for σ². Noise-controlled: normal "
        "noise is added to μ, and σ² is multiplied by χ²/ν of mean 1, with ν chosen so that both "
        "variances are a smaller mini-batch's. Figure: histograms (black, red), and what Eq. 13 "
        "gives (green): normal for μ, for σ the root of a scaled χ² with B - 1 degrees of freedom, "
        "which has this variance."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's panels: mu above, sigma below, a column per unit."""
    units = sorted(rows["unit"].unique())
    figure, grid = new_figure(2, len(units), (PAGE, 3.8), squeeze=False)
    for axes_row, statistic in zip(grid, ("mean", "deviation"), strict=True):
        for axes, unit in zip(axes_row, units, strict=True):
            part = rows[(rows["unit"] == unit) & (rows["statistic"] == statistic)]
            for kind, colour in COLOURS.items():
                bars = part[part["kind"] == kind]
                edges = [*bars["left"], bars["right"].iloc[-1]]
                axes.stairs(bars["density"], edges, color=colour)
            line = np.linspace(part["left"].min(), part["right"].max(), 300)
            axes.plot(line, _density(rows, unit, statistic, line), color=PALETTE[2])
            axes.set_xlabel(f"{'μ' if statistic == 'mean' else 'σ'}, unit {unit + 1}")
            axes.set_yticks([])
    handles = [*grid[0][0].patches, grid[0][0].lines[0]]
    labels = [*(KINDS[kind] for kind in COLOURS), "analytical"]
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def _density(rows: pd.DataFrame, unit: int, statistic: str, values: np.ndarray) -> np.ndarray:
    """Of mu: normal. Of sigma: B sigma_B² / sigma² is chi-square with B - 1 degrees of freedom."""
    own = rows[(rows["unit"] == unit) & (rows["kind"] == "independent")]
    own = own[own["statistic"] == "mean"].iloc[0]
    if statistic == "mean":
        return stats.norm.pdf(values, own["average"], own["predicted"] ** 0.5)
    return stats.chi.pdf(values, BATCH - 1, scale=own["predicted"] ** 0.5)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Do the distributions have the variances of Eq. 13?"""
    ratios = _ratios(rows)
    width = 6 * (2 / float(rows["draws"].iloc[0])) ** 0.5  # of a normal sample's variance, ample

    def part(kind: str, statistic: str, column: str) -> pd.Series:
        return ratios[(ratios["kind"] == kind) & (ratios["statistic"] == statistic)][column]

    def agrees(*values: pd.Series) -> str:
        near = all(((value - 1).abs() < width).all() for value in values)
        return "confirmed" if near else "not confirmed"

    independent = (
        part("independent", "mean", "printed"),
        part("independent", "deviation", "repaired"),
    )
    controlled = part("controlled", "mean", "printed"), part("controlled", "deviation", "repaired")
    shuffled = part("shuffled", "mean", "printed"), part("shuffled", "deviation", "printed")
    return [
        Claim(
            "Figure 7",
            "The statistics of mini-batches have the variances of Eq. 13, with the factor of "
            "erratum 24 for σ².",
            agrees(*independent),
            f"for independent samples var(μ) is {_range(independent[0])} of Eq. 13 and var(σ²) "
            f"{_range(independent[1])} of it times ((B-1)/B)²; for mini-batches of "
            f"{BATCH} of {SAMPLES} without replacement, as in an epoch, {_range(shuffled[0])} and "
            f"{_range(shuffled[1])} of Eq. 13 as printed: (N-B)/(N-1) is "
            f"{finite_population(BATCH, SAMPLES):.3f}.",
        ),
        Claim(
            "Figure 7",
            f"Noise gives mini-batches of {BATCH} the variances of mini-batches of {VIRTUAL}.",
            agrees(*controlled),
            f"var(μ) is {_range(controlled[0])} and var(σ²) {_range(controlled[1])} of those.",
        ),
    ]


def _range(values: pd.Series) -> str:
    return f"{values.min():.3f} to {values.max():.3f}"


PART = Experiment(
    "Figure 7",
    "Distributions of the statistics of mini-batches",
    tasks,
    summarize,
    _caption,
    draw,
    claims=claims,
)
