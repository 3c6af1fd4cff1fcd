"""Small normalized networks in NumPy, whose geometry is computed exactly, and real inputs."""

from __future__ import annotations

import functools
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
    """U for u >= 0, else slope u: ReLU at 0, leaky ReLU in (0, 1), absolute value at -1."""
    return np.where(values >= 0, values, slope * values)


@dataclass(frozen=True)
class SmallNetwork:
    """Layers of Eq. 2 with one activation."""

    layers: tuple[Layer, ...]
    slope: float

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The feature maps (B, K) behind the last layer's activation."""
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


@functools.cache
def digit_vectors() -> np.ndarray:
    """The training images (N, 64) of the embedded digits, normalized, float64.

    >>> digit_vectors().shape
    (1437, 64)
    """
    data = load(DataSpec("digits", crop_padding=1, flip=False))
    batches = data.plain_train_batches(data.sizes[0], torch.device("cpu"), data.sizes[0])
    return next(iter(batches)).flatten(1).double().numpy()
