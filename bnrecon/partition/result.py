"""The partition of a slice: its regions with their affine maps, and the folded hyperplanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrecon.partition.cells import crossings, thresholds, values_at
from bnrecon.partition.network import Layer
from bnrecon.partition.polygons import Polygons, chords
from bnrecon.partition.slice import Slice
from bnrecon.runtime.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Region:
    """A region on which the network is affine: output = ``slope @ (s, t) + intercept``.

    Attributes:
        vertices: (k, 2), coordinates in the slice, counterclockwise.
        slope: (outputs, 2).
        intercept: (outputs,).
    """

    vertices: np.ndarray
    slope: np.ndarray
    intercept: np.ndarray


@dataclass(frozen=True, eq=False)
class Regions(Sequence[Region]):
    """All regions of a partition, as arrays and as a sequence of ``Region``.

    Attributes:
        polygons: R polygons, in the slice's coordinates.
        maps: (R, outputs, 3), each output's intercept and its slopes along s and t.
    """

    polygons: Polygons
    maps: np.ndarray

    def __len__(self) -> int:
        return len(self.polygons)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        corners = self.polygons.vertices[index, : self.polygons.counts[index]]
        return Region(corners, self.maps[index, :, 1:], self.maps[index, :, 0])

    def areas(self) -> np.ndarray:
        """Each region's area (R,)."""
        return self.polygons.areas()

    def centres(self) -> np.ndarray:
        """A point inside each region (R, 2), the mean of its vertices."""
        return self.polygons.centres()

    def slope_norms(self) -> np.ndarray:
        """The Frobenius norm (R,) of each region's slope (outputs, 2), within the slice."""
        return np.linalg.norm(self.maps[..., 1:], axis=(1, 2))

    def to_frame(self) -> pd.DataFrame:
        """Return a row per region: area, centre (s, t), vertices and norm of the slope."""
        import pandas as pd

        s, t = self.centres().T
        columns = {"area": self.areas(), "s": s, "t": t, "vertices": self.polygons.counts}
        return pd.DataFrame({**columns, "slope_norm": self.slope_norms()})

    def locate(self, points: np.ndarray) -> np.ndarray:
        """The region (n,) that contains each point (n, 2), the innermost; -1 outside the window."""
        regions = np.full(len(points), -1)
        corners = self.polygons.vertices
        sides = np.roll(corners, -1, 1) - corners
        length = np.hypot(sides[..., 0], sides[..., 1])
        normal = (
            np.stack([-sides[..., 1], sides[..., 0]], 2) / np.where(length, length, 1)[..., None]
        )
        offset = (normal * corners).sum(2)
        rounding = 1e-14 * np.abs(corners).max()  # of points on a common edge
        low, high = corners.min(1) - rounding, corners.max(1) + rounding
        for index, point in enumerate(points):
            near = np.flatnonzero(((low <= point) & (point <= high)).all(1))
            depth = np.where(length[near] > 0, normal[near] @ point - offset[near], np.inf).min(1)
            if len(near) and depth.max() >= -rounding:
                regions[index] = near[depth.argmax()]
        return regions


@dataclass(frozen=True, eq=False)
class Folds:
    """Segments of folded hyperplanes: where a unit is zero, within one region of earlier layers.

    They are the facets F_{l,k,w} of "Batch Normalization Explained", Eq. 11. For a pooling they are
    where another value becomes the maximum. Along an edge of earlier regions or of the window, a
    segment is recorded from each side where the unit is positive: twice for |x|, never for -|x|.

    Attributes:
        layer: (S,), index into ``Partition.layers``.
        unit: (S,), index into the layer's flattened output.
        ends: (S, 2, 2), both ends of each segment in the slice's coordinates.
    """

    layer: np.ndarray
    unit: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.layer)

    def of(self, layer: int, unit: int | None = None) -> Folds:
        """The segments of a layer, or of one of its units."""
        return self.take((self.layer == layer) & (unit is None or self.unit == unit))

    def take(self, index: np.ndarray) -> Folds:
        """Select segments by indices or a mask."""
        return Folds(self.layer[index], self.unit[index], self.ends[index])

    def lengths(self) -> np.ndarray:
        """Each segment's length (S,)."""
        return np.hypot(*(self.ends[:, 1] - self.ends[:, 0]).T)


