"""Small images held in memory as uint8, cropped, flipped and normalized as tensors, a batch by one indexing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

__all__ = ["InMemoryImages"]


@dataclass
class InMemoryImages:
    """A classification data set of equally sized images.

    ``train_x`` and ``test_x`` are uint8 of shape (N, H, W, C), channels last in memory so that a batch leaves here as a
    channels-last tensor without a copy; ``train_y`` and ``test_y`` are int64 class numbers (N,). Training images are
    padded by ``crop_padding`` zeros on each side, cropped at random and, with ``flip``, mirrored at random. All are
    normalized by the training images' channel mean and deviation.
    """

    name: str
    classes: tuple[str, ...]
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    crop_padding: int = 4
    flip: bool = True
    _held: dict = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, height, width, channels = self.train_x.shape
        return channels, height, width

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of training and of test images."""
        return len(self.train_x), len(self.test_x)

    def checksum(self) -> str:
        """SHA-256 of the pixels and labels of both splits, so that two runs can be known to have seen the same data."""
        if "checksum" not in self._held:
            digest = hashlib.sha256()
            for tensor in (self.train_x, self.train_y, self.test_x, self.test_y):
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy())
            self._held["checksum"] = digest.hexdigest()
        return self._held["checksum"]

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Channel mean and deviation of the training images in [0, 1], exact (integer histograms, float64)."""
        if "moments" not in self._held:
            levels = torch.arange(256, dtype=torch.float64) / 255
            channels = self.train_x.shape[-1]
            counts = torch.stack(
                [
                    torch.bincount(self.train_x[..., c].reshape(-1).int(), minlength=256)
                    for c in range(channels)
                ]
            )
            weights = counts.double() / counts.sum(1, keepdim=True)
            mean = weights @ levels
            variance = weights @ levels**2 - mean**2
            self._held["moments"] = mean.float(), variance.clamp_min(1e-12).sqrt().float()
        return self._held["moments"]

    def _normalize(self, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """uint8 (N, H, W, C) to a normalized (N, C, H, W) view that is channels-last in memory."""
        key = f"normalization on {pixels.device}"
        if key not in self._held:  # moved once: a copy in every batch would wait for the GPU
            mean, deviation = self.moments()
            factor, shift = 1 / (255 * deviation), mean / deviation
            self._held[key] = factor.to(pixels.device), shift.to(pixels.device)
        factor, shift = self._held[key]
        return pixels.to(torch.float32).mul_(factor).sub_(shift).to(dtype).permute(0, 3, 1, 2)

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The padded training images and their labels, moved to the device once."""
        key = f"train on {device}"
        if key not in self._held:
            p = self.crop_padding
            padded = torch.nn.functional.pad(self.train_x, (0, 0, p, p, p, p))
            self._held[key] = padded.to(device), self.train_y.to(device)
        return self._held[key]

    def train_batches(
        self,
        batch_size: int,
        seed: int,
        epoch: int,
        device: torch.device,
        start: int = 0,
        dtype: torch.dtype = torch.float32,
        share: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the epoch's augmented batches from number ``start`` on; with ``share`` (r, R) only every R-th image, from the r-th on.

        Order, crops and flips depend on ``seed`` and ``epoch`` alone, and all are drawn before the first batch: an epoch
        taken up in its middle goes on exactly as it would have. The last, incomplete batch is left out, unless it is the
        only one.
        """
        padded, labels = self._on(device)
        n, (_, height, width) = len(padded), self.shape
        generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(n, generator=generator)
        shifts = torch.randint(2 * self.crop_padding + 1, (2, n), generator=generator)
        mirrored = (
            torch.rand(n, generator=generator) < 0.5
            if self.flip
            else torch.zeros(n, dtype=torch.bool)
        )
        rows = shifts[0, :, None] + torch.arange(height)
        columns = shifts[1, :, None] + torch.where(
            mirrored[:, None], torch.arange(width).flip(0), torch.arange(width)
        )
        order, rows, columns = order.to(device), rows.to(device), columns.to(device)
        for batch in range(start, self.batches(batch_size)):
            take = slice(batch * batch_size + share[0], (batch + 1) * batch_size, share[1])
            index = order[take]
            pixels = padded[index[:, None, None], rows[take, :, None], columns[take, None, :]]
            yield self._normalize(pixels, dtype), labels[index]

    def batches(self, batch_size: int) -> int:
        """Number of batches in an epoch."""
        return max(1, len(self.train_x) // batch_size)

    def test_batches(
        self, batch_size: int, device: torch.device, limit: int | None = None, start: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the test images in order, from ``start`` up to ``limit``, not augmented."""
        end = len(self.test_x) if limit is None else min(limit, len(self.test_x))
        for first in range(start, end, batch_size):
            last = min(first + batch_size, end)
            pixels = self.test_x[first:last].to(device)
            yield self._normalize(pixels, torch.float32), self.test_y[first:last].to(device)

    def plain_train_batches(
        self, batch_size: int, device: torch.device, limit: int
    ) -> Iterator[torch.Tensor]:
        """Yield up to ``limit`` training images, not augmented: what running statistics are taken from."""
        for first in range(0, min(limit, len(self.train_x)), batch_size):
            pixels = self.train_x[first : min(first + batch_size, limit)].to(device)
            yield self._normalize(pixels, torch.float32)
