"""Networks on the plane: random ones, their data, folded lines, decision boundaries, pictures."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.spatial import ConvexHull
from torch import nn

from bnrecon.partition import Folds, Slice, partition, rectangle, set_statistics, slice_along
from bnrecon.reporting.figures import Axes

SETTINGS = ("zero bias", "random bias", "BN")
SLOPE = 0.1
ENDS = ["x0", "y0", "x1", "y1"]
EARLIER = "0.75"  # grey, for the lines of earlier layers
EPSILON = 1e-30  # keeps Eq. 3's sigma to the last bit; torch does not train with 0


def draw_clusters(seed: int, count: int = 50, offset: float = 0.0) -> np.ndarray:
    """Points (count, 2) of three Gaussian clusters; each coordinate has variance 1.

    Their mean is on the diagonal of the plane, ``offset`` from the origin.
    """
    generator = np.random.Generator(np.random.Philox(key=(seed, 0)))
    centres = 2 * generator.normal(size=(3, 2))
    points = centres[generator.integers(3, size=count)] + generator.normal(size=(count, 2)) / 2
    return (points - points.mean(0)) / points.std(0) + offset / 2**0.5


def draw_layers(
    widths: Sequence[int], setting: str, points: np.ndarray, seed: int
) -> nn.Sequential:
    """Layers of Eq. 1, or of Eq. 2 with gamma = 1 and beta = 0, in eval mode and float64.

    One module per layer: linear, normalization if any, leaky ReLU. Weights are normal of variance
    1 / fan-in, random biases standard normal; all ``SETTINGS`` have the same weights at a seed.
    "BN" takes its statistics from the training points (n, 2) (Eq. 3).

    >>> points = draw_clusters(0)
    >>> layers = draw_layers((6, 6), "BN", points, 0)
    >>> bool(layers[0][:2](torch.from_numpy(points)).mean(0).abs().max() < 1e-12)
    True
    """
    generator = np.random.Generator(np.random.Philox(key=(seed, 1)))
    layers = []
    for inputs, units in pairwise((2, *widths)):
        weight = generator.normal(size=(units, inputs)) / inputs**0.5
        bias = generator.normal(size=units) * (setting == "random bias")
        options = {"bias": setting != "BN", "dtype": torch.float64}
        linear = nn.utils.skip_init(nn.Linear, inputs, units, **options)
        linear.weight.data = torch.from_numpy(weight)
        if setting != "BN":
            linear.bias.data = torch.from_numpy(bias)
        norm = nn.BatchNorm1d(units, eps=EPSILON, affine=False, dtype=torch.float64)
        norms = [norm] if setting == "BN" else []
        layers.append(nn.Sequential(linear, *norms, nn.LeakyReLU(SLOPE)))
    network = nn.Sequential(*layers).eval()
    set_statistics(network, torch.from_numpy(points))
    return network


def input_plane(window: np.ndarray) -> Slice:
    """The input plane with this window (k, 2); its coordinates are the inputs."""
    return slice_along([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], window)


def square(centre: Sequence[float] | np.ndarray, reach: float) -> Slice:
    """The input plane with the window ``centre ± reach``."""
    middle = np.asarray(centre, dtype=float)
    return input_plane(rectangle(middle - reach, middle + reach))


def hull(points: np.ndarray) -> Slice:
    """The input plane with the convex hull of the points as its window."""
    return input_plane(points[ConvexHull(points).vertices])


def decision_boundary(network: nn.Module, inputs: torch.Tensor, plane: Slice) -> np.ndarray:
    """Where the output is zero with the mu and sigma of these inputs: segments (S, 2, 2), exact.

    The network has one output and is not changed; the inputs are (B, *input shape).
    """
    return partition(set_statistics(copy.deepcopy(network), inputs), plane).zero_set(0)


def distances_to(points: np.ndarray, boundary: np.ndarray) -> np.ndarray:
    """The distance of each point (n, 2) to the nearest of segments (S, 2, 2): (n,).

    Infinite without segments. For one unit's segments, it is the root of Eq. 12.

    >>> distances_to(np.array([[0.0, 3.0], [5.0, 0.0]]), np.array([[[0.0, 0.0], [1.0, 0.0]]]))
    array([3., 4.])
    """
    start, along = boundary[:, 0], boundary[:, 1] - boundary[:, 0]
    beside = points[:, None] - start
    share = np.clip((beside * along).sum(2) / (along**2).sum(1), 0, 1)
    return np.linalg.norm(beside - share[..., None] * along, axis=2).min(1, initial=np.inf)


def distance_between(one: np.ndarray, other: np.ndarray, spacing: float) -> float:
    """The symmetric mean distance of two boundaries.

    The mean over one boundary (S, 2, 2), by length, of the distance to the other (T, 2, 2),
    averaged with the reverse; ``spacing`` is the integrals' largest step. NaN if a boundary has no
    segment.

    >>> floor = np.array([[[0.0, 0.0], [1.0, 0.0]]])
    >>> round(distance_between(floor, floor + [0.0, 0.25], 0.1), 3)
    0.25
    """
    if not (len(one) and len(other)):
        return float("nan")
    return (_mean_distance(one, other, spacing) + _mean_distance(other, one, spacing)) / 2


def _mean_distance(boundary: np.ndarray, other: np.ndarray, spacing: float) -> float:
    """The mean distance by the midpoint rule on every segment."""
    lengths = np.linalg.norm(boundary[:, 1] - boundary[:, 0], axis=1)
    pieces = np.ceil(lengths / spacing).astype(int)
    which = np.repeat(np.arange(len(boundary)), pieces)
    number = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    share = ((number + 0.5) / pieces[which])[:, None]
    points = (1 - share) * boundary[which, 0] + share * boundary[which, 1]
    weights = (lengths / pieces)[which]
    return float((distances_to(points, other) * weights).sum() / weights.sum())


def line_rows(folds: Folds, **labels: Any) -> list[dict[str, Any]]:
    """One row per segment, with its layer and unit counted from 1."""
    return [
        {"kind": "line", **labels, "layer": int(layer) + 1, "unit": int(unit) + 1}
        | dict(zip(ENDS, ends.ravel().tolist(), strict=True))
        for layer, unit, ends in zip(folds.layer, folds.unit, folds.ends, strict=True)
    ]


def point_rows(points: np.ndarray, **labels: Any) -> list[dict[str, Any]]:
    """One row per point (n, 2)."""
    return [{"kind": "point", **labels, "x0": x, "y0": y} for x, y in points.tolist()]


def picture_rows(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows with all columns of a picture, which is empty until its seed is computed."""
    return rows.reindex(columns=list(dict.fromkeys([*rows, *ENDS, *columns])))


def draw_lines(axes: Axes, rows: pd.DataFrame, **options: Any) -> Any:
    """Draw the segments of these rows; return the collection for a colour bar."""
    from matplotlib.collections import LineCollection

    ends = rows[ENDS].to_numpy(dtype=float).reshape(-1, 2, 2)
    style: dict[str, Any] = {"linewidths": 0.7, "colors": EARLIER, "capstyle": "round"} | options
    return axes.add_collection(LineCollection(list(ends), **style))


def draw_points(axes: Axes, rows: pd.DataFrame, window: np.ndarray) -> None:
    """Draw the training data as black dots, and show the plane's window (k, 2) without ticks."""
    axes.plot(rows["x0"], rows["y0"], "k.", markersize=2.5, markeredgewidth=0, zorder=3)
    low, high = window.min(0), window.max(0)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set(visible=True, linewidth=0.5)
