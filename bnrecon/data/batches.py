"""Which batches of a training come next: a seed and an epoch determine them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EpochPosition:
    """Which batches of a training come next, and what part of them.

    Order, crops and flips depend on ``seed`` and ``epoch`` alone: an epoch resumed in its middle
    goes on exactly as it would have.
    """

    batch_size: int  # images a batch
    seed: int  # of the training
    epoch: int  # its number, from 0
    start: int = 0  # number of the first batch to yield
    share: tuple[int, int] = (0, 1)  # (r, R): only every R-th image of a batch, from the r-th on

    @property
    def number(self) -> int:
        """Of the epoch among those of all seeds."""
        return self.seed * 1_000_003 + self.epoch

    def generator(self) -> torch.Generator:
        """What the epoch's order, crops and flips are drawn from."""
        return torch.Generator().manual_seed(self.number % 2**63)
