"""The position in a training's batches, which a seed and an epoch determine."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EpochPosition:
    """The next batches of a training, and this process's share of them.

    Order, crops and flips depend only on ``seed`` and ``epoch``: a resumed epoch continues exactly
    as without the interruption.
    """

    batch_size: int  # images per batch
    seed: int  # of the training
    epoch: int  # its number, from 0
    start: int = 0  # number of the first batch to yield
    share: tuple[int, int] = (0, 1)  # (r, R): only every R-th image of a batch, from the r-th

    @property
    def number(self) -> int:
        """The epoch's number among the epochs of all seeds."""
        return self.seed * 1_000_003 + self.epoch

    def generator(self) -> torch.Generator:
        """The generator of the epoch's order, crops and flips."""
        return torch.Generator().manual_seed(self.number % 2**63)
