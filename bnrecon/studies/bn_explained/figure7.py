"""Figure 7: distributions of mu and sigma over plain and noise-controlled mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, below, part, read_reported, sweep
from bnrecon.studies.bn_explained import batch_statistics
from bnrecon.targets.noisy_batchnorm import batch_noise

REPORTED = read_reported(__package__)["figure7"]
MEANS, VARIANCES = REPORTED["means"], REPORTED["variances"]
BATCH, VIRTUAL, SAMPLES = (REPORTED[name] for name in ("batch", "virtual_batch", "samples"))
DRAWS = {"smoke": 500, "laptop": 200_000, "paper": 200_000}
BINS = {"smoke": 15, "laptop": 50, "paper": 50}
KINDS = {
    "shuffled": f"mini-batches of {BATCH}, without replacement",
    "independent": f"mini-batches of {BATCH}, with replacement",
    "controlled": f"noise-controlled, {BATCH} as {VIRTUAL}",
    "virtual": f"mini-batches of {VIRTUAL}, with replacement",
}
# Mini-batch sizes whose statistics are wanted.
WANTED = {"shuffled": BATCH, "independent": BATCH, "controlled": VIRTUAL, "virtual": VIRTUAL}
CLOSE = 0.1  # a variance counts as equal within 10%
SIZES = {  # for caption and claims
    "batch": BATCH,
    "virtual_batch": VIRTUAL,
    "samples": SAMPLES,
    "without_replacement": batch_statistics.finite_population(BATCH, SAMPLES),
    "close": 100 * CLOSE,
}
COLUMNS = {  # of the table: a statistic and its quantity
    "mean of μ": ("mean", "average"),
    "mean of σ": ("deviation", "average"),
    "var(μ) to Eq. 13": ("mean", "printed"),
    "var(μ), repaired": ("mean", "repaired"),
    "var(σ²) to Eq. 13": ("deviation", "printed"),
    "var(σ²), repaired": ("deviation", "repaired"),
}
COLOURS = {"shuffled": "black", "controlled": PALETTE[3]}


def _add_noise(drawn: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of mini-batches with the noise of ``NoisyBatchNorm2d``."""
    channels = torch.from_numpy(drawn.T)[..., None, None]  # each mini-batch a channel of one pixel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shift, scale = batch_noise(channels, VIRTUAL)
    variances = drawn.var(1)
    return drawn.mean(1) + shift.numpy() * variances**0.5, variances * scale.numpy() ** 2


def _predicted(kind: str, samples: np.ndarray) -> dict[str, tuple[float, float]]:
    """By statistic: Eq. 13's variance, and the exact variance of mu and of Eq. 3's sigma²."""
    variance, size = float(samples.var()), WANTED[kind]
    fourth = float(((samples - samples.mean()) ** 4).mean())
    mean = variance / size
    printed = batch_statistics.variance_of_variance(variance, fourth, size)
    exact, drawn = mean, printed
    if kind == "shuffled":
        exact *= batch_statistics.finite_population(size, SAMPLES)
        drawn = batch_statistics.variance_of_drawn_variance(variance, fourth, size, SAMPLES)
    return {"mean": (mean, exact), "deviation": (printed, drawn * batch_statistics.biased(size))}


