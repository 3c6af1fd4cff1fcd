"""Theorem 2.2's density as it is printed, and what it lacks."""

from __future__ import annotations

import math

import numpy as np


def printed_edges(aspect: float) -> tuple[float, float]:
    """The edges λ- = 1 - sqrt(λ) and λ+ for λ = max(n/c1, c1/n), the aspect being c1/n.

    The text has λ+² = 1 + sqrt(λ); λ+ = 1 + sqrt(λ) is meant.

    >>> printed_edges(1.0)
    (0.0, 2.0)
    """
    root = math.sqrt(max(aspect, 1 / aspect))
    return abs(1 - root), 1 + root


def printed_density(x: np.ndarray, aspect: float) -> np.ndarray:
    """sqrt((x² - λ-²)(λ+² - x²)) / (λ π x) with ``printed_edges``."""
    low, high = printed_edges(aspect)
    x = np.asarray(x, dtype=float)
    inside = np.clip((x**2 - low**2) * (high**2 - x**2), 0, None)
    return np.sqrt(inside) / (max(aspect, 1 / aspect) * math.pi * x)


def printed_distribution(x: np.ndarray, aspect: float) -> np.ndarray:
    """The integral of ``printed_density`` up to x, over its mass: the law without its atom at 0.

    >>> printed_distribution(np.array([0.0, 1.0, 2.0]), 1.0).round(3)
    array([0.   , 0.609, 1.   ])
    """
    low, high = printed_edges(aspect)
    angle = np.linspace(0, math.pi, 4001)[1:-1]  # dense at both edges
    grid = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    weights = printed_density(grid, aspect) * np.sin(angle)
    return np.interp(x, grid, np.cumsum(weights) / weights.sum(), left=0, right=1)
