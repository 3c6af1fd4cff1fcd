"""The star of Figure 3: 50 points on its outline, and where folded hyperplanes are counted."""

from __future__ import annotations

import numpy as np

__all__ = ["CENTRE", "REACH", "draw_star", "grid", "turned"]

CENTRE = (1.0, 1.0)  # off the origin, where all folded hyperplanes of zero bias meet
REACH = 2.5  # the window is [-REACH, REACH]²
INNER = (3 - 5**0.5) / 2  # radius of the inner corners: the sides of a pentagram


def draw_star(seed: int, count: int = 50) -> np.ndarray:
    """Points (count, 2), uniform on the outline of a pentagram of radius 1 around ``CENTRE``.

    >>> bool((np.linalg.norm(draw_star(0) - CENTRE, axis=1) <= 1).all())
    True
    """
    corner = np.arange(11)
    radius = np.where(corner % 2, INNER, 1.0)
    angle = np.pi * (0.5 + corner / 5)
    corners = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    generator = np.random.Generator(np.random.Philox(key=(seed, 2)))
    place = generator.uniform(0, 10, count)
    side = place.astype(int)
    along = (place - side)[:, None]
    return CENTRE + (1 - along) * corners[side] + along * corners[side + 1]


def turned(points: np.ndarray) -> np.ndarray:
    """Points (n, 2) turned about the origin by 90, 180 and 270 degrees: (3 n, 2).

    Where the law of a network's weights and biases is invariant under rotations and the network
    does not know the points, as many folded hyperplanes pass by these as by the points themselves,
    on average.
    """
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.concatenate([points @ np.linalg.matrix_power(quarter, k) for k in (1, 2, 3)])


def grid(side: int) -> np.ndarray:
    """Centres (side², 2) of the window's cells, row by row from below."""
    line = REACH * ((2 * np.arange(side) + 1) / side - 1)
    return np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
