"""The exact partition of a slice by a network: regions are subdivided layer by layer."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import fx, nn

from bnrecon.partition.cells import (
    FLOOR,
    TOLERANCE,
    Units,
    crossings,
    subdivide,
    thresholds,
    values_at,
)
from bnrecon.partition.convolution import FastConvolutions
from bnrecon.partition.forecasting import fitting_share, forecast
from bnrecon.partition.network import PiecewiseAffine, State
from bnrecon.partition.polygons import Polygons, chords, concatenate
from bnrecon.partition.result import Folds, Partition, Regions
from bnrecon.partition.slice import Slice
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.torch_modes import outside_torch_modes

NUMBERS = 2**20  # in the largest array of a chunk of regions: 8 MB, about a cache's size
CORNERS = 8  # vertices that nearly no region exceeds


@outside_torch_modes
def partition(network: nn.Module, slice_: Slice, *, max_regions: int = 2_000_000) -> Partition:
    """Compute the exact partition of a slice of the input space by a piecewise-affine network.

    Every unit's zero set is computed from its affine map on each region of the layers before it
    ("Batch Normalization Explained", Eq. 10-11), in float64 and without a grid. The network runs in
    eval mode: BatchNorm by its running statistics (``set_statistics`` sets them from data).
    ``OPERATIONS`` of ``bnrecon.partition.tracing`` lists the functions that it may call.

    Tolerances: a vertex within 5e-11 of the window's larger side from a zero line counts as on it,
    so that coincident and concurrent lines leave no slivers (``bnrecon.partition.cells``). A unit
    whose values differ by less than 1e-13 of its layer's largest counts as constant, as that may be
    rounding. A unit that is zero on a whole region has no segment there.

    Args:
        network: any piecewise-affine network; it is not changed.
        slice_: the slice and its window.
        max_regions: more raise an error, as memory grows with their number; ``forecast`` estimates
            how many there will be.

    Raises:
        UserError: an operation is not supported or has values that are not finite, or there are
            more than ``max_regions``.
        RunError: a region's affine map does not agree with the network.

    Two units, zero on the two axes: four regions.

    >>> from bnrecon.partition import rectangle, slice_along
    >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> with torch.no_grad():
    ...     network[0].weight.copy_(torch.eye(2)), network[0].bias.zero_()
    (..., ...)
    >>> square = slice_along([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], rectangle((-1, -1), (1, 1)))
    >>> parts = partition(network, square)
    >>> len(parts.regions), parts.regions.areas().tolist()
    (4, [1.0, 1.0, 1.0, 1.0])
    """
    steps = PiecewiseAffine(network, tuple(slice_.origin.shape))
    low, high = slice_.window.min(0), slice_.window.max(0)
    centre, scale = (low + high) / 2, float((high - low).max()) / 2
    with torch.no_grad():
        try:
            collector = _descend(steps, slice_, centre, scale, max_regions)
        except _TooMany:
            share = fitting_share(network, slice_, max_regions)
            hint = f"; a smaller one should fit at {share:g} times its sides" if share else ""
            raise UserError(
                f"more than max_regions={max_regions} regions, by a forecast "
                f"{forecast(network, slice_):,}; give a larger max_regions or another window{hint}"
            ) from None
        regions, folds = collector.collect(centre, scale)
        shape = _check(steps, slice_, regions)
    return Partition(slice_, steps.layers, regions, folds, shape)


@dataclass(frozen=True)
class _Chunk:
    """Regions at a layer whose units are affine on each of them.

    Their values are those of the larger regions that contain them, copied only when the chunk is
    processed: a wide layer cuts one region into more than would fit in memory.
    """

    position: int  # of the layer's step
    layer: int
    polygons: Polygons
    parent: np.ndarray
    parents: State

    def __len__(self) -> int:
        return len(self.polygons)

    def split(self, most: int) -> Iterator[_Chunk]:
        """Split into chunks of at most ``most`` regions."""
        for start in range(0, len(self), most):
            rows = np.arange(start, min(start + most, len(self)))
            yield replace(self, polygons=self.polygons.take(rows), parent=self.parent[rows])

    def values(self, node: fx.Node) -> torch.Tensor:
        """A step's values (R 3, ...) at the regions' points."""
        rows = torch.from_numpy(self.parent)
        return self.parents[node].unflatten(0, (-1, 3))[rows].flatten(0, 1)


class _TooMany(Exception):
    """There are more regions than allowed."""


class _Collector:
    def __init__(self, max_regions: int) -> None:
        self.max_regions = max_regions
        self.count = 1  # of regions, including those to be cut further
        self.polygons: list[Polygons] = []
        self.maps: list[np.ndarray] = []
        self.layers: list[np.ndarray] = [np.zeros(0, dtype=int)]
        self.units: list[np.ndarray] = [np.zeros(0, dtype=int)]
        self.ends: list[np.ndarray] = [np.zeros((0, 2, 2))]

    def add_regions(self, more: int) -> None:
        self.count += more
        if self.count > self.max_regions:
            raise _TooMany

    def add_folds(self, layer: int, units: np.ndarray, ends: np.ndarray) -> None:
        real = np.hypot(*(ends[:, 1] - ends[:, 0]).T) > TOLERANCE
        self.layers.append(np.full(int(real.sum()), layer))
        self.units.append(units[real])
        self.ends.append(ends[real])

    def collect(self, centre: np.ndarray, scale: float) -> tuple[Regions, Folds]:
        """Convert everything to the slice's coordinates."""
        layers = np.concatenate(self.layers)
        order = np.argsort(layers, kind="stable")
        units, ends = np.concatenate(self.units)[order], np.concatenate(self.ends)[order]
        inner = concatenate(self.polygons)
        polygons = Polygons(inner.vertices * scale + centre, inner.counts)
        maps = np.concatenate(self.maps)
        maps[..., 1:] /= scale
        maps[..., 0] -= maps[..., 1:] @ centre
        folds = Folds(layers[order], units, ends * scale + centre)
        return Regions(polygons, maps), folds


