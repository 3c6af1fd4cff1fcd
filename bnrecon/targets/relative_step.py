"""How far a step of SGD moves a layer behind a normalization, relative to its weight.

Derived in ``relative_step.md`` beside this file.
"""

from __future__ import annotations


def start_factor(fan_in: int, as_weights: bool, start: str, step: float) -> float:
    """What the usual start of a layer's trained numbers is multiplied by.

    Args:
        fan_in: f = c0 kh kw.
        as_weights: the usual start is that of PyTorch's weights, of root mean square
            1 / sqrt(3 f); it is 1 otherwise.
        start: the wanted root mean square: ``usual``, ``ones`` (1) or ``weights``.
        step: the start is divided by its root, so that relative steps are so many times as long.

    >>> round(start_factor(144, as_weights=False, start="weights", step=1) ** -2)
    432
    >>> start_factor(144, as_weights=True, start="weights", step=4)
    0.5
    """
    weights = (3 * fan_in) ** -0.5
    usual = weights if as_weights else 1.0
    return {"usual": usual, "ones": 1.0, "weights": weights}[start] / usual / step**0.5
