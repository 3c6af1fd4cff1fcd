"""Decision boundaries in the plane as segments, and distances from and between them."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from bnrecon.partition import Slice, partition, set_statistics


def decision_boundary(network: nn.Module, inputs: torch.Tensor, plane: Slice) -> np.ndarray:
    """Where the output is zero with the mu and sigma of these inputs: segments (S, 2, 2), exact.

    Of a network of one output, which is not changed, and inputs (B, *input shape).
    """
    normalized = set_statistics(copy.deepcopy(network), inputs)
    return partition(normalized, plane).zero_set(0)


def distances_to(points: np.ndarray, boundary: np.ndarray) -> np.ndarray:
    """The distance of each point (n, 2) to the nearest of segments (S, 2, 2): (n,).

    Infinite where there is none.

    >>> distances_to(np.array([[0.0, 3.0], [5.0, 0.0]]), np.array([[[0.0, 0.0], [1.0, 0.0]]]))
    array([3., 4.])
    """
    start, along = boundary[:, 0], boundary[:, 1] - boundary[:, 0]
    beside = points[:, None] - start
    share = np.clip((beside * along).sum(2) / (along**2).sum(1), 0, 1)
    return np.linalg.norm(beside - share[..., None] * along, axis=2).min(1, initial=np.inf)


def distance_between(one: np.ndarray, other: np.ndarray, spacing: float) -> float:
    """The symmetric mean distance of two boundaries.

    The mean over one boundary (S, 2, 2), by length, of the distance to the other (T, 2, 2), and the
    other way round, averaged; ``spacing`` is the integrals' step, at most. NaN where a boundary has
    no segment.

    >>> floor = np.array([[[0.0, 0.0], [1.0, 0.0]]])
    >>> round(distance_between(floor, floor + [0.0, 0.25], 0.1), 3)
    0.25
    """
    if not (len(one) and len(other)):
        return float("nan")
    return (_mean_distance(one, other, spacing) + _mean_distance(other, one, spacing)) / 2


def _mean_distance(boundary: np.ndarray, other: np.ndarray, spacing: float) -> float:
    """By the midpoint rule on every segment."""
    lengths = np.linalg.norm(boundary[:, 1] - boundary[:, 0], axis=1)
    pieces = np.ceil(lengths / spacing).astype(int)
    which = np.repeat(np.arange(len(boundary)), pieces)
    number = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    share = ((number + 0.5) / pieces[which])[:, None]
    points = (1 - share) * boundary[which, 0] + share * boundary[which, 1]
    weights = (lengths / pieces)[which]
    return float((distances_to(points, other) * weights).sum() / weights.sum())