def _descend(
    steps: PiecewiseAffine, slice_: Slice, centre: np.ndarray, scale: float, max_regions: int
) -> _Collector:
    """Run chunks of regions through the network in units of ``scale``, deepest full batch first."""
    window = Polygons(((slice_.window - centre) / scale)[None], np.array([len(slice_.window)]))
    points = slice_.inputs(centre + scale * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    most = {-1: 1} | {k: max(1, NUMBERS // (CORNERS * n)) for k, n in enumerate(steps.widest)}
    collector = _Collector(max_regions)
    start = _Chunk(0, -1, window, np.zeros(1, dtype=int), steps.start(points))
    waiting, regions = {-1: [start]}, Counter({-1: 1})  # by layer
    while regions := +regions:
        # As many regions at once as fit, since every step reads its weights once per batch.
        full = [k for k, count in regions.items() if count >= most[k]]
        layer = max(full) if full else min(regions)
        batch, count = [waiting[layer].pop()], 0
        while (count := count + len(batch[-1])) < most[layer] and waiting[layer]:
            batch.append(waiting[layer].pop())
        regions[layer] -= count
        cut = _advance(steps, batch, collector)
        if cut is not None:
            regions[cut.layer] += len(cut)
            waiting.setdefault(cut.layer, []).extend(cut.split(most[cut.layer]))
    return collector


def _advance(steps: PiecewiseAffine, chunks: list[_Chunk], collector: _Collector) -> _Chunk | None:
    """Run a layer's chunks to the next layer and cut them there; ``None`` at the end."""
    first, layer = chunks[0], chunks[0].layer + 1
    polygons = concatenate([chunk.polygons for chunk in chunks])
    state = {node: torch.cat([chunk.values(node) for chunk in chunks]) for node in first.parents}
    for position, node, source in steps.walk(state, first.position):
        if position > first.position:
            if steps.kinds[node] == "activation":
                row, units = _cut_activation(source, polygons, layer, collector)
            else:
                members = steps.members(node, source.shape).numpy()
                row, units = _cut_pooling(source, members, polygons, layer, collector)
            parts, parent = subdivide(polygons, row, units, collector.add_regions)
            return _Chunk(position, layer, parts, parent, state)
        inside = _at_centres(source.unflatten(0, (-1, 3)).flatten(2), polygons)
        state[node] = steps.hold(node, source, inside)
    collector.polygons.append(polygons)
    collector.maps.append(_lines(state[steps.output]))
    return None


def _cut_activation(
    source: torch.Tensor, polygons: Polygons, layer: int, collector: _Collector
) -> tuple[np.ndarray, Units]:
    """Record an activation's zero sets; return units that cut a region, and which region."""
    lines, floor, values = _at_vertices(source, polygons)
    tolerance = thresholds(lines, floor[:, None])
    crossed, along = crossings(values, tolerance)
    row, unit = np.nonzero(crossed | along)
    at = np.moveaxis(values, 1, 2)[row, unit]
    corners = Polygons(polygons.vertices[row], polygons.counts[row])
    ends = chords(corners, at, lines[row, unit, 1:], tolerance[row, unit])
    collector.add_folds(layer, unit, ends)
    row, unit = np.nonzero(crossed)
    functions = np.stack([lines[row, unit], np.zeros((len(row), 3))], 1)
    return row, Units(functions, floor[row])


def _cut_pooling(
    source: torch.Tensor, members: np.ndarray, polygons: Polygons, layer: int, collector: _Collector
) -> tuple[np.ndarray, Units]:
    """Record where a pooling's maximum changes; return units that cut a region, and which one."""
    lines, floor, values = _at_vertices(source, polygons)
    of_pools = values[:, :, members]  # (R, V, units, m)
    winner = of_pools.mean(1).argmax(2)[:, None, :, None]
    won = np.take_along_axis(of_pools, winner, 3)[..., 0]
    # Most poolings have one winner at all vertices: only others need the test by pairs.
    row, unit = np.nonzero((won < of_pools.max(3)).any(1))
    units = Units(lines[row[:, None], members[unit]], floor[row])
    cut = np.flatnonzero(units.cut(np.arange(len(row)), polygons.vertices[row]))
    row, unit, units = row[cut], unit[cut], Units(units.functions[cut], units.floor[cut])
    _record_pooling(polygons, row, unit, units, layer, collector)
    return row, units


def _record_pooling(
    polygons: Polygons,
    row: np.ndarray,
    unit: np.ndarray,
    units: Units,
    layer: int,
    collector: _Collector,
) -> None:
    """Record where two values of a pooling are equal and no other is larger."""
    which, size = np.arange(len(row)), units.functions.shape[1]
    for i in range(size):
        for j in range(i + 1, size):
            line, tolerance = units.difference(which, i, j)
            values = values_at(line, polygons.vertices[row])
            crossed = (values.max(1) > tolerance) & (values.min(1) < -tolerance)
            at = which[crossed]
            corners = Polygons(polygons.vertices[row[crossed]], polygons.counts[row[crossed]])
            ends = chords(corners, values[crossed], line[crossed, 1:], tolerance[crossed])
            start, end = np.zeros(len(ends)), np.ones(len(ends))
            for k in set(range(size)) - {i, j}:
                over, slack = units.difference(at, i, k)
                first, last = values_at(over, ends).T
                same = np.maximum(np.abs(first), np.abs(last)) <= slack
                if k < j:  # of equal values, such as a repeated one, the first two record it
                    apart = np.abs(values_at(over, corners.vertices)).max(1) > slack
                    start = np.where(same & (apart | (k < i)), np.inf, start)
                zero = first / np.where(first == last, 1.0, first - last)
                start = np.where(~same & (first < last), np.maximum(start, zero), start)
                end = np.where(~same & (first > last), np.minimum(end, zero), end)
                end = np.where(~same & (first == last) & (first < 0), 0.0, end)
            real = end > start
            a, b = ends[real, :1], ends[real, 1:]
            part = np.stack([start[real], end[real]], 1)[..., None]
            collector.add_folds(layer, unit[at][real], a + (b - a) * part)


def _at_vertices(
    source: torch.Tensor, polygons: Polygons
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each unit's affine function, the rounding error (R,), and the values (R, V, units)."""
    lines = _lines(source)
    values = polygons.vertices @ lines[..., 1:].transpose(0, 2, 1) + lines[:, None, :, 0]
    return lines, FLOOR * np.abs(lines).max(axis=(1, 2)), values


def _lines(values: torch.Tensor) -> np.ndarray:
    """Each unit's value at the origin and its two derivatives: (R, units, 3), from (R 3, ...)."""
    origin, first, second = values.reshape(len(values) // 3, 3, -1).numpy().transpose(1, 0, 2)
    return np.stack([origin, first - origin, second - origin], 2)


def _at_centres(flat: torch.Tensor, polygons: Polygons) -> torch.Tensor:
    """The units' values (regions, units) inside each region, from (regions, 3, units)."""
    a, b = torch.from_numpy(polygons.centres()).T[..., None]
    return flat[:, 0] * (1 - a - b) + flat[:, 1] * a + flat[:, 2] * b


def _check(steps: PiecewiseAffine, slice_: Slice, regions: Regions) -> tuple[int, ...]:
    """Compare every region with the network at a point inside; return the output's shape."""
    inside = 0.63 * regions.centres() + 0.37 * regions.polygons.vertices[:, 0]
    most = max(1, CORNERS * NUMBERS // max(steps.widest[0], slice_.origin.numel()))
    error, largest, shape = 0.0, 1.0, ()
    for start in range(0, len(regions), most):
        points, maps = inside[start : start + most], regions.maps[start : start + most]
        # The first ones use PyTorch's convolutions, which shows whether ours are right.
        with FastConvolutions() if start else contextlib.nullcontext():
            outputs = steps.module(slice_.inputs(points))
        expected = maps[..., 0] + np.einsum("roi,ri->ro", maps[..., 1:], points)
        differences = np.abs(outputs.reshape(len(outputs), -1).numpy() - expected)
        # np.maximum keeps NaN.
        error = float(np.maximum(error, differences.max()))
        largest, shape = max(largest, float(outputs.abs().max())), tuple(outputs.shape[1:])
    if not error <= 1e-8 * largest:
        raise RunError(
            f"the regions' affine maps differ from the network by {error:.1e}: it computes "
            "something that its trace by torch.fx does not show"
        )
    return shape