def measure_unit(unit: int, draws: int, bins: int, seed: int) -> pd.DataFrame:
    """Histograms of mu and sigma over ``draws`` mini-batches of a unit's training set.

    One row per bin, kind and statistic. ``average`` is the statistic's; ``variance`` that of mu or
    sigma², with the standard error ``error``; ``predicted`` that of Eq. 13 with the training set's
    moments, for the kind's size, and ``exact`` that for Eq. 3's sigma² and the kind's sampling.
    """
    generator = np.random.Generator(np.random.Philox(key=(seed, unit)))
    samples = MEANS[unit] + VARIANCES[unit] ** 0.5 * generator.normal(size=SAMPLES)
    rows = []
    for kind in KINDS:
        if kind == "shuffled":
            drawn = np.stack([generator.permutation(samples)[:BATCH] for _ in range(draws)])
        else:
            size = VIRTUAL if kind == "virtual" else BATCH
            drawn = samples[generator.integers(SAMPLES, size=(draws, size))]
        means, variances = drawn.mean(1), drawn.var(1)
        if kind == "controlled":
            means, variances = _add_noise(drawn, seed + unit)
        drawn_by = {"mean": (means, means), "deviation": (np.sqrt(variances), variances)}
        for statistic, (predicted, exact) in _predicted(kind, samples).items():
            values, noisy = drawn_by[statistic]
            density, edges = np.histogram(values, bins, density=True)
            variance, error = batch_statistics.sample_variance(noisy)
            row = {"unit": unit, "kind": kind, "statistic": statistic, "batch": WANTED[kind]}
            row |= {"draws": draws, "average": float(values.mean())}
            row |= {"variance": variance, "predicted": predicted, "exact": exact, "error": error}
            rows += [
                row | {"left": float(low), "right": float(high), "density": float(value)}
                for low, high, value in zip(edges, edges[1:], density, strict=False)
            ]
    return pd.DataFrame(rows)


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per unit, kind and statistic: measured variance over Eq. 13's, and over the exact."""
    rows = rows.drop_duplicates(["unit", "kind", "statistic"])
    for name, expected in (("printed", rows["predicted"]), ("repaired", rows["exact"])):
        ratios = {name: rows["variance"] / expected, f"{name}_error": rows["error"] / expected}
        rows = rows.assign(**ratios)
    return rows


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per unit and type of mini-batch."""
    lines = []
    ratios = _ratios(rows).set_index(["unit", "kind", "statistic"])
    for unit in sorted(rows["unit"].unique()):
        for kind, title in KINDS.items():
            line = {"W z": f"N({MEANS[unit]}, {VARIANCES[unit]})", "statistics": title}
            for name, (statistic, column) in COLUMNS.items():
                line[name] = f"{ratios.loc[(unit, kind, statistic), column]:.3f}"
            lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's panels: mu above, sigma below, a column per unit."""
    units = sorted(rows["unit"].unique())
    figure, grid = new_figure(2, len(units), (PAGE, 3.8), squeeze=False)
    for axes_row, statistic in zip(grid, ("mean", "deviation"), strict=True):
        for axes, unit in zip(axes_row, units, strict=True):
            panel = rows[(rows["unit"] == unit) & (rows["statistic"] == statistic)]
            for kind, colour in COLOURS.items():
                bars = panel[panel["kind"] == kind]
                axes.stairs(bars["density"], [*bars["left"], bars["right"].iloc[-1]], color=colour)
            line = np.linspace(panel["left"].min(), panel["right"].max(), 300)
            axes.plot(line, _density(rows, unit, statistic, line), color=PALETTE[2])
            symbol = "μ" if statistic == "mean" else "σ"
            axes.set(xlabel=f"{symbol}, unit {unit + 1}", yticks=[])
        axes_row[0].set_ylabel("density")
    handles = [*grid[0][0].patches, grid[0][0].lines[0]]
    labels = [*(KINDS[kind] for kind in COLOURS), "analytical"]
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def _density(rows: pd.DataFrame, unit: int, statistic: str, values: np.ndarray) -> np.ndarray:
    """Density of mu: normal. Of sigma: sigma² is scaled chi-square with the exact variance."""
    rows = rows[(rows["unit"] == unit) & (rows["kind"] == "independent")]
    mean, deviation = (rows[rows["statistic"] == name].iloc[0] for name in ("mean", "deviation"))
    if statistic == "mean":
        return stats.norm.pdf(values, mean["average"], mean["exact"] ** 0.5)
    expected = (BATCH - 1) * mean["exact"]  # of sigma²
    freedom = 2 * expected**2 / deviation["exact"]
    return stats.chi.pdf(values, freedom, scale=(expected / freedom) ** 0.5)


def decide(rows: pd.DataFrame) -> Decisions:
    """Do the distributions have the variances of Eq. 13?"""
    ratios = _ratios(rows).set_index(["kind", "statistic"])
    ranges = ratios.groupby(level=[0, 1])[["printed", "repaired"]].agg(span, spec=".3f")
    numbers: dict[str, Any] = {"draws": rows["draws"].iloc[0]}
    numbers["error"] = 100 * ratios["repaired_error"].max()
    numbers |= {kind: ranges.loc[kind].to_dict("index") for kind in KINDS}
    # Without replacement, one variance off Eq. 13 contradicts it.
    return {
        "green": _decide_mean(ratios.loc[[("independent", "mean")]]),
        "black": "undecided" if _near(ratios.loc[["shuffled"]]).all() else "contradicted",
        "red": _decide_noise(ratios.loc[["controlled"]]),
    }, numbers | SIZES


def _decide_mean(ratios: pd.DataFrame) -> str:
    """Within four standard errors of Eq. 13; undecided if these are large."""
    exact = "confirmed" if (4 * ratios["printed_error"] < CLOSE).all() else "undecided"
    return exact if _near(ratios).all() else "contradicted"


def _near(ratios: pd.DataFrame) -> pd.Series:
    return (ratios["printed"] - 1).abs() < 4 * ratios["printed_error"]


def _decide_noise(ratios: pd.DataFrame) -> str:
    off, width = (ratios["repaired"] - 1).abs(), 4 * ratios["repaired_error"]
    if (off + width < CLOSE).all():
        return "confirmed"
    return "contradicted" if (off - width > CLOSE).any() else "undecided"


UNITS = [(unit, unit + 1) for unit in range(len(MEANS))]
SIZE = {"draws": DRAWS, "bins": BINS, "seed": 0}
TASKS = sweep(measure_unit, "unit {_number}", {("unit", "_number"): UNITS}, SIZE)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
