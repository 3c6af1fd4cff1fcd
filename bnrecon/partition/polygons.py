"""Many convex polygons at once: clipping, chords, areas, centres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Polygons:
    """R convex polygons, counterclockwise.

    Attributes:
        vertices: (R, V, 2), padded with each polygon's first vertex: the pads are edges of length
            0, so that the last edge needs no special case.
        counts: (R,), the number of vertices.
    """

    vertices: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, index: np.ndarray) -> Polygons:
        """Select polygons by indices or a mask."""
        counts = self.counts[index]
        return Polygons(self.vertices[index][:, : max(counts, default=1)], counts)

    def centres(self) -> np.ndarray:
        """The mean of each polygon's vertices (R, 2): a point inside."""
        pads = self.vertices.shape[1] - self.counts
        total = self.vertices.sum(1) - pads[:, None] * self.vertices[:, 0]
        return total / self.counts[:, None]

    def areas(self) -> np.ndarray:
        """Each polygon's area (R,), by the shoelace formula around its first vertex."""
        x, y = np.moveaxis(self.vertices - self.vertices[:, :1], 2, 0)
        return 0.5 * (x * np.roll(y, -1, 1) - y * np.roll(x, -1, 1)).sum(1)


def concatenate(parts: Sequence[Polygons]) -> Polygons:
    """Concatenate polygons, padded to one width."""
    width = max((part.vertices.shape[1] for part in parts), default=1)
    padded = [
        np.concatenate(
            [part.vertices, np.repeat(part.vertices[:, :1], width - part.vertices.shape[1], 1)], 1
        )
        for part in parts
        if len(part)
    ]
    if not padded:
        return Polygons(np.zeros((0, 1, 2)), np.zeros(0, dtype=int))
    return Polygons(np.concatenate(padded), np.concatenate([part.counts for part in parts]))


def signed(values: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
    """The values (R, V), 0 for vertices on the line up to the tolerance (R,)."""
    return np.where(np.abs(values) <= tolerance[:, None], 0.0, values)


def _with_crossings(vertices: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each vertex followed by the zero on its next edge: points (R, 2V, 2), and which exist.

    An edge's zero depends only on both ends' values, so that both sides of a cut get the same
    point.
    """
    following, values_after = np.roll(vertices, -1, 1), np.roll(values, -1, 1)
    crossed = values * values_after < 0
    share = values / np.where(crossed, values - values_after, 1.0)
    zeros = vertices + (following - vertices) * share[..., None]
    rows, width = values.shape
    points = np.stack([vertices, zeros], 2).reshape(rows, 2 * width, 2)
    return points, crossed


def clip(
    polygons: Polygons, values: np.ndarray, tolerance: np.ndarray
) -> tuple[Polygons, np.ndarray]:
    """Keep the part of each polygon where an affine function is positive.

    Args:
        polygons: R polygons.
        values: (R, V), the function at the vertices.
        tolerance: (R,), up to which a value counts as 0. Polygons without a larger value are
            dropped.

    Returns:
        The parts, and the indices of their polygons.
    """
    rows = np.flatnonzero((values > tolerance[:, None]).any(1))
    polygons, at_vertices = polygons.take(rows), signed(values[rows], tolerance[rows])
    at_vertices = at_vertices[:, : polygons.vertices.shape[1]]
    points, crossed = _with_crossings(polygons.vertices, at_vertices)
    real = np.arange(at_vertices.shape[1]) < polygons.counts[:, None]
    kept = np.stack([real & (at_vertices >= 0), crossed], 2).reshape(points.shape[:2])
    counts = kept.sum(1)
    first = points[np.arange(len(rows)), kept.argmax(1)]
    vertices = np.repeat(first[:, None], max(counts, default=1), 1)
    row, slot = np.nonzero(kept)
    vertices[row, (np.cumsum(kept, 1) - 1)[row, slot]] = points[row, slot]
    return Polygons(vertices, counts), rows


def chords(
    polygons: Polygons, values: np.ndarray, gradient: np.ndarray, tolerance: np.ndarray
) -> np.ndarray:
    """Where an affine function's zero line crosses each polygon: both ends (R, 2, 2).

    Args:
        polygons: R polygons, each crossed by its line or touched by it along an edge.
        values: (R, V), the function at the vertices.
        gradient: (R, 2), the function's, not 0.
        tolerance: (R,), up to which a value counts as 0.
    """
    values = signed(values, tolerance)
    points, crossed = _with_crossings(polygons.vertices, values)
    on_line = np.stack([values == 0, crossed], 2).reshape(points.shape[:2])
    direction = np.stack([-gradient[:, 1], gradient[:, 0]], 1)
    along = np.einsum("rvi,ri->rv", points, direction)
    row = np.arange(len(values))
    start = np.where(on_line, along, np.inf).argmin(1)
    end = np.where(on_line, along, -np.inf).argmax(1)
    return np.stack([points[row, start], points[row, end]], 1)
