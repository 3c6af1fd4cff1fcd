"""Statistics of mini-batches of independent inputs, as Proposition 2 assumes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd

from bnrecon.studies.bn_explained.batch_statistics import (
    measure_statistics,
    variance_of_mean,
    variance_of_variance,
)

__all__ = ["DISTRIBUTIONS", "enumerate_batches", "simulate"]

SIDE = 8  # entries of z

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

    def sample(count: int) -> np.ndarray:
        return draw(generator, (count, batch, SIDE)) @ (weight * rho**0.5)

    found = measure_statistics(sample, batch, draws)
    row = {"kind": "simulated", "distribution": distribution, "batch": batch, "draws": draws}
    row |= {
        "predicted_mean": variance_of_mean(variance, batch),
        "bound_mean": float(np.linalg.norm(weight**2) * np.linalg.norm(rho)) / batch,
        "predicted_variance": variance_of_variance(variance, fourth, batch),
        "expected_share": 1.0,
    }
    return pd.DataFrame([row | found]).drop(columns=["own_variance", "own_fourth"])


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
                "bound_mean": 1 / batch,
                "predicted_variance": variance_of_variance(1, 1, batch),
                "expected_share": 1.0,
                "measured_mean": float(outputs.mean(1).var()),
                "measured_variance": float(outputs.var(1).var()),
                "mean_error": 0.0,
                "variance_error": 0.0,
            }
        ]
    )
