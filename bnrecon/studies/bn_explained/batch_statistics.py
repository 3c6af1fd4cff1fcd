"""Variances of a mini-batch's mean and variance, and noise that mimics a smaller mini-batch."""

from __future__ import annotations

__all__ = [
    "additive_variance",
    "biased",
    "chi_square_freedom",
    "finite_population",
    "variance_of_mean",
    "variance_of_variance",
]


def variance_of_mean(variance: float, batch: int) -> float:
    """var(mu) = sigma² / B of B independent samples (Eq. 13, left)."""
    return variance / batch


def variance_of_variance(variance: float, fourth: float, batch: int) -> float:
    """Variance (phi4 - sigma⁴ (B - 3) / (B - 1)) / B of the unbiased sample variance.

    This is Eq. 13, right. For the variance of Eq. 3, which divides by B and not by B - 1,
    multiply by ``biased(batch)``.

    Args:
        variance: sigma² of a sample.
        fourth: phi4, its fourth central moment.
        batch: B, at least 2.

    >>> variance_of_variance(1.0, 3.0, 2)  # normal: 2 sigma⁴ / (B - 1)
    2.0
    """
    return (fourth - variance**2 * (batch - 3) / (batch - 1)) / batch


def biased(batch: int) -> float:
    """((B - 1) / B)²: from the unbiased variance's variance to that of Eq. 3's.

    >>> biased(2)
    0.25
    """
    return ((batch - 1) / batch) ** 2


def finite_population(batch: int, population: int) -> float:
    """(N - B) / (N - 1): by which var(mu) is smaller for batches without replacement."""
    return (population - batch) / (population - 1)


def additive_variance(variance: float, batch: int, virtual: int) -> float:
    """Variance of the additive noise that raises var(mu) from a batch to a virtual one."""
    return variance_of_mean(variance, virtual) - variance_of_mean(variance, batch)


def chi_square_freedom(variance: float, fourth: float, batch: int, virtual: int) -> float:
    """Degrees of freedom nu of the factor chi²_nu / nu that sigma² of a batch is multiplied by.

    The factor c has mean 1 and E c² = 1 + 2 / nu, so that
    var(c s) = (var s + m²) (1 + 2 / nu) - m² with m = E s. This is set to the variance of the
    virtual batch; s is the variance of Eq. 3.

    Args:
        variance: sigma² of a sample.
        fourth: its fourth central moment.
        batch: B.
        virtual: the smaller batch B' whose variance is wanted.

    >>> chi_square_freedom(1.0, 3.0, 64, 32)
    67.13...
    """
    own = variance_of_variance(variance, fourth, batch) * biased(batch)
    wanted = variance_of_variance(variance, fourth, virtual) * biased(virtual)
    square = ((batch - 1) / batch * variance) ** 2
    return 2 * (own + square) / (wanted - own)
