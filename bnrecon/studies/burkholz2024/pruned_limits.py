"""What is known of a layer that is rebuilt from fewer features than equations.

M has n rows and independent normal entries, the target is any, κ = k / n < 1 features are used.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import ndtri, xlogy

__all__ = ["least_error", "magnitude_error", "random_error", "refit_error"]


def random_error(share: float) -> float:
    """The relative error with k = share · n features drawn at random and least squares: √(1 - κ).

    Their span is a random subspace of k dimensions.

    >>> random_error(0.75), random_error(1.0)
    (0.5, 0.0)
    """
    return math.sqrt(max(0.0, 1 - share))


def magnitude_error(share: float, oversampling: float) -> float:
    """An estimate for the largest contributions of the minimum-norm solution, as they are.

    With columns of norm 1 and ‖b‖ = 1 it has ‖x‖² = bᵀ (M Mᵀ)⁻¹ b = 1 / (λ - 1), λ = c1 / n, by the
    Marchenko-Pastur law. Its entries are taken to be normal, and the columns of those left out to
    add up as independent ones: e² is the share of ‖x‖² that the smallest entries hold, over λ - 1.

    >>> round(magnitude_error(1.35, 1.5), 3), round(magnitude_error(0.9, 1.5), 3)
    (0.032, 0.266)
    """
    used = min(1.0, share / oversampling)
    threshold = -float(ndtri(used / 2))
    density = math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    left_out = max(0.0, 1 - used - 2 * threshold * density)
    return math.sqrt(left_out / (oversampling - 1))


def refit_error(share: float, oversampling: float) -> float:
    """The same with new scales: √(1 - κ) times as large.

    What was left out is taken to be independent of the columns kept, whose span takes κ of its
    square away.

    >>> round(refit_error(0.9, 1.5), 3)
    0.084
    """
    return magnitude_error(share, oversampling) * random_error(share)


def least_error(share: float, oversampling: float) -> float:
    """What no choice of k = share · n among c1 = oversampling · n features falls below, n → ∞.

    The squared error e² of one choice has the distribution Beta((n - k) / 2, k / 2). Among the
    (c1 over k) choices one with at most e is expected only where, with λ = c1 / n and H the
    entropy,
    λ H(κ / λ) + (1 - κ)/2 ln(e² / (1 - κ)) + κ/2 ln((1 - e²) / κ) >= 0; below that the expected
    number vanishes exponentially in n. Whether such a choice exists is another question, and
    whether it can be found.

    >>> f"{least_error(0.9, 1.5):.0e}, {least_error(0.6, 1.5):.2f}, {least_error(0.5, 0.5):.3f}"
    '8e-06, 0.03, 0.707'
    """
    if share >= 1:
        return 0.0
    used = share / oversampling
    choices = -oversampling * float(xlogy(used, used) + xlogy(1 - used, 1 - used))

    def expected(exponent: float) -> float:
        """The logarithm over n of the expected number, at e² = exp(exponent)."""
        near = (1 - share) / 2 * (exponent - math.log(1 - share))
        return choices + near + share / 2 * (math.log1p(-math.exp(exponent)) - math.log(share))

    highest = math.log(1 - share)
    if choices <= 0:
        return math.exp(highest / 2)
    lowest = highest - 2 * (choices + 1) / (1 - share)
    return math.exp(brentq(expected, lowest, highest) / 2)
