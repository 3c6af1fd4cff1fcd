"""Proposition 2, Eq. 13: variances of a mini-batch's mean and variance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, below, join, merge, part, sweep
from bnrecon.studies.bn_explained import batch_statistics
from bnrecon.studies.bn_explained.small_networks import SLOPES, activate

BATCHES = {"smoke": (2, 16), "laptop": (2, 4, 16, 64, 256), "paper": (2, 4, 16, 64, 256)}
DRAWS = {"smoke": 2_000, "laptop": 40_000, "paper": 200_000}
ENUMERATED = {"smoke": (2, 3), "laptop": (2, 3, 4, 5, 6, 8), "paper": (2, 3, 4, 5, 6, 8)}
LAYER_BATCHES = {"smoke": (16,), "laptop": (4, 16, 64, 256), "paper": (4, 16, 64, 256)}
LAYER_DRAWS = {"smoke": 2_000, "laptop": 10_000, "paper": 100_000}
TICKS = (2, 4, 16, 64, 256)
ACTIVATIONS = {**SLOPES, "linear": 1.0}  # alpha
WIDTH = 8  # units of the layer below a normalized one
SIDE = 8  # entries of z
INPUTS = {"shared": "{} above statistics of the mini-batch", "fixed": "{} above fixed statistics"}

# Draws of mean 0 and variance 1, and their excess kurtosis.
DISTRIBUTIONS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, ...]], np.ndarray], float]]
DISTRIBUTIONS = {
    "normal": (lambda generator, shape: generator.normal(size=shape), 0.0),
    "uniform": (lambda generator, shape: 12**0.5 * (generator.random(shape) - 0.5), -1.2),
    "Laplace": (lambda generator, shape: generator.laplace(scale=0.5**0.5, size=shape), 3.0),
    "±1": (lambda generator, shape: 2.0 * generator.integers(2, size=shape) - 1, -2.0),
}


def simulate(distribution: str, batch: int, draws: int, seed: int) -> pd.DataFrame:
    """One row: measured variances of mu and sigma² over mini-batches, and Eq. 13's.

    z has independent entries of variances rho, w is normal. ``_error`` is a standard error.
    """
    draw, kurtosis = DISTRIBUTIONS[distribution]
    generator = np.random.Generator(np.random.Philox(seed))
    weight, rho = generator.normal(size=SIDE), generator.random(SIDE) + 0.5
    variance = float(weight**2 @ rho)
    fourth = 3 * variance**2 + kurtosis * float(weight**4 @ rho**2)

    def sample(count: int) -> np.ndarray:
        return draw(generator, (count, batch, SIDE)) @ (weight * rho**0.5)

    measured = batch_statistics.measure_statistics(sample, batch, draws)
    row = {"kind": "simulated", "distribution": distribution, "batch": batch, "draws": draws}
    bound = float(np.linalg.norm(weight**2) * np.linalg.norm(rho))
    row |= _predicted(variance, fourth, batch, bound) | {"expected_share": 1.0}
    return pd.DataFrame([row | measured]).drop(columns=["own_variance", "own_fourth"])


def enumerate_batches(batch: int) -> pd.DataFrame:
    """One row: all 2^B mini-batches of z = ±1 with w = 1, exact."""
    outputs = np.array(list(itertools.product((-1.0, 1.0), repeat=batch)))
    row = {"kind": "enumerated", "distribution": "±1", "batch": batch, "draws": len(outputs)}
    row |= _predicted(1, 1, batch, 1) | {"expected_share": 1.0}
    row |= {"measured_mean": float(outputs.mean(1).var())}
    row |= {"measured_variance": float(outputs.var(1).var())}
    return pd.DataFrame([row | {"mean_error": 0.0, "variance_error": 0.0}])


def _predicted(variance: float, fourth: float, batch: int, bound: float) -> dict[str, float]:
    """Eq. 13 for these moments of an output, and the bound of var(mu)."""
    return {
        "predicted_mean": variance / batch,
        "bound_mean": bound / batch,
        "predicted_variance": batch_statistics.variance_of_variance(variance, fourth, batch),
    }


def geary(batch: int) -> tuple[float, float]:
    """Mean and variance of mean|h - mean(h)| / sigma over B normal numbers (Geary 1936), exact.

    >>> "mean {:.4f}, variance {:.4f}".format(*geary(2))  # always 1
    'mean 1.0000, variance 0.0000'
    """
    log = math.lgamma((batch - 1) / 2) - math.lgamma(batch / 2)
    mean = ((batch - 1) / math.pi) ** 0.5 * math.exp(log)
    correlation = -1 / (batch - 1)  # of two deviations from the mean
    product = (1 - correlation**2) ** 0.5 + correlation * math.asin(correlation)
    square = (1 + (batch - 1) * 2 / math.pi * product) / batch
    return mean, max(square - mean**2, 0.0)


def share_of_equation_13(slope: float, batch: int) -> float:
    """var(mu) above a batch-normalized layer, relative to Eq. 13; B is at least 3.

    The layer below has independent standard normal pre-activations h, as any orthogonal weights
    give on normal inputs, and z = a(h') with h' = (h - mean) / sigma of the mini-batch, a(u) = u
    for u >= 0 and alpha u below. The inputs z of the layer have a diagonal covariance, as
    Proposition 2 requires, but those of one mini-batch share the statistics of h. As h' sums to 0
    in each unit,

        mu = sum_j w_j mean(a(h'_j)) = (1 - alpha) / 2 sum_j w_j mean|h'_j|,

    and mean|h'| is Geary's ratio of the mean deviation to the standard deviation, with known
    moments. For large B, its variance is (1 - 3 / pi) / B: that of |h| without its parts along h
    and h² - 1, which the normalization removes.

    >>> f"{share_of_equation_13(0.0, 10**4):.4f}"  # ReLU: (1 - 3 / pi) / (2 - 2 / pi)
    '0.0331'
    """
    mean, variance = geary(batch)
    even = ((1 - slope) / 2) ** 2
    rho = (1 + slope**2) / 2 - even * mean**2  # of an entry of z, as E h'² = 1
    return batch * even * variance / rho


def simulate_layer(activation: str, batch: int, draws: int, seed: int) -> pd.DataFrame:
    """Measured variances of mu and sigma² of one unit, and Eq. 13's.

    Two rows: the layer below, before the activation, is normalized by the mini-batch's statistics
    (``shared``), or by mean 0 and deviation 1 (``fixed``).
    """
    shares = {"shared": share_of_equation_13(ACTIVATIONS[activation], batch), "fixed": 1.0}
    rows = []
    for kind, share in shares.items():
        row = {"kind": kind, "expected_share": share, "distribution": activation}
        row |= {"batch": batch, "draws": draws}
        rows.append(row | _measure(activation, batch, draws, kind == "fixed", seed))
    return pd.DataFrame(rows)


def _measure(activation: str, batch: int, draws: int, fixed: bool, seed: int) -> dict[str, float]:
    """Measured and predicted variances; a seed's mini-batches are the same for both kinds."""
    generator = np.random.Generator(np.random.Philox(seed))
    weight = generator.normal(size=WIDTH)

    def sample(count: int) -> np.ndarray:
        h = generator.normal(size=(count, batch, WIDTH))
        if not fixed:
            h -= h.mean(1, keepdims=True)
            h /= np.sqrt(np.square(h).mean(1, keepdims=True))
        return activate(h, ACTIVATIONS[activation]) @ weight

    measured = batch_statistics.measure_statistics(sample, batch, draws)
    variance, fourth = measured.pop("own_variance"), measured.pop("own_fourth")
    # All entries of z have the same variance.
    bound = variance * WIDTH**0.5 * np.linalg.norm(weight**2) / np.sum(weight**2)
    return measured | _predicted(variance, fourth, batch, float(bound))


SIMULATED = {"distribution": tuple(DISTRIBUTIONS), "batch": BATCHES}
LAYERS = {"activation": tuple(ACTIVATIONS), "batch": LAYER_BATCHES}
LAYER_NAME = "above a normalized layer, {activation}, B = {batch}"
TASKS = join(
    sweep(enumerate_batches, "±1, B = {batch}, enumerated", {"batch": ENUMERATED}),
    sweep(simulate, "{distribution}, B = {batch}", SIMULATED, {"draws": DRAWS, "seed": 0}),
    sweep(simulate_layer, LAYER_NAME, LAYERS, {"draws": LAYER_DRAWS, "seed": 0}),
)


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured over predicted: for the mean, for Eq. 13 as printed, and with the factor."""
    factor = rows["batch"].map(batch_statistics.biased)
    printed = rows["measured_variance"] / rows["predicted_variance"]
    error = rows["variance_error"] / rows["predicted_variance"]
    return rows.assign(
        mean=rows["measured_mean"] / rows["predicted_mean"],
        mean_error=rows["mean_error"] / rows["predicted_mean"],
        bound=rows["bound_mean"] / rows["predicted_mean"],
        printed=printed,
        printed_error=error,
        repaired=printed / factor,
        repaired_error=error / factor,
        factor=factor,
    )


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per type of input and size of the mini-batch."""
    lines = []
    for row in _ratios(rows).itertuples():
        line = {"z": INPUTS.get(row.kind, "{}").format(row.distribution)}
        exact = row.kind == "enumerated"
        line |= {"mini-batches": f"all {row.draws}" if exact else str(row.draws), "B": row.batch}
        for name, title in (
            ("mean", "var(μ) to Eq. 13"),
            ("printed", "var(σ²) to Eq. 13"),
            ("repaired", "to Eq. 13 times ((B-1)/B)²"),
        ):
            value, error = getattr(row, name), getattr(row, f"{name}_error")
            line[title] = f"{value:.4f}" if exact else f"{value:.3f} ± {2 * error:.3f}"
            if name == "mean":
                line["expected"] = f"{row.expected_share:.4f}"
        lines.append(line | {"((B-1)/B)²": f"{row.factor:.4f}"})
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw measured var(sigma²) and var(mu) over Eq. 13's, and derived values."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.8))
    ratios = _ratios(rows)
    _points(left, ratios[ratios["kind"] == "simulated"], "printed", 1.07)
    sizes = np.geomspace(2, 256, 100)
    left.plot(sizes, ((sizes - 1) / sizes) ** 2, color="black", label="((B-1)/B)²")
    layer = ratios[ratios["distribution"] != "linear"]
    shared = layer[layer["kind"] == "shared"]
    _points(right, shared, "mean", 1.0)
    for name, colour in zip(shared["distribution"].unique(), PALETTE, strict=False):
        shares = [share_of_equation_13(ACTIVATIONS[name], size) for size in range(4, 257)]
        right.plot(range(4, 257), shares, color=colour, linewidth=0.8)
    _points(right, layer[layer["kind"] == "fixed"], "mean", 1.07, marker="x")
    right.plot([], [], "x", color="grey", label="fixed statistics below")
    left.set(ylim=(0, 1.05), ylabel="var(σ²) / Eq. 13", title="independent inputs")
    right.set(yscale="log", ylabel="var(μ) / Eq. 13", title="above a normalized layer")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="size B of the mini-batch")
        axes.set_xticks(TICKS, map(str, TICKS))
        axes.minorticks_off()
    left.legend()
    right.legend(ncols=2, loc="center", bbox_to_anchor=(0.5, 0.78))
    return figure


def _points(axes: Axes, ratios: pd.DataFrame, name: str, step: float, *, marker: str = "o") -> None:
    """Draw points with bars of two standard errors, side by side at one B, by ``step``."""
    groups = list(ratios.groupby("distribution", sort=False))
    for position, ((label, group), colour) in enumerate(zip(groups, PALETTE, strict=False)):
        axes.errorbar(
            group["batch"] * step ** (position - (len(groups) - 1) / 2),
            group[name],
            2 * group[f"{name}_error"],
            fmt=marker,
            markersize=3,
            capsize=2,
            color=colour,
            label=str(label) if marker == "o" else None,
        )


def _agrees(ratios: pd.DataFrame, name: str, expected: pd.Series | float = 1.0) -> pd.Series:
    """Within four standard errors."""
    return (ratios[name] - expected).abs() < 4 * ratios[f"{name}_error"] + 1e-9


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide both formulas of Eq. 13 for independent inputs, and the setting it is stated for."""
    ratios = _ratios(rows)
    layer = ratios["kind"].isin(("shared", "fixed"))
    decisions = [] if layer.all() else [_decide_independent(ratios[~layer])]
    if (ratios["kind"] == "shared").any():
        decisions.append(_decide_layer(ratios[layer]))
    return merge(*decisions)


def _decide_independent(ratios: pd.DataFrame) -> Decisions:
    mean, printed, repaired = (_agrees(ratios, name) for name in ("mean", "printed", "repaired"))
    below = (ratios["mean"] - 4 * ratios["mean_error"] <= ratios["bound"] + 1e-9).all()
    variance = "needs a correction" if repaired.all() else "contradicted"
    numbers = {
        "settings": len(ratios),
        "mean_agrees": mean.sum(),
        "mean_error": 100 * ratios["mean_error"].max(),
        "bound": span(ratios["bound"], ".2f"),
        "contradicted": (~printed).sum(),
        "undecided": int((printed & repaired).sum()),
        "repaired_agrees": repaired.sum(),
    }
    return {
        "Proposition 2, Eq. 13, left": bool(mean.all() and below),
        "Proposition 2, Eq. 13, right": True if printed.all() else variance,
    }, numbers


def _decide_layer(ratios: pd.DataFrame) -> Decisions:
    """Undecided if Eq. 13 fails above fixed statistics, too: the simulation is in doubt."""
    shared, fixed = (ratios[ratios["kind"] == kind] for kind in ("shared", "fixed"))
    largest = shared["batch"].max()
    large = shared[shared["batch"] == largest]
    numbers = {
        "largest_batch": largest,
        "above": ", ".join(f"{row.distribution} {row.mean:.3f}" for row in large.itertuples()),
        "fixed": span(fixed["mean"], ".2f"),
        "derived_agrees": _agrees(shared, "mean", shared["expected_share"]).sum(),
        "layers": len(shared),
        "variances": span(large["repaired"], ".2f"),
    }
    holds = bool(_agrees(shared, "mean").all())
    return {"setting": holds if _agrees(fixed, "mean").all() else "undecided"}, numbers


PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
