"""Variances of a mini-batch's mean and variance, by formula and by sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CHUNK = 2**15  # outputs at a time


def variance_of_variance(variance: float, fourth: float, batch: int) -> float:
    """Variance (phi4 - sigma⁴ (B - 3) / (B - 1)) / B of the unbiased sample variance.

    This is Eq. 13, right. For Eq. 3's variance, which divides by B instead of B - 1, multiply by
    ``biased(batch)``.

    Args:
        variance: sigma² of a sample.
        fourth: phi4, its fourth central moment.
        batch: B, at least 2.

    >>> variance_of_variance(1.0, 3.0, 2)  # normal: 2 sigma⁴ / (B - 1)
    2.0
    """
    return (fourth - variance**2 * (batch - 3) / (batch - 1)) / batch


def biased(batch: int) -> float:
    """((B - 1) / B)²: converts the unbiased variance's variance to that of Eq. 3's.

    >>> biased(2)
    0.25
    """
    return ((batch - 1) / batch) ** 2


def finite_population(batch: int, population: int) -> float:
    """(N - B) / (N - 1): the factor on var(mu) for batches without replacement."""
    return (population - batch) / (population - 1)


def variance_of_drawn_variance(
    variance: float, fourth: float, batch: int, population: int
) -> float:
    """Variance of the unbiased variance of B out of N numbers, drawn without replacement.

    (1/B - 1/N) K4 + 2 (1/(B - 1) - 1/(N - 1)) K22 with Tukey's polykays of the N numbers ("Some
    sampling simplified", 1950). For N → ∞, it is ``variance_of_variance``.

    Args:
        variance: the N numbers' variance, with 1/N.
        fourth: their fourth central moment.
        batch: B, at least 2.
        population: N, at least 4.
    """
    n = population
    second = variance * n / (n - 1)
    k4 = n**2 * ((n + 1) * fourth - 3 * (n - 1) * variance**2)
    k4 /= (n - 1) * (n - 2) * (n - 3)
    k22 = (second**2 - k4 / n) * (n - 1) / (n + 1)
    return (1 / batch - 1 / n) * k4 + 2 * (1 / (batch - 1) - 1 / (n - 1)) * k22


def measure_statistics(
    sample: Callable[[int], np.ndarray], batch: int, draws: int
) -> dict[str, float]:
    """Variances of mu and sigma² (Eq. 3) over mini-batches.

    Args:
        sample: maps n to the outputs (n, B) of n mini-batches.
        batch: B.
        draws: the number of mini-batches.

    Returns:
        ``measured_mean`` and ``measured_variance``, the variances of mu and sigma²;
        ``mean_error`` and ``variance_error``, their standard errors; ``own_variance`` and
        ``own_fourth``, central moments of the outputs over all mini-batches.
    """
    means, variances, powers, remaining = [], [], np.zeros(4), draws
    while remaining:
        size = min(remaining, max(1, CHUNK // batch))
        outputs = sample(size)
        means.append(outputs.mean(1))
        variances.append(outputs.var(1))  # 1/B, as in Eq. 3
        powers += [np.sum(outputs**power) for power in range(1, 5)]
        remaining -= size
    m1, m2, m3, m4 = powers / (draws * batch)
    moments = {
        "own_variance": float(m2 - m1**2),
        "own_fourth": float(m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4),
    }
    for name, values in (("mean", means), ("variance", variances)):
        variance, error = sample_variance(np.concatenate(values))
        moments |= {f"measured_{name}": variance, f"{name}_error": error}
    return moments


def sample_variance(values: np.ndarray) -> tuple[float, float]:
    """The unbiased variance of values (N,), and its standard error sqrt((m4 - m2²) / N).

    >>> sample_variance(np.array([0.0, 2.0]))
    (2.0, 0.0)
    """
    squares = np.square(values - values.mean())
    return float(squares.sum() / (len(values) - 1)), float(squares.std() / len(values) ** 0.5)
