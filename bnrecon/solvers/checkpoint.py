"""The state of an iterative solve between two iterations, so that it can resume elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from bnrecon.runtime import distributed


class KrylovState(NamedTuple):
    """The complete state of CGLS or Craig's method between two iterations."""

    x: torch.Tensor  # the iterate, (c1,) of CGLS, (n,) of Craig's method
    residual: torch.Tensor  # (n,), the updated one
    direction: torch.Tensor  # of the next step, of the size of ``x``
    energy: torch.Tensor  # (), the squared norm for the next step
    reference: torch.Tensor  # (), an energy to compare with: CGLS's first, Craig's lowest
    step: int = 0  # iterations made so far
    marked: float = 1.0  # the residual's norm at its last notable fall
    marked_at: int = 0  # the iteration of that fall

    def on(self, like: torch.Tensor) -> KrylovState:
        """Move the tensors to the device of another."""
        x, residual, direction, energy, reference = (part.to(like.device) for part in self[:5])
        return KrylovState(x, residual, direction, energy, reference, *self[5:])


@dataclass(frozen=True)
class RefinementState:
    """The complete state of ``iterative.refine`` after a correction."""

    x: torch.Tensor  # (c1,), the scales so far
    residual: torch.Tensor  # (n,), b - M x, the updated one
    iterations: int  # made so far
    # float64 is the last; how many there are depends on the machine
    precisions_remaining: int
    # The factor by which the next inner solve must reduce the residual; ``None`` for its
    # precision's
    reduction: float | None = None
    names: tuple[str, ...] = ()  # the precisions of the products
    # The state of the next inner solve, in the last of these precisions, if it has begun
    inner: KrylovState | None = None


class Checkpoint(Protocol):
    """Stores the state of one solve for a later process."""

    def load(self) -> RefinementState | None:
        """Return the state that was saved last; ``None`` without one of this solve."""

    def save(self, state: RefinementState) -> None:
        """Save a state, or skip it: this is called after every iteration.

        The next iteration changes tensors of ``state.inner`` in place.
        """


@dataclass(frozen=True)
class OnFirstRank:
    """A checkpoint that the first of several processes stores for all, whose states are equal."""

    checkpoint: Checkpoint

    def load(self) -> RefinementState | None:
        """Return the first process's state."""
        return distributed.run_on_first_rank(self.checkpoint.load)

    def save(self, state: RefinementState) -> None:
        """Save a state, in the first process."""
        if distributed.rank_and_world_size()[0] == 0:
            self.checkpoint.save(state)


@dataclass(frozen=True)
class InnerCheckpoint:
    """The checkpoint of one inner solve, saved with the state of the last correction."""

    outer: Checkpoint  # stores both
    refinement: RefinementState  # after the last correction; ``inner`` is this solve's

    def save(self, state: KrylovState) -> None:
        """Save the inner solve's state."""
        self.outer.save(replace(self.refinement, inner=state))
