"""Folded hyperplanes of a ResNet-9 around training images and around random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.config import composition
from bnrecon.data import InMemoryImages, load
from bnrecon.partition import (
    count_by_sampling,
    detection_probability,
    fold_distances,
    set_statistics,
)
from bnrecon.runtime.errors import UserError
from bnrecon.studies.bn_explained.plane_networks import SETTINGS
from bnrecon.targets.building import build_target

__all__ = [
    "KINDS",
    "MANY",
    "PIXELS",
    "RADII",
    "REFERENCE",
    "SAMPLES",
    "TrainingImages",
    "draw_points",
    "measure_seed",
]

TARGETS = ("zero_bias", "random_bias", "frozen_statistics")  # of the settings
PIXELS = ("normalized", "from 0 to 1")
KINDS = ("training", "Gaussian", "smooth")
RADII = tuple(round(0.05 * number, 2) for number in range(1, 21))
REFERENCE = 0.1
SAMPLES, MANY = 256, 10**6  # of a ball: as drawn, and for what more of them would find
STAGES = ("first", "stage")  # of a ResNet-9: what follows has no ReLU
CPU = torch.device("cpu")


class TrainingImages:
    """All training images in batches, as often as they are asked for.

    Args:
        data: the data set.
        pixels: "normalized" to mean 0 and deviation 1 of each channel, or "from 0 to 1".
    """

    def __init__(self, data: InMemoryImages, pixels: str):
        self.data = data
        mean, deviation = (values[:, None, None] for values in data.moments())
        raw = pixels == PIXELS[1]
        self._mean, self._factor = (mean, deviation) if raw else (0 * mean, 1 + 0 * mean)
        self.deviation = float(self._factor.square().mean().sqrt())  # of a pixel

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield batches that a processor's cache holds."""
        for batch in self.data.plain_train_batches(100, CPU, self.data.sizes[0]):
            yield self.change(batch)

    def change(self, images: torch.Tensor) -> torch.Tensor:
        """Normalized images (n, C, H, W), with the pixels that are wanted."""
        return images * self._factor + self._mean


def draw_points(data: InMemoryImages, kind: str, count: int, seed: int) -> torch.Tensor:
    """Normalized images (count, C, H, W): training images, or random ones like them.

    "Gaussian": independent pixels of the mean and variance of the training images' channel.
    "smooth": training images to whose Fourier phases those of noise are added, the same in all
    channels: each image's mean, spectrum and channel covariances stay, its objects do not.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "Gaussian":
        return torch.randn(count, *data.shape, generator=generator)
    images = list(data.plain_train_batches(count, CPU, (seed + 1) * count))[-1]
    if kind == "training":
        return images
    noise = torch.fft.rfft2(torch.randn(count, 1, *data.shape[1:], generator=generator))
    phase = noise / noise.abs()
    phase[..., 0, 0] = 1  # of the mean
    return torch.fft.irfft2(torch.fft.rfft2(images) * phase, s=data.shape[1:])


def measure_seed(
    seed: int, pixels: str, images: int, probes: int, checked: int, options: Sequence[str]
) -> pd.DataFrame:
    """Mean counts around images, for the three settings of the same random weights.

    Args:
        seed: of weights, biases and images.
        pixels: one of ``PIXELS``.
        images: of each kind.
        probes: directions that estimate a gradient's norm.
        checked: how many images of each kind the count is compared at: with exact gradient norms,
            and with samples of the ball.
        options: overrides of a run, for the data and the target.

    Returns:
        Kind ``curve``: ``count`` of the ReLUs' zero sets, mean over images, by radius; at
        ``REFERENCE`` also for each layer (``layer`` 0 is all). Radii are in deviations of a pixel.
        Kinds ``probes`` and ``sampling``: sums over the checked images.
    """
    rows = []
    for setting in SETTINGS:
        network, batches = _prepare(setting, seed, pixels, options)
        for images_kind in KINDS:
            points = draw_points(batches.data, images_kind, images, seed)
            given = batches.change(points)
            row = {"setting": setting, "images": images_kind, "pixels": pixels, "seed": seed}
            row |= {"points": len(given)}
            distances = [
                (layer / batches.deviation).numpy()
                for layer in fold_distances(network, given, probes=probes, seed=seed)
            ]
            rows += [row | found for found in _counts(distances)]
            if checked and images_kind != KINDS[2]:
                some = given[:checked]
                row["points"] = len(some)
                rows += [row | found for found in _check(network, some, distances, batches)]
    return pd.DataFrame(rows).assign(probes=probes)


def _prepare(
    setting: str, seed: int, pixels: str, options: Sequence[str]
) -> tuple[nn.Module, TrainingImages]:
    """The random network up to its last ReLU, and the images of its BN statistics."""
    initialization = dict(zip(SETTINGS, TARGETS, strict=True))[setting]
    own = (f"target.initialization={initialization}", f"train.seed={seed}")
    config = composition.compose((*options, *own))
    with composition.option_names("data"):
        data = load(config.data)
    if not isinstance(data, InMemoryImages):
        raise UserError(f"data={config.data.name}: not held in memory; give data=cifar10")
    network = build_target(config.target_request, data)
    stages = nn.Sequential(
        *(module for name, module in network.named_children() if name.startswith(STAGES))
    )
    batches = TrainingImages(data, pixels)
    if setting == SETTINGS[2]:
        set_statistics(stages, batches)
    return stages.eval(), batches


def _counts(distances: list[np.ndarray]) -> Iterator[dict]:
    """Rows of kind ``curve``."""
    for radius in RADII:
        by_layer = [float((layer <= radius).sum(1).mean()) for layer in distances]
        row = {"kind": "curve", "radius": radius}
        units = [layer.shape[1] for layer in distances]
        yield row | {"layer": 0, "count": sum(by_layer), "units": sum(units)}
        if radius == REFERENCE:
            for number, (count, size) in enumerate(zip(by_layer, units, strict=True), 1):
                yield row | {"layer": number, "count": count, "units": size}


def _check(
    network: nn.Module, given: torch.Tensor, distances: list[np.ndarray], batches: TrainingImages
) -> Iterator[dict]:
    """Against exact gradient norms, and those against samples of the ball."""
    estimated = np.concatenate([layer[: len(given)] for layer in distances], 1)
    exact = torch.cat(fold_distances(network, given), 1).numpy() / batches.deviation
    some = np.isfinite(exact) & (exact > 0)
    row = {"radius": REFERENCE, "exact": int((exact <= REFERENCE).sum())}
    row |= {"estimated": int((estimated <= REFERENCE).sum())}
    error = np.square(estimated[some] / exact[some] - 1).mean() ** 0.5
    yield row | {"kind": "probes", "distance_error": float(error)}
    for radius in (REFERENCE, RADII[-1]):
        sampled = count_by_sampling(network, given, radius * batches.deviation, samples=SAMPLES)
        near, dimension = exact[exact <= radius], given[0].numel()
        yield {
            "kind": "sampling",
            "radius": radius,
            "exact": len(near),
            "sampled": int(sampled.sum()),
            "expected": float(detection_probability(near, radius, dimension, SAMPLES).sum()),
            "expected_many": float(detection_probability(near, radius, dimension, MANY).sum()),
        }
