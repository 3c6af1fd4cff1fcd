"""Proposition 2, Eq. 13: variances of a mini-batch's mean and variance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.bn_explained.batch_statistics import (
    biased,
    variance_of_mean,
    variance_of_variance,
)

__all__ = ["PART", "enumerate_batches", "simulate"]

BATCHES = {"smoke": (2, 16), "laptop": (2, 4, 16, 64, 256), "paper": (2, 4, 16, 64, 256)}
DRAWS = {"smoke": 2_000, "laptop": 40_000, "paper": 200_000}
ENUMERATED = {"smoke": (2, 3), "laptop": (2, 3, 4, 5, 6, 8), "paper": (2, 3, 4, 5, 6, 8)}
SIDE = 8  # entries of z
CHUNK = 2**21  # samples at a time

# Draws of mean 0 and variance 1, and their excess kurtosis.
DISTRIBUTIONS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, ...]], np.ndarray], float]]
DISTRIBUTIONS = {
    "normal": (lambda generator, shape: generator.normal(size=shape), 0.0),
    "uniform": (lambda generator, shape: 12**0.5 * (generator.random(shape) - 0.5), -1.2),
    "Laplace": (lambda generator, shape: generator.laplace(scale=0.5**0.5, size=shape), 3.0),
    "±1": (lambda generator, shape: 2.0 * generator.integers(2, size=shape) - 1, -2.0),
}


def simulate(distribution: str, batch: int, draws: int, seed: int) -> pd.DataFrame:
    """One row: measured variances of mu and sigma² over mini-batches, beside Eq. 13.

    z has independent entries of variances rho, w is normal. ``_error`` is a standard error.

    Args:
        distribution: of z.
        batch: B.
        draws: mini-batches.
        seed: of w, rho and z.
    """
    draw, kurtosis = DISTRIBUTIONS[distribution]
    generator = np.random.Generator(np.random.Philox(seed))
    weight, rho = generator.normal(size=SIDE), generator.random(SIDE) + 0.5
    variance = float(weight**2 @ rho)
    fourth = 3 * variance**2 + kurtosis * float(weight**4 @ rho**2)
    means, variances, left = [], [], draws
    while left:
        size = min(left, max(1, CHUNK // (batch * SIDE)))
        outputs = draw(generator, (size, batch, SIDE)) @ (weight * rho**0.5)
        means.append(outputs.mean(1))
        variances.append(outputs.var(1))  # 1/B, as in Eq. 3
        left -= size
    row = {"kind": "simulated", "distribution": distribution, "batch": batch, "draws": draws}
    row |= {
        "predicted_mean": variance_of_mean(variance, batch),
        "predicted_variance": variance_of_variance(variance, fourth, batch),
    }
    for name, values in (("mean", means), ("variance", variances)):
        squares = np.square(np.concatenate(values) - np.concatenate(values).mean())
        row[f"measured_{name}"] = float(squares.sum() / (draws - 1))
        row[f"{name}_error"] = float(squares.std() / draws**0.5)
    return pd.DataFrame([row])


def enumerate_batches(batch: int) -> pd.DataFrame:
    """One row: all 2^B mini-batches of z = ±1 with w = 1, exact."""
    outputs = np.array(list(itertools.product((-1.0, 1.0), repeat=batch)))
    return pd.DataFrame(
        [
            {
                "kind": "enumerated",
                "distribution": "±1",
                "batch": batch,
                "draws": len(outputs),
                "predicted_mean": variance_of_mean(1, batch),
                "predicted_variance": variance_of_variance(1, 1, batch),
                "measured_mean": float(outputs.mean(1).var()),
                "measured_variance": float(outputs.var(1).var()),
                "mean_error": 0.0,
                "variance_error": 0.0,
            }
        ]
    )


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """Enumerations, and one simulation per distribution and size of the mini-batch."""
    exact = [
        Task(f"±1, B = {b}, enumerated", enumerate_batches, {"batch": b}) for b in ENUMERATED[scale]
    ]
    drawn = [
        Task(
            f"{distribution}, B = {batch}",
            simulate,
            {"distribution": distribution, "batch": batch, "draws": DRAWS[scale], "seed": 0},
        )
        for distribution in DISTRIBUTIONS
        for batch in BATCHES[scale]
    ]
    return exact + drawn


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured to predicted: of the mean, of Eq. 13 as printed, and with the factor."""
    factor = rows["batch"].map(biased)
    printed = rows["measured_variance"] / rows["predicted_variance"]
    error = rows["variance_error"] / rows["predicted_variance"]
    return rows.assign(
        mean=rows["measured_mean"] / rows["predicted_mean"],
        mean_width=2 * rows["mean_error"] / rows["predicted_mean"],
        printed=printed,
        printed_width=2 * error,
        repaired=printed / factor,
        repaired_width=2 * error / factor,
        factor=factor,
    )


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per distribution and size of the mini-batch."""
    lines = []
    for row in _ratios(rows).itertuples():
        line = {"z": row.distribution, "batches": f"{row.draws} {row.kind}", "B": row.batch}
        exact = row.kind == "enumerated"
        for name, title in (
            ("mean", "var(μ) to Eq. 13"),
            ("printed", "var(σ²) to Eq. 13"),
            ("repaired", "to Eq. 13 times ((B-1)/B)²"),
        ):
            value, width = getattr(row, name), getattr(row, f"{name}_width")
            line[title] = f"{value:.4f}" if exact else f"{value:.3f} ± {width:.3f}"
        lines.append(line | {"((B-1)/B)²": f"{row.factor:.4f}"})
    return pd.DataFrame(lines)


CAPTION = (
    "Variances of the mean and of the variance of Eq. 3 over independent mini-batches, divided by "
    "what Eq. 13 says; ± two standard errors. z has eight independent entries, w is normal; "
    "enumerated are all mini-batches of z = ±1 with w = 1, exactly. Eq. 13 is the variance of the "
    "unbiased sample variance, with 1/(B-1); Eq. 3 divides by B."
)


def draw(rows: pd.DataFrame) -> Figure:
    """Measured var(sigma²) to Eq. 13, and the factor."""
    figure, axes = new_figure()
    ratios = _ratios(rows[rows["kind"] == "simulated"])
    groups = ratios.groupby("distribution", sort=False)
    for (name, group), colour in zip(groups, PALETTE, strict=False):
        axes.errorbar(
            group["batch"],
            group["printed"],
            group["printed_width"],
            fmt="o",
            capsize=2,
            color=colour,
            label=str(name),
        )
    sizes = np.geomspace(2, ratios["batch"].max(), 100)
    axes.semilogx(sizes, ((sizes - 1) / sizes) ** 2, color="black", label="((B-1)/B)²")
    axes.set_xlabel("size B of the mini-batch")
    axes.set_ylabel("var(σ²) to Eq. 13")
    axes.legend()
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Both formulas of Eq. 13; simulations may be off by four standard errors."""
    ratios = _ratios(rows)

    def agrees(name: str) -> pd.Series:
        return (ratios[name] - 1).abs() < 2 * ratios[f"{name}_width"] + 1e-9

    mean, printed, repaired = (agrees(name) for name in ("mean", "printed", "repaired"))
    two = ratios[(ratios["kind"] == "enumerated") & (ratios["batch"] == 2)]
    example = "".join(
        f" (z = ±1, B = 2, all mini-batches: {row.measured_variance:g}, Eq. 13 says "
        f"{row.predicted_variance:g})"
        for row in two.itertuples()
    )
    if printed.all():
        verdict = "confirmed"
    else:
        verdict = "wrong in print" if repaired.all() else "not confirmed"
    return [
        Claim(
            "Proposition 2, Eq. 13, left",
            "var(μ) = <w², ρ> / B.",
            "confirmed" if mean.all() else "not confirmed",
            f"{mean.sum()} of {len(rows)} settings agree.",
        ),
        Claim(
            "Proposition 2, Eq. 13, right",
            "var(σ²), with the σ of Eq. 3.",
            verdict,
            f"{printed.sum()} of {len(rows)} settings agree with it as printed, {repaired.sum()} "
            f"with the factor ((B-1)/B)²{example}; erratum 24.",
        ),
    ]


PART = Experiment(
    "Proposition 2, Eq. 13",
    "Variances of the statistics of mini-batches",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
