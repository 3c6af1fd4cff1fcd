"""Statistics of a layer above a batch-normalized layer, whose inputs are not independent.

The layer below has independent standard normal pre-activations h, as any orthogonal weights have
on normal inputs, and z = a(h') with h' = (h - mean) / sigma of the mini-batch, a(u) = u for u >= 0
and alpha u below. The inputs z of the layer have a diagonal covariance, as Proposition 2 wants it,
but those of one mini-batch share the statistics of h. As h' sums to 0 in each unit,

    mu = sum_j w_j mean(a(h'_j)) = (1 - alpha) / 2 sum_j w_j mean|h'_j|,

and mean|h'| is Geary's ratio of the mean deviation to the standard deviation, with known moments.
For large B its variance is (1 - 3 / pi) / B: of |h| without its parts along h and h² - 1, which the
normalization takes away.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from bnrecon.studies.bn_explained.batch_statistics import (
    measure_statistics,
    variance_of_mean,
    variance_of_variance,
)
from bnrecon.studies.bn_explained.small_networks import SLOPES, activate

__all__ = ["ACTIVATIONS", "geary", "share_of_equation_13", "simulate_layer"]

ACTIVATIONS = {**SLOPES, "linear": 1.0}  # alpha
WIDTH = 8  # units of the layer below


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
    """var(mu) above a batch-normalized layer, to what Eq. 13 says; B is at least 3.

    >>> f"{share_of_equation_13(0.0, 10**4):.4f}"  # ReLU: (1 - 3 / pi) / (2 - 2 / pi)
    '0.0331'
    """
    mean, variance = geary(batch)
    even = ((1 - slope) / 2) ** 2
    rho = (1 + slope**2) / 2 - even * mean**2  # of an entry of z, as E h'² = 1
    return batch * even * variance / rho


def simulate_layer(activation: str, batch: int, draws: int, seed: int) -> pd.DataFrame:
    """Measured variances of mu and sigma² of one unit, beside Eq. 13.

    Args:
        activation: between the two layers.
        batch: B.
        draws: mini-batches.
        seed: of the unit's weights and of the mini-batches.

    Returns:
        Two rows: with the layer below normalized by the mini-batch's own statistics (``shared``),
        and by mean 0 and deviation 1 (``fixed``).
    """
    shares = {"shared": share_of_equation_13(ACTIVATIONS[activation], batch), "fixed": 1.0}
    rows = []
    for kind, share in shares.items():
        row = {"kind": kind, "expected_share": share, "distribution": activation}
        row |= {"batch": batch, "draws": draws}
        rows.append(row | _measure(activation, batch, draws, kind == "fixed", seed))
    return pd.DataFrame(rows)


def _measure(activation: str, batch: int, draws: int, fixed: bool, seed: int) -> dict[str, float]:
    """Measured and predicted variances; the mini-batches of a seed are the same for both kinds."""
    generator = np.random.Generator(np.random.Philox(seed))
    weight = generator.normal(size=WIDTH)

    def sample(count: int) -> np.ndarray:
        h = generator.normal(size=(count, batch, WIDTH))
        if not fixed:
            h -= h.mean(1, keepdims=True)
            h /= np.sqrt(np.square(h).mean(1, keepdims=True))
        return activate(h, ACTIVATIONS[activation]) @ weight

    measured = measure_statistics(sample, batch, draws)
    variance, fourth = measured.pop("own_variance"), measured.pop("own_fourth")
    # All entries of z have the same variance.
    bound = variance * WIDTH**0.5 * np.linalg.norm(weight**2) / np.sum(weight**2)
    return measured | {
        "predicted_mean": variance_of_mean(variance, batch),
        "bound_mean": float(bound) / batch,
        "predicted_variance": variance_of_variance(variance, fourth, batch),
    }
