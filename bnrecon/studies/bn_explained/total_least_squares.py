"""Hyperplanes and batches of points: distances, their mean square and the batch mean."""

from __future__ import annotations

import numpy as np

__all__ = [
    "DISPLACEMENTS",
    "batch_moments",
    "check_layer",
    "compare_thresholds",
    "distances",
    "mean_squared_distances",
]

DISPLACEMENTS = 8  # other thresholds that every unit's batch mean is compared with


def distances(points: np.ndarray, weight: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    """Distances |<w, v> - mu| / ||w|| of points to hyperplanes <w, v> = mu (Eq. 7).

    Args:
        points: (B, D).
        weight: rows w (K, D), none of them zero.
        threshold: mu (K,).

    Returns:
        (B, K).

    >>> distances(np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]]), np.array([2.0]))
    array([[3.]])
    """
    return np.abs(points @ weight.T - threshold) / np.linalg.norm(weight, axis=1)


def mean_squared_distances(
    points: np.ndarray, weight: np.ndarray, threshold: np.ndarray
) -> np.ndarray:
    """The total least squares distance L_k of each unit (K,): the left equality of Eq. 8."""
    return np.square(distances(points, weight, threshold)).mean(0)


def batch_moments(points: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (K,) of W z over the batch, the deviation by 1/B (Eq. 3)."""
    outputs = points @ weight.T
    return outputs.mean(0), outputs.std(0)


def compare_thresholds(
    points: np.ndarray, weight: np.ndarray, threshold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (t - mu) / sigma (K,) of thresholds t, and L_k(t) / L_k(mu) (K,), by distances.

    By Theorem 1 and Eq. 8 the ratio is 1 + offset².

    >>> points = np.array([[0.0], [2.0]])
    >>> compare_thresholds(points, np.array([[5.0]]), np.array([15.0]))
    (array([2.]), array([5.]))
    """
    mean, deviation = batch_moments(points, weight)
    losses = (mean_squared_distances(points, weight, values) for values in (threshold, mean))
    return (threshold - mean) / deviation, np.divide(*losses)


def check_layer(
    points: np.ndarray, weight: np.ndarray, mean: np.ndarray, generator: np.random.Generator
) -> dict[str, float]:
    """Compare what Theorem 1, Eq. 8 and Corollary 2 say of a layer with direct computations.

    Args:
        points: the layer's inputs (B, D).
        weight: its rows (K, D).
        mean: the batch mean mu (K,) that the normalization computes.
        generator: draws the other thresholds.

    Returns:
        ``minimizer_error``: largest difference to the least-squares solution, in sigma.
        ``value_error``: largest relative difference of L_k(mu) to sigma² / ||w||².
        ``excess_error``: largest relative difference of L_k(t) - L_k(mu) to (t - mu)² / ||w||²,
        relative to L_k(t).
        ``better``: how many other thresholds t have a smaller L_k; Theorem 1 says none.
        ``centre_error``: largest distance of the mean of the inputs to a hyperplane, relative to
        the unit's root mean squared distance.
    """
    outputs = points @ weight.T
    _, deviation = batch_moments(points, weight)
    norms = np.linalg.norm(weight, axis=1)
    solution = np.linalg.lstsq(np.ones((len(points), 1)), outputs, rcond=None)[0][0]
    value = mean_squared_distances(points, weight, mean)
    excess, better = 0.0, 0
    for _ in range(DISPLACEMENTS):
        other = mean + deviation * generator.normal(size=len(mean))
        loss = mean_squared_distances(points, weight, other)
        expected = np.square((other - mean) / norms)
        excess = max(excess, float((np.abs(loss - value - expected) / loss).max()))
        better += int((loss < value).sum())
    centre = distances(points.mean(0, keepdims=True), weight, mean)[0]
    return {
        "minimizer_error": float((np.abs(solution - mean) / deviation).max()),
        "value_error": float(np.abs(value / np.square(deviation / norms) - 1).max()),
        "excess_error": excess,
        "better": better,
        "centre_error": float((centre * norms / deviation).max()),
    }
