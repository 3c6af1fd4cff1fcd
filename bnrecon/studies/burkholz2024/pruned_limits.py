"""Derived errors of a layer rebuilt from fewer features than equations.

M has n rows and independent normal entries, the target is any, κ = k / n < 1 features are used.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import ndtri, xlogy


def random_error(share: float) -> float:
    """The relative error with k = share · n features drawn at random and least squares: √(1 - κ).

    Their span is a random subspace of k dimensions.

    >>> random_error(0.75), random_error(1.0)
    (0.5, 0.0)
    """
    return math.sqrt(max(0.0, 1 - share))


def magnitude_error(share: float, oversampling: float) -> float:
    """The error with the unchanged largest contributions of the minimum-norm solution x, n → ∞.

    Let b have norm 1, columns of M mean square 1, and λ = c1 / n. By the Marchenko-Pastur law
    ‖x‖² = bᵀ (M Mᵀ)⁻¹ b = s = 1 / (λ - 1). Given ‖x‖, all directions of x are equally likely, so
    its entries are normal, and the smallest, which are omitted, hold the share f of ‖x‖²
    (``_discarded_share``). The kept part of x is (1 - f) x + v with v ⟂ x and ‖v‖² = f (1 - f) s.
    The first term gives (1 - f) b; M v is nearly perpendicular to b and as long as v. Hence
    e² = f² + f (1 - f) s.

    >>> round(magnitude_error(1.35, 1.5), 3), round(magnitude_error(0.9, 1.5), 3)
    (0.032, 0.263)
    """
    discarded = _discarded_share(share / oversampling)
    return math.sqrt(discarded**2 + discarded * (1 - discarded) / (oversampling - 1))


def refit_error(share: float, oversampling: float) -> float:
    """The error with the same features and least squares, n → ∞; 0 from n features on.

    Given x, M = b xᵀ / s + N with N x = 0, and u = (M Mᵀ)⁻¹ b is perpendicular to the columns of N,
    which are otherwise independent and normal. By the same law (bᵀu / ‖u‖)² = (λ - 1) / λ. Scales y
    of the kept features, with t = xᵀy / s, leave (1 - t) b - N y, whose square along u is
    (1 - t)² (λ - 1) / λ. N y is -t times N on the omitted part of x, plus N on kept columns: for y
    to fit t, these must hold t f x / (1 - f) on the kept part of x; the rest is free and removes κ
    of the squares across u. Hence, with A = 1 - κ / λ and B = (1 - κ) s f / (1 - f), e² is the
    minimum of (1 - t)² A + t² B, which is A B / (A + B). For small f, it is (1 - κ) times the
    square of ``magnitude_error``.

    >>> round(refit_error(0.9, 1.5), 3), refit_error(1.2, 1.5)
    (0.085, 0.0)
    """
    if share >= 1:
        return 0.0
    discarded = _discarded_share(share / oversampling)
    of_target = 1 - share / oversampling
    of_rest = (1 - share) * discarded / ((1 - discarded) * (oversampling - 1))
    return math.sqrt(of_target * of_rest / (of_target + of_rest))


def _discarded_share(used: float) -> float:
    """The share of normal numbers' sum of squares in all but the largest ``used``."""
    used = min(1.0, used)
    threshold = -float(ndtri(used / 2))
    density = math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    return max(0.0, 1 - used - 2 * threshold * density)


def least_error(share: float, oversampling: float) -> float:
    """A lower bound on the error of any k = share · n among c1 = oversampling · n features, n → ∞.

    The squared error e² of one choice has the distribution Beta((n - k) / 2, k / 2). Among the
    (c1 over k) choices, one with at most e is expected only if, with λ = c1 / n and entropy H,
    λ H(κ / λ) + (1 - κ)/2 ln(e² / (1 - κ)) + κ/2 ln((1 - e²) / κ) >= 0; below that, the expected
    number vanishes exponentially in n. The bound does not say whether such a choice exists or can
    be found.

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
