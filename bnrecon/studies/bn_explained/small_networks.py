"""Small normalized networks in NumPy, their folded hyperplanes on the plane, and real inputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bnrecon.data import DataSpec, load

SLOPES = {"leaky ReLU": 0.1, "absolute value": -1.0, "ReLU": 0.0}  # alpha of Eq. 23


@dataclass(frozen=True)
class Layer:
    """Weights (K, D) and batch statistics (K,) of a layer with gamma = 1 and beta = 0."""

    weight: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    def normalize(self, inputs: np.ndarray) -> np.ndarray:
        """The pre-activations (B, K) of Eq. 4."""
        return (inputs @ self.weight.T - self.mean) / self.deviation


def activate(values: np.ndarray, slope: float) -> np.ndarray:
    """Return u for u >= 0, else slope u: ReLU at 0, leaky ReLU in (0, 1), absolute value at -1."""
    return np.where(values >= 0, values, slope * values)


@dataclass(frozen=True)
class SmallNetwork:
    """Layers of Eq. 2 with one activation."""

    layers: tuple[Layer, ...]
    slope: float

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The feature maps (B, K) after the last layer's activation."""
        for layer in self.layers:
            inputs = activate(layer.normalize(inputs), self.slope)
        return inputs


def draw_network(
    points: np.ndarray, widths: Sequence[int], slope: float, generator: np.random.Generator
) -> SmallNetwork:
    """Normal weights of variance 1 / fan-in; the statistics are those of the points (B, D).

    >>> generator = np.random.Generator(np.random.Philox(0))
    >>> points = generator.normal(size=(50, 2))
    >>> network = draw_network(points, (8, 4), 0.1, generator)
    >>> float(abs(network.layers[0].normalize(points).mean(0)).max()) < 1e-12
    True
    """
    layers: list[Layer] = []
    for width in widths:
        side = points.shape[1]
        weight = generator.normal(size=(width, side)) / side**0.5
        outputs = points @ weight.T
        layers.append(Layer(weight, outputs.mean(0), outputs.std(0)))
        points = activate(layers[-1].normalize(points), slope)
    return SmallNetwork(tuple(layers), slope)


ROUNDING = 1e-12  # a line is parallel to a half-plane's edge if the sine of their angle is smaller


@dataclass(frozen=True)
class Pieces:
    """The affine maps z = A x + b of P sign patterns, and the half-planes where they hold."""

    slope: np.ndarray  # A (P, K, 2)
    offset: np.ndarray  # b (P, K)
    normal: np.ndarray  # half-planes <normal, x> + level >= 0, one for each unit (P, U, 2)
    level: np.ndarray  # (P, U)


@dataclass(frozen=True)
class Segments:
    """Segments, rays or lines origin + t direction for t in [low, high], S of them.

    ``piece`` is the number of the sign pattern.
    """

    origin: np.ndarray
    direction: np.ndarray
    low: np.ndarray
    high: np.ndarray
    piece: np.ndarray

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Distance of each point (N, 2) to the nearest segment (N,); infinite without segments.

        This is the root of Eq. 12.
        """
        along = np.einsum("nsd,sd->ns", points[:, None] - self.origin, self.direction)
        nearest = self.origin + along.clip(self.low, self.high)[..., None] * self.direction
        return np.linalg.norm(points[:, None] - nearest, axis=2).min(1, initial=np.inf)


def affine_pieces(network: SmallNetwork) -> Pieces:
    """All 2^K sign patterns of a network's K units on the plane; most occur nowhere."""
    units = sum(len(layer.mean) for layer in network.layers)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=units)))
    slope = np.broadcast_to(np.eye(2), (len(signs), 2, 2))
    offset = np.zeros((len(signs), 2))
    normals, levels, first = [], [], 0
    for layer in network.layers:
        sign = signs[:, first : first + len(layer.mean)]
        first += len(layer.mean)
        slope = layer.weight @ slope / layer.deviation[:, None]
        offset = (offset @ layer.weight.T - layer.mean) / layer.deviation
        normals.append(sign[..., None] * slope)
        levels.append(sign * offset)
        factor = np.where(sign > 0, 1.0, network.slope)
        slope, offset = factor[..., None] * slope, factor * offset
    return Pieces(slope, offset, np.concatenate(normals, 1), np.concatenate(levels, 1))


def fold(pieces: Pieces, weight: np.ndarray, threshold: float) -> Segments:
    """The folded hyperplane {x: <w, z(x)> = mu} (Eq. 11), facet by facet.

    The unit has weight w (K,) and threshold mu, and follows layers with these pieces. Where the map
    is constant and equal to mu, as where all ReLUs are off, the folded hyperplane is a region, and
    only its edges are returned.
    """
    normal = np.einsum("pkd,k->pd", pieces.slope, weight)
    level = pieces.offset @ weight - threshold
    length = np.linalg.norm(normal, axis=1)
    crossing = length > 0  # where the map is constant there is no line
    number = np.flatnonzero(crossing)
    normal, length, level = normal[crossing], length[crossing], level[crossing]
    origin = -(level / length**2)[:, None] * normal
    direction = np.stack([-normal[:, 1], normal[:, 0]], 1) / length[:, None]
    start = np.einsum("pud,pd->pu", pieces.normal[crossing], origin) + pieces.level[crossing]
    change = np.einsum("pud,pd->pu", pieces.normal[crossing], direction)
    change[np.abs(change) < ROUNDING * np.linalg.norm(pieces.normal[crossing], axis=2)] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = -start / change
    low = np.where(change > 0, reached, -np.inf).max(1)
    high = np.where(change < 0, reached, np.inf).min(1)
    inside = (low < high) & ~((change == 0) & (start < 0)).any(1)
    return Segments(*(part[inside] for part in (origin, direction, low, high, number)))


@functools.cache
def digit_vectors() -> np.ndarray:
    """The training images (N, 64) of the embedded digits, normalized, float64.

    >>> digit_vectors().shape
    (1437, 64)
    """
    data = load(DataSpec("digits", crop_padding=1, flip=False))
    batches = data.plain_train_batches(data.sizes[0], torch.device("cpu"), data.sizes[0])
    return next(iter(batches)).flatten(1).double().numpy()
