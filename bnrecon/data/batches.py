"""How all data sets give their images: in batches that a seed and an epoch determine."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch

__all__ = ["Batches", "EpochPosition"]


@dataclass(frozen=True)
class EpochPosition:
    """Which batches of a training come next, and what part of them.

    Order, crops and flips depend on ``seed`` and ``epoch`` alone: an epoch resumed in its middle
    goes on exactly as it would have.

    Args:
        batch_size: images a batch.
        seed: of the training.
        epoch: its number, from 0.
        start: number of the first batch to yield.
        share: (r, R): only every R-th image of a batch, from the r-th on.
    """

    batch_size: int
    seed: int
    epoch: int
    start: int = 0
    share: tuple[int, int] = (0, 1)

    @property
    def number(self) -> int:
        """Of the epoch among those of all seeds."""
        return self.seed * 1_000_003 + self.epoch

    def generator(self) -> torch.Generator:
        """What the epoch's order, crops and flips are drawn from."""
        return torch.Generator().manual_seed(self.number % 2**63)


class Batches(abc.ABC):
    """The batches of a data set: augmented for training, plain for tests and statistics."""

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Number of training and of test images."""

    @abc.abstractmethod
    def hold_out(self, count: int, limit: int | None = None) -> Self:
        """Take ``count`` training images, as good as random, for tests; drop the test images.

        Args:
            count: training images that are held out, always the same ones.
            limit: how many of them to test on; all by default.
        """

    @abc.abstractmethod
    def batches(self, batch_size: int) -> int:
        """Number of batches in an epoch; the last, incomplete one counts only if it is alone."""

    @abc.abstractmethod
    def train_batches(
        self, at: EpochPosition, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the epoch's augmented batches: images (N, C, H, W) and class numbers (N,).

        Args:
            at: the epoch, and where in it to begin.
            device: where the batches go.
            dtype: of the images.
        """

    @abc.abstractmethod
    def test_batches(
        self, batch_size: int, device: torch.device, limit: int | None = None, start: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the test images in order, not augmented, and their class numbers.

        Args:
            batch_size: images a batch.
            device: where the batches go.
            limit: number of the image to stop before; all by default.
            start: number of the first image.
        """

    @abc.abstractmethod
    def plain_train_batches(
        self, batch_size: int, device: torch.device, limit: int
    ) -> Iterator[torch.Tensor]:
        """Yield up to ``limit`` training images, not augmented, for running statistics.

        Args:
            batch_size: images a batch.
            device: where the batches go.
            limit: images in all.
        """