@dataclass(frozen=True, eq=False)
class Partition:
    """The exact partition of a slice's window by a piecewise-affine network.

    Attributes:
        slice: the slice.
        layers: the activations and poolings in the order in which they run.
        regions: on each, every unit keeps its state and the network is affine.
        folds: the folded hyperplanes of all layers.
        output_shape: the output's for one input.
    """

    slice: Slice
    layers: tuple[Layer, ...]
    regions: Regions
    folds: Folds
    output_shape: tuple[int, ...]

    def zero_set(self, output: int, other: int | None = None) -> np.ndarray:
        """Where an output is zero, or equal to another: segments (S, 2, 2).

        The decision boundary of a classifier with one output is ``zero_set(0)``, between classes i
        and j ``zero_set(i, j)``. Next to a region with zero difference throughout, a segment is
        listed if the output is positive, or the larger one, on its other side.
        """
        maps = self.regions.maps
        lines = maps[:, output] if other is None else maps[:, output] - maps[:, other]
        corners = self.regions.polygons.vertices
        reach = np.abs(corners).max()
        scale = np.abs(maps * [1.0, reach, reach]).max(axis=(1, 2))
        half = np.ptp(self.slice.window, axis=0).max() / 2
        tolerance = np.maximum(half * thresholds(lines, np.zeros(len(lines))), 1e-13 * scale)
        rows = np.flatnonzero(np.logical_or(*crossings(values_at(lines, corners), tolerance)))
        polygons, lines, tolerance = self.regions.polygons.take(rows), lines[rows], tolerance[rows]
        ends = chords(polygons, values_at(lines, polygons.vertices), lines[:, 1:], tolerance)
        return ends[np.hypot(*(ends[:, 1] - ends[:, 0]).T) > 1e-10 * half]

    def draw(
        self,
        axes: Axes,
        layer: int | None = None,
        *,
        values: np.ndarray | None = None,
        color: str = "C0",
        linewidth: float = 0.5,
    ) -> Any:
        """Draw the folded hyperplanes as vector lines, as in Figures 1 and 9 of the paper.

        Args:
            axes: of matplotlib.
            layer: the layer in colour, earlier ones in grey. By default all layers in colour.
            values: (units,), a number for each unit of ``layer``, drawn by the colour map.
            color: of the lines without ``values``.
            linewidth: in points.

        Returns:
            The coloured lines, for ``figure.colorbar``.
        """
        from matplotlib.collections import LineCollection

        if values is not None and layer is None:
            raise UserError("values are those of a layer's units: give its layer too")
        shown = self.folds if layer is None else self.folds.of(layer)
        if layer is not None:
            before = self.folds.take(self.folds.layer < layer)
            axes.add_collection(
                LineCollection(list(before.ends), colors="0.75", linewidths=linewidth)
            )
        lines = LineCollection(list(shown.ends), linewidths=linewidth, capstyle="round")
        if values is None:
            lines.set_color(color)
        else:
            lines.set_array(np.asarray(values)[shown.unit])
        axes.add_collection(lines)
        self._show_window(axes)
        return lines

    def fill(self, axes: Axes, values: np.ndarray, **options: Any) -> Any:
        """Colour each region by a number, such as ``regions.slope_norms()``.

        Args:
            axes: of matplotlib.
            values: (R,), a number for each region.
            options: of ``matplotlib.collections.PolyCollection``, as in ``cmap="magma"``.

        Returns:
            The polygons, for ``figure.colorbar``.

        Raises:
            UserError: there is not one number for each region.
        """
        from matplotlib.collections import PolyCollection

        if np.shape(values) != (len(self.regions),):
            raise UserError(f"values: shape {np.shape(values)}; {len(self.regions)} regions")
        corners: Any = self.regions.polygons.vertices
        # Edges in the polygons' colour leave no gaps between neighbours.
        drawn: dict[str, Any] = {"edgecolors": "face", "linewidths": 0.2, "zorder": 0.5} | options
        polygons = PolyCollection(corners, array=np.asarray(values), **drawn)
        axes.add_collection(polygons)
        self._show_window(axes)
        return polygons

    def _show_window(self, axes: Axes) -> None:
        low, high = self.slice.window.min(0), self.slice.window.max(0)
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
