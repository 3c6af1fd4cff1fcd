"""Where an iterative solve stands between two iterations, so that it can go on elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from bnrecon.runtime import distributed


class KrylovState(NamedTuple):
    """The state of CGLS or Craig's method between two iterations, which determines the rest."""

    x: torch.Tensor  # what is found so far, (c1,) by CGLS, (n,) by Craig's method
    residual: torch.Tensor  # (n,), as it was updated
    direction: torch.Tensor  # of the next step, of the size of ``x``
    energy: torch.Tensor  # (), the squared norm that the next step is computed from
    reference: torch.Tensor  # (), an energy to compare with: CGLS's first one, Craig's lowest
    step: int = 0  # iterations made so far
    marked: float = 1.0  # the residual's norm when it last fell notably
    marked_at: int = 0  # the iteration of that

    def on(self, like: torch.Tensor) -> KrylovState:
        """The same with its tensors on another's device."""
        x, residual, direction, energy, reference = (part.to(like.device) for part in self[:5])
        return KrylovState(x, residual, direction, energy, reference, *self[5:])


@dataclass(frozen=True)
class Corrected:
    """The state of ``iterative.refine`` after a correction; with it, the rest is determined."""

    x: torch.Tensor  # (c1,), the scales so far
    residual: torch.Tensor  # (n,), b - M x as it was updated
    iterations: int  # made so far
    # float64 is the last of them: how many there are in all depends on the machine
    precisions_remaining: int
    # The factor by which the next inner solve has to reduce the residual; ``None`` for that
    # of its precision
    reduction: float | None = None
    names: tuple[str, ...] = ()  # the precisions that products ran in
    # Where the next inner solve stands, in the last of these precisions, if it has begun
    inner: KrylovState | None = None


class Checkpoint(Protocol):
    """Keeps the state of one solve where a later process finds it."""

    def load(self) -> Corrected | None:
        """The state that was saved last; ``None`` where there is none of this solve."""

    def save(self, state: Corrected) -> None:
        """Keep a state, or do not: this is called after every iteration.

        The next iteration changes tensors of ``state.inner`` in place.
        """


@dataclass(frozen=True)
class OnFirstRank:
    """A checkpoint that the first of several processes keeps for all: their states are the same."""

    checkpoint: Checkpoint

    def load(self) -> Corrected | None:
        """The state that the first process has."""
        return distributed.run_on_first_rank(self.checkpoint.load)

    def save(self, state: Corrected) -> None:
        """Keep a state, in the first process."""
        if distributed.rank_and_world_size()[0] == 0:
            self.checkpoint.save(state)


@dataclass(frozen=True)
class InnerCheckpoint:
    """The checkpoint of one inner solve: its state is kept beside that of the last correction."""

    outer: Checkpoint  # keeps both
    corrected: Corrected  # the state after it; ``inner`` is where this solve goes on from

    def load(self) -> KrylovState | None:
        """Where the inner solve stood; ``None`` where it has not begun."""
        return self.corrected.inner

    def save(self, state: KrylovState) -> None:
        """Keep where it stands."""
        self.outer.save(replace(self.corrected, inner=state))
