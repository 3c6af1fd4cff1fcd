"""A two-dimensional slice of a network's input space, with a convex window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.torch_modes import outside_torch_modes


@dataclass(frozen=True, eq=False)
class Slice:
    """The inputs ``origin + s u + t v`` for (s, t) in a convex window.

    u and v are orthonormal: a distance in the slice is the distance in the input space.

    Attributes:
        origin: an input, of the network's input shape, float64.
        directions: (2, *input shape), u and v.
        window: (k, 2), the window's vertices (s, t), counterclockwise.
    """

    origin: torch.Tensor
    directions: torch.Tensor
    window: np.ndarray

    def inputs(self, coordinates: np.ndarray | Sequence[Sequence[float]]) -> torch.Tensor:
        """The inputs (n, *input shape), float64, at coordinates (n, 2)."""
        at = torch.from_numpy(np.array(coordinates, dtype=np.float64).reshape(-1, 2))
        return self.origin + torch.tensordot(at, self.directions, dims=1)

    def coordinates(self, inputs: torch.Tensor) -> np.ndarray:
        """The coordinates (n, 2) of inputs (n, *input shape), projected onto the slice's plane."""
        offsets = (inputs.detach().cpu().double() - self.origin).flatten(1)
        return (offsets @ self.directions.flatten(1).T).numpy()


@outside_torch_modes
def slice_of(
    points: torch.Tensor | np.ndarray | Sequence[Sequence[float]],
    window: np.ndarray | Sequence[Sequence[float]] | None = None,
    *,
    margin: float = 0.5,
    seed: int = 0,
) -> Slice:
    """The slice through one, two or three inputs.

    The first input has the coordinates (0, 0), the second is on the s-axis. With one or two inputs,
    the remaining directions are random: standard normal, then made orthonormal.

    Args:
        points: (1 to 3, *input shape), not on one line.
        window: (k, 2), the vertices of a convex polygon in the slice's coordinates. By default
            the bounding rectangle of the points; one point needs a window.
        margin: how far the default window extends the rectangle, relative to its larger side.
        seed: of the random directions.

    Raises:
        UserError: more points, points on one line, or one point without a window.

    >>> plane = slice_of([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [0.0, 1.0, 1.0]], margin=0.0)
    >>> plane.window.tolist()
    [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0]]
    """
    anchors = _inputs(points)
    count = len(anchors)
    if not 1 <= count <= 3:
        raise UserError(f"points: {count} of them; a plane goes through 1, 2 or 3")
    if count == 1 and window is None:
        raise UserError("window: one point has no extent; give the window, as rectangle(low, high)")
    generator = torch.Generator().manual_seed(seed)
    shape = (3 - count, *anchors.shape[1:])
    random = torch.randn(shape, generator=generator, dtype=torch.float64)
    directions = torch.cat([anchors[1:] - anchors[0], random])
    plane = slice_along(anchors[0], directions, rectangle((0, 0), (1, 1)))
    if window is None:
        corners = plane.coordinates(anchors)
        low, high = corners.min(0), corners.max(0)
        beyond = margin * (high - low).max()
        window = rectangle(low - beyond, high + beyond)
    return Slice(plane.origin, plane.directions, _convex(window))


def slice_along(
    origin: torch.Tensor | np.ndarray | Sequence[float],
    directions: torch.Tensor | np.ndarray | Sequence[Sequence[float]],
    window: np.ndarray | Sequence[Sequence[float]],
) -> Slice:
    """The slice through ``origin`` along two directions.

    Args:
        origin: an input, of the network's input shape.
        directions: (2, *input shape), not parallel. They are made orthonormal (Gram-Schmidt).
        window: (k, 2), the vertices of a convex polygon in the orthonormal coordinates.

    Raises:
        UserError: the directions are parallel or of another shape, or the window is not convex.

    The whole plane of a network with two inputs, from (-1, -1) to (1, 1):

    >>> square = slice_along([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], rectangle((-1, -1), (1, 1)))
    >>> square.inputs([[0.5, 0.25]]).tolist()
    [[0.5, 0.25]]
    """
    start, along = _inputs(origin), _inputs(directions)
    if along.shape != (2, *start.shape):
        raise UserError(
            f"directions: shape {tuple(along.shape)}; an origin of shape {tuple(start.shape)} "
            f"needs {(2, *start.shape)}"
        )
    first, second = along.flatten(1)
    u = first / first.norm()
    # Twice: once leaves an angle off by rounding if the directions are nearly parallel.
    v = second - (second @ u) * u
    v = v - (v @ u) * u
    if not bool(v.norm() > 1e-12 * second.norm()):
        raise UserError("directions: zero or parallel; a plane needs two that are independent")
    orthonormal = torch.stack([u, v / v.norm()]).reshape(along.shape)
    return Slice(start, orthonormal, _convex(window))


def rectangle(low: Sequence[float] | np.ndarray, high: Sequence[float] | np.ndarray) -> np.ndarray:
    """The window (4, 2) from the corner ``low`` to the corner ``high``."""
    (left, bottom), (right, top) = low, high
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]], dtype=float)


def _inputs(inputs: torch.Tensor | np.ndarray | Sequence) -> torch.Tensor:
    if not isinstance(inputs, torch.Tensor):
        inputs = torch.from_numpy(np.array(inputs, dtype=np.float64))
    return inputs.detach().cpu().double()


def _convex(window: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    """The window counterclockwise; raises ``UserError`` if it is not convex."""
    corners = np.array(window, dtype=np.float64)
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
        raise UserError(f"window: shape {corners.shape}; give (k, 2) with at least 3 vertices")
    sides = np.roll(corners, -1, 0) - corners
    after = np.roll(sides, -1, 0)
    turns = sides[:, 0] * after[:, 1] - sides[:, 1] * after[:, 0]
    if np.all(turns < 0):
        return _convex(corners[::-1].copy())
    # Once around: a star turns like a convex polygon, but more often.
    angles = np.arctan2(turns, (sides * after).sum(1))
    if not np.all(turns > 0) or angles.sum() > 3 * np.pi:
        raise UserError("window: not a convex polygon with distinct corners, in order around it")
    return corners
