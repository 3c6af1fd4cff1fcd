"""Small images in memory as uint8; one indexing operation crops, flips and normalizes a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from bnrecon.data.batches import EpochPosition
from bnrecon.data.spec import DataSpec, default_root, has_pixels_of_the_user
from bnrecon.runtime.errors import UserError

# CIFAR-100 has eleven pairs of one image with two labels. The first number that keeps the order of
# its published files for all of them, on which results stored before depend. Other images with such
# pairs may have another checksum than in results stored before.
TIES = b"991"


@dataclass
class InMemoryImages:
    """A classification data set of equally sized images.

    Training images are padded by ``crop_padding`` zeros on each side, cropped at random and, with
    ``flip``, mirrored at random. All are normalized by the training images' channel mean and
    standard deviation.
    """

    name: str  # of the data set
    classes: tuple[str, ...]  # names of the classes
    # Training images, uint8 (N, H, W, C). Channels come last in memory, so that a batch becomes
    # a channels-last tensor without a copy
    train_x: torch.Tensor
    train_y: torch.Tensor  # their class numbers, int64 (N,)
    test_x: torch.Tensor  # test images
    test_y: torch.Tensor  # their class numbers
    crop_padding: int = 4  # zeros on each side of a training image
    flip: bool = True  # whether training images are mirrored at random
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, height, width, channels = self.train_x.shape
        return channels, height, width

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of training and of test images."""
        return len(self.train_x), len(self.test_x)

    def hold_out(self, count: int, limit: int | None = None) -> Self:
        """Test on the last ``count`` training images, or ``limit`` of them; drop the test images.

        The order is as good as random, and fixed.
        """
        first = len(self.train_x) - count
        held_x, held_y = self.train_x[first:][:limit], self.train_y[first:][:limit]
        train_x, train_y = self.train_x[:first], self.train_y[:first]
        return replace(self, train_x=train_x, train_y=train_y, test_x=held_x, test_y=held_y)

    def checksum(self) -> str:
        """SHA-256 of both splits' pixels and labels, to tell whether two runs saw the same data."""
        if "checksum" not in self._cache:
            digest = hashlib.sha256()
            for tensor in (self.train_x, self.train_y, self.test_x, self.test_y):
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy().data)
            used = 1 + int(torch.cat([self.train_y, self.test_y]).max())
            if has_pixels_of_the_user(self.name) and len(self.classes) != used:
                digest.update(f"{len(self.classes)} classes".encode())
            self._cache["checksum"] = digest.hexdigest()
        return self._cache["checksum"]

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Exact channel mean and standard deviation (C,) of the training images in [0, 1].

        Computed from integer histograms, in float64. The deviation of a channel that varies by
        less than a level, such as the opacity of opaque images, is 1: it is shifted, not scaled.
        """
        if "moments" not in self._cache:
            levels = torch.arange(256, dtype=torch.float64, device="cpu") / 255
            channels = (channel.reshape(-1).int() for channel in self.train_x.unbind(-1))
            counts = torch.stack([torch.bincount(values, minlength=256) for values in channels])
            weights = counts.double() / counts.sum(1, keepdim=True)
            mean = weights @ levels
            variance = weights @ levels**2 - mean**2
            # Scaled, such a channel's padding would be up to a million deviations from its mean.
            deviation = torch.where(variance < 255.0**-2, 1, variance.clamp_min(0).sqrt())
            self._cache["moments"] = mean.float(), deviation.float()
        return self._cache["moments"]

    def _normalize(self, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Normalize uint8 (N, H, W, C) to a (N, C, H, W) view that is channels-last in memory."""
        key = f"normalization on {pixels.device}"
        if key not in self._cache:  # moved once: a copy per batch would wait for the GPU
            mean, deviation = self.moments()
            factor, shift = 1 / (255 * deviation), mean / deviation
            self._cache[key] = factor.to(pixels.device), shift.to(pixels.device)
        factor, shift = self._cache[key]
        return pixels.to(torch.float32).mul_(factor).sub_(shift).to(dtype).permute(0, 3, 1, 2)

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The padded training images and their labels, moved to the device once."""
        key = f"train on {device}"
        if key not in self._cache:
            p = self.crop_padding
            padded = torch.nn.functional.pad(self.train_x, (0, 0, p, p, p, p))
            self._cache[key] = padded.to(device), self.train_y.to(device)
        return self._cache[key]

    def train_batches(
        self, at: EpochPosition, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the epoch's augmented batches, all drawn before the first one.

        Yields:
            Images (N, C, H, W) and class numbers (N,).
        """
        padded, labels = self._on(device)
        n, (_, height, width) = len(padded), self.shape
        generator, size, (rank, processes) = at.generator(), at.batch_size, at.share
        with torch.device("cpu"):  # the caller's default device and dtype change no draw
            order = torch.randperm(n, generator=generator)
            shifts = torch.randint(2 * self.crop_padding + 1, (2, n), generator=generator)
            chances = torch.rand(n, dtype=torch.float32, generator=generator)
            mirrored = chances < (0.5 if self.flip else 0)
            rows = shifts[0, :, None] + torch.arange(height)
            columns = shifts[1, :, None] + torch.where(
                mirrored[:, None], torch.arange(width).flip(0), torch.arange(width)
            )
        order, rows, columns = order.to(device), rows.to(device), columns.to(device)
        for batch in range(at.start, self.batches(size)):
            take = slice(batch * size + rank, (batch + 1) * size, processes)
            index = order[take]
            pixels = padded[index[:, None, None], rows[take, :, None], columns[take, None, :]]
            yield self._normalize(pixels, dtype), labels[index]

    def batches(self, batch_size: int) -> int:
        """Number of batches in an epoch; an incomplete batch counts only if it is the only one."""
        return max(1, len(self.train_x) // batch_size)

    def test_batches(
        self, batch_size: int, device: torch.device, limit: int | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the first ``limit`` test images or all, not augmented, and their class numbers."""
        images, labels = (part[:limit].split(batch_size) for part in (self.test_x, self.test_y))
        for x, y in zip(images, labels, strict=True):
            yield self._normalize(x.to(device), torch.float32), y.to(device)

    def plain_train_batches(
        self, batch_size: int, device: torch.device, limit: int
    ) -> Iterator[torch.Tensor]:
        """Yield up to ``limit`` training images, not augmented, for running statistics."""
        for images in self.train_x[:limit].split(batch_size):
            yield self._normalize(images.to(device), torch.float32)


def from_arrays(
    spec: DataSpec,
    classes: Sequence[str],
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> InMemoryImages:
    """Put arrays in canonical order, up to the limits of the spec.

    Each split is uint8 images (N, H, W, C) and class numbers (N,).

    Raises:
        UserError: there are fewer than two training images, or a crop could miss an image.
    """
    images = train[0]
    require_two_images(len(images), spec)
    height, width = images.shape[1:3]
    if spec.crop_padding >= min(height, width):
        raise UserError(
            f"crop_padding={spec.crop_padding}: must be below {min(height, width)} for images of "
            f"{width}x{height}, or a crop could miss the image"
        )
    train_x, train_y = _in_canonical_order(*train, spec.train_limit)
    test_x, test_y = _in_canonical_order(*test, spec.test_limit)
    return InMemoryImages(
        spec.name, tuple(classes), train_x, train_y, test_x, test_y, spec.crop_padding, spec.flip
    )


def require_two_images(count: int, spec: DataSpec) -> None:
    """Raise ``UserError`` for fewer training images than batch normalization needs."""
    if count < 2:
        where = spec.root or default_root()
        raise UserError(f"{where}: {count} training image; training needs two or more, add some")


def _in_canonical_order(
    images: np.ndarray, labels: np.ndarray, limit: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order images by a digest of their pixels: as good as random, and the same in every layout.

    Identical images are ordered by a digest of their labels.
    """
    images, labels = np.ascontiguousarray(images), np.asarray(labels, np.int64)

    def key(number: int) -> tuple[bytes, bytes]:
        pixels = hashlib.blake2b(images[number], digest_size=16).digest()
        labelled = pixels + int(labels[number]).to_bytes(8, "little")
        return pixels, hashlib.blake2b(labelled, digest_size=16, salt=TIES).digest()

    order = np.array(sorted(range(len(images)), key=key))[:limit]
    return torch.from_numpy(images[order]), torch.from_numpy(labels[order])
