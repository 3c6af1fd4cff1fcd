"""The law of the singular values of a random feature matrix (Random features, Theorem 2.2)."""

from __future__ import annotations

import functools
import math

import numpy as np

GRID = 20_001


def edges(aspect: float) -> tuple[float, float]:
    """The smallest and largest singular value of M, λ∓ = |1 ∓ sqrt(λ)|, with λ = c1 / n.

    Entries of M have variance 1 / n.

    >>> edges(4.0)
    (1.0, 3.0)
    """
    return abs(1 - math.sqrt(aspect)), 1 + math.sqrt(aspect)


def density(x: np.ndarray, aspect: float) -> np.ndarray:
    """Marchenko and Pastur's density of the min(n, c1) singular values of M.

    p(x) = sqrt((x² - λ-²) (λ+² - x²)) / (π min(1, λ) x) on [λ-, λ+]. The paper prints λ for min(1,
    λ), max(c1/n, n/c1) for λ, and the edges 1 - sqrt(λ), λ+² = 1 + sqrt(λ): the integral is not 1.

    >>> round(float(density(np.array([1.0]), 1.0)[0]), 4)
    0.5513
    """
    low, high = edges(aspect)
    x = np.asarray(x, dtype=float)
    inside = np.clip((x**2 - low**2) * (high**2 - x**2), 0, None)
    return np.sqrt(inside) / (math.pi * min(1.0, aspect) * np.where(x > 0, x, 1))


def _table(aspect: float) -> tuple[np.ndarray, np.ndarray]:
    """Abscissae and values of the distribution function.

    With x² = (1 - sqrt(λ))² + 4 sqrt(λ) sin²(α/2), which does not cancel at the lower edge, the law
    is 2 λ sin²α / (π min(1, λ) x²) dα, and the integral of sin²α / x² from 0 to α is

        (sin α / sqrt(λ) + (1 + λ) α / (2 λ)) / 2 - |1 - λ| t / (2 λ),

    with tan t = (1 + sqrt(λ)) / |1 - sqrt(λ)| tan(α/2).
    """
    root, angle = math.sqrt(aspect), np.linspace(0, math.pi, GRID)
    sine, cosine = np.sin(angle / 2), np.cos(angle / 2)
    squared = (1 - root) ** 2 + 4 * root * sine**2
    turn = np.arctan2((1 + root) * sine, abs(1 - root) * cosine)
    rest = (np.sin(angle) / root + (1 + aspect) * angle / (2 * aspect)) / 2
    values = rest - abs(1 - aspect) * turn / (2 * aspect)
    return np.sqrt(squared), np.clip(values / values[-1], 0, 1)


def distribution(x: np.ndarray, aspect: float) -> np.ndarray:
    """Share of singular values up to x."""
    return np.interp(x, *_table(aspect), left=0, right=1)


def quantile(share: np.ndarray, aspect: float) -> np.ndarray:
    """Singular value below which a share of them lies.

    >>> [round(float(value), 3) for value in quantile(np.array([0.0, 0.5, 1.0]), 1.0)]
    [0.0, 0.808, 2.0]
    """
    abscissae, values = _table(aspect)
    return np.interp(share, values, abscissae)


def log_uniform_quantile(share: np.ndarray, condition: float) -> np.ndarray:
    """Quantile of numbers with uniform logarithm and mean square 1.

    s = a κ^share with a² = 2 ln κ / (κ² - 1), from a to a κ, for κ > 1.

    >>> values = log_uniform_quantile(np.linspace(0, 1, 3), 100.0)
    >>> [round(float(value), 4) for value in values / values[0]]
    [1.0, 10.0, 100.0]
    """
    smallest = math.sqrt(2 * math.log(condition) / (condition**2 - 1))
    return smallest * np.asarray(condition) ** share


def condition_of_aspect(aspect: float) -> float:
    """κ = λ+ / λ- = (1 + sqrt λ) / |1 - sqrt λ|; infinite at λ = 1.

    >>> condition_of_aspect(4.0)
    3.0
    """
    low, high = edges(aspect)
    return high / low if low > 0 else math.inf


def aspect_of_condition(condition: float) -> float:
    """The λ < 1 with this condition number, sqrt λ = (κ - 1) / (κ + 1); 1 / λ has it too.

    >>> round(condition_of_aspect(aspect_of_condition(5413)))
    5413
    """
    return ((condition - 1) / (condition + 1)) ** 2


def distance(values: np.ndarray, aspect: float) -> float:
    """Kolmogorov and Smirnov's distance of singular values from the law.

    It gives no test, since singular values are not independent.
    """
    from scipy.stats import ks_1samp  # half a second to load

    law = functools.partial(distribution, aspect=aspect)
    return float(ks_1samp(np.asarray(values, dtype=float), law).statistic)
