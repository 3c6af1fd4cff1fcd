"""Where an iterative solve stands between two corrections, so that it can go on elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Checkpoint", "Corrected"]


@dataclass(frozen=True)
class Corrected:
    """The state of ``iterative.refine`` after a correction; with it, the rest is determined.

    Args:
        x: (c1,), the scales so far.
        residual: (n,), b - M x as it was updated.
        iterations: made so far.
        left: how many precisions are left, of which float64 is the last: how many there are depends
            on the machine.
        gain: the factor by which the next inner solve has to reduce the residual; ``None`` for
            that of its precision.
        names: the precisions that products ran in.
    """

    x: torch.Tensor
    residual: torch.Tensor
    iterations: int
    left: int
    gain: float | None = None
    names: tuple[str, ...] = ()


class Checkpoint(Protocol):
    """Keeps the state of one solve where a later process finds it."""

    def load(self) -> Corrected | None:
        """The state that was saved last; ``None`` where there is none of this solve."""

    def save(self, state: Corrected) -> None:
        """Keep a state; called after every correction that is not the last one."""
