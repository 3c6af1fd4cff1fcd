"""How all data sets give their images: in batches that a seed and an epoch determine."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Self

import torch

__all__ = ["Batches", "epoch_generator"]


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
        self,
        batch_size: int,
        seed: int,
        epoch: int,
        device: torch.device,
        start: int = 0,
        dtype: torch.dtype = torch.float32,
        share: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the epoch's augmented batches: images (N, C, H, W) and class numbers (N,).

        Order, crops and flips depend on ``seed`` and ``epoch`` alone: an epoch resumed in its
        middle goes on exactly as it would have.

        Args:
            batch_size: images a batch.
            seed: of the training.
            epoch: its number, from 0.
            device: where the batches go.
            start: number of the first batch to yield.
            dtype: of the images.
            share: (r, R): only every R-th image of a batch, from the r-th on.
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


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """What an epoch's order, crops and flips are drawn from."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
