"""The SGD step of a layer before a normalization, relative to its weight.

Derived in ``relative_step.md`` in this folder.
"""

from __future__ import annotations


def start_factor(fan_in: int, as_weights: bool, start: str, step: float) -> float:
    """The factor on the usual initial values of a layer's trained parameters.

    Args:
        fan_in: f = c0 kh kw.
        as_weights: whether the usual values are PyTorch's weights, of root mean square
            1 / sqrt(3 f); they are 1 otherwise.
        start: the desired root mean square: ``usual``, ``ones`` (1) or ``weights``.
        step: divides the start by its square root; relative steps are ``step`` times as long.

    >>> round(start_factor(144, as_weights=False, start="weights", step=1) ** -2)
    432
    >>> start_factor(144, as_weights=True, start="weights", step=4)
    0.5
    """
    weights = (3 * fan_in) ** -0.5
    usual = weights if as_weights else 1.0
    return {"usual": usual, "ones": 1.0, "weights": weights}[start] / usual / step**0.5
