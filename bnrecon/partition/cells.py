"""Subdivision of convex polygons into the cells on which each unit is affine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bnrecon.partition.polygons import Polygons, clip, concatenate

# Lengths are in units of half the window's larger side. A vertex nearer to a line than TOLERANCE
# lies on it, and a polygon is cut only if it reaches further on both sides: lines that coincide up
# to rounding give one cut, and concurrent lines meet in one vertex.
TOLERANCE = 1e-10
# A unit whose values differ by less than FLOOR times the largest value of its layer is constant:
# its remaining gradient is the rounding error of the sum that computed it.
FLOOR = 1e-13
PAIRS = 2**17  # of a polygon and a unit, cut at once; each takes about 1 kB


@dataclass(frozen=True, eq=False)
class Units:
    """K pairs of a polygon and a unit that is not affine on it: the maximum of m affine functions.

    An activation with a kink at 0 is affine where one of z and 0 is the larger: m = 2. A pooling
    over m values has the m values.
    """

    functions: np.ndarray  # (K, m, 3), each one's value at the origin and two partial derivatives
    floor: np.ndarray  # (K,), the values' rounding error

    def difference(self, which: np.ndarray, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Function i minus function j of these units (n, 3), and its tolerance (n,)."""
        line = self.functions[which, i] - self.functions[which, j]
        return line, thresholds(line, self.floor[which])

    def cut(self, which: np.ndarray, vertices: np.ndarray) -> np.ndarray:
        """Whether none of a unit's functions is the largest on the whole polygon: mask (n,).

        Args:
            which: (n,), indices of units.
            vertices: (n, V, 2), their polygons.
        """
        size = self.functions.shape[1]
        largest = np.ones((size, len(which)), dtype=bool)
        for i in range(size):
            for j in range(i + 1, size):
                line, tolerance = self.difference(which, i, j)
                values = values_at(line, vertices)
                largest[i] &= values.min(1) >= -tolerance
                largest[j] &= values.max(1) <= tolerance
        return np.logical_not(largest.any(0))

    def cell(self, which: np.ndarray, polygons: Polygons, i: int) -> tuple[Polygons, np.ndarray]:
        """The part of each polygon where function i of its unit is the largest.

        Returns:
            The nonempty parts, and the indices of their polygons.
        """
        rows = np.arange(len(which))
        for j in range(self.functions.shape[1]):
            if j == i:
                continue
            line, tolerance = self.difference(which[rows], i, j)
            values = values_at(line, polygons.vertices)
            # If functions are equal on the whole polygon, the first is taken.
            same = (np.abs(values) <= tolerance[:, None]).all(1, keepdims=True)
            larger = tolerance[:, None] + 1 if i < j else 0.0
            polygons, kept = clip(polygons, np.where(same, larger, values), tolerance)
            rows = rows[kept]
        return polygons, rows


def thresholds(lines: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """The value up to which an affine function (..., 3) counts as 0."""
    return np.maximum(TOLERANCE * np.hypot(lines[..., 1], lines[..., 2]), floor)


def values_at(lines: np.ndarray, vertices: np.ndarray) -> np.ndarray:
    """Affine functions (K, 3) at their polygons' vertices (K, V, 2): values (K, V)."""
    x, y = vertices[:, :, 0], vertices[:, :, 1]
    return lines[:, None, 0] + lines[:, None, 1] * x + lines[:, None, 2] * y


def crossings(values: np.ndarray, tolerance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether zero lines cross polygons, or run along an edge from inside positive: two masks.

    ``values`` (R, V, ...) are at the polygons' vertices, up to ``tolerance`` (R, ...) from 0.
    """
    above = np.asarray((values > tolerance[:, None]).any(1))
    below = np.asarray((values < -tolerance[:, None]).any(1))
    touching = (np.abs(values) <= tolerance[:, None]).sum(1) >= 2
    return above & below, above & ~below & touching


def subdivide(
    polygons: Polygons, owner: np.ndarray, units: Units, count: Callable[[int], None]
) -> tuple[Polygons, np.ndarray]:
    """Cut polygons until every unit is affine on every part.

    Every round cuts each remaining polygon by one of its units, as many polygons at once as have
    ``PAIRS`` units, and passes the other units to the parts that they still cut. In random order
    the rounds are about logarithmic in the number of units (a binary space partition).

    Args:
        polygons: R polygons.
        owner: (K,), the polygon that each unit cuts.
        units: K units.
        count: called with the change in the number of polygons, in every round.

    Returns:
        The parts, and the indices (parts,) of their polygons.
    """
    which = np.random.default_rng(0).permutation(len(owner))
    order = np.argsort(owner[which], kind="stable")
    which, owner = which[order], owner[which][order]
    busy = np.zeros(len(polygons), dtype=bool)
    busy[owner] = True
    done, parents = [polygons.take(~busy)], [np.flatnonzero(~busy)]
    active, parent = polygons.take(busy), np.flatnonzero(busy)
    stack = [(active, parent, (np.cumsum(busy) - 1)[owner], which)]
    while stack:
        active, parent, owner, which = stack.pop()
        if not len(active):
            continue
        if len(owner) > PAIRS and len(active) > 1:
            half = len(active) // 2
            middle = np.searchsorted(owner, half)
            for some, pairs in (
                (np.arange(half, len(active)), slice(middle, None)),
                (np.arange(half), slice(middle)),
            ):
                part = owner[pairs] - some[0]
                stack.append((active.take(some), parent[some], part, which[pairs]))
            continue
        is_first = np.diff(owner, prepend=-1) > 0  # owners are sorted
        first, rest, rest_owner = which[is_first], which[~is_first], owner[~is_first]
        parts, part_parents, part_units, part_owners, start = [], [], [], [], 0
        count(-len(active))
        for i in range(units.functions.shape[1]):
            cell, rows = units.cell(first, active, i)
            count(len(cell))
            index = np.full(len(active), -1)
            index[rows] = np.arange(len(rows))
            cell_owner = index[rest_owner]
            inside = cell_owner >= 0
            remaining, cell_owner = rest[inside], cell_owner[inside]
            cut = units.cut(remaining, cell.vertices[cell_owner])
            remaining, cell_owner = remaining[cut], cell_owner[cut]
            busy = np.zeros(len(cell), dtype=bool)
            busy[cell_owner] = True
            done.append(cell.take(~busy))
            parents.append(parent[rows[~busy]])
            parts.append(cell.take(busy))
            part_parents.append(parent[rows[busy]])
            part_units.append(remaining)
            part_owners.append((np.cumsum(busy) - 1)[cell_owner] + start)
            start += int(busy.sum())
        active, parent = concatenate(parts), np.concatenate(part_parents)
        owner, which = np.concatenate(part_owners), np.concatenate(part_units)
        order = np.argsort(owner, kind="stable")
        stack.append((active, parent, owner[order], which[order]))
    return concatenate(done), np.concatenate(parents)
