"""Independent random numbers as a table of which any part can be drawn alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

HASHED = 2**20  # numbers that are in memory at once


class Draw(Protocol):
    """``Stream.normal`` or ``Stream.uniform``, their word and size given."""

    def __call__(self, shape: tuple[int, ...], *, starts: tuple[int, ...]) -> torch.Tensor:
        """Numbers of the sequence, in runs that begin at ``starts``."""


@dataclass(frozen=True)
class Draws:
    """A table (outer, features, inner) of a sequence's numbers, the last index running fastest.

    >>> from functools import partial
    >>> from bnrecon.features.portable_random import Stream
    >>> draws = Draws((2, 5, 3), partial(Stream(0, 0).normal, word="w"))
    >>> torch.equal(draws.part(1, 4), draws.part(0, 5)[:, 1:4])
    True
    """

    shape: tuple[int, int, int]
    draw: Draw

    @property
    def count(self) -> int:
        """How many numbers there are."""
        outer, features, inner = self.shape
        return outer * features * inner

    def part(self, start: int, stop: int) -> torch.Tensor:
        """The numbers of features ``start`` to ``stop``: (outer, stop - start, inner)."""
        outer, features, inner = self.shape
        starts = tuple((number * features + start) * inner for number in range(outer))
        return self.draw((outer, stop - start, inner), starts=starts)

    def numbers(self, start: int, stop: int) -> torch.Tensor:
        """Numbers ``start`` to ``stop`` of the sequence."""
        return self.draw((stop - start,), starts=(start,))


def draws_digest(
    tables: Mapping[str, tuple[tuple[int, ...], Draws]], tensors: Mapping[str, torch.Tensor]
) -> str:
    """What ``tensor_digest`` gives for tables as tensors of these shapes, drawn a few at a time.

    Args:
        tables: shape and numbers of each, before all others in the order of names.
        tensors: what is hashed with them.

    >>> from functools import partial
    >>> from bnrecon.features.portable_random import Stream
    >>> from bnrecon.runtime.digests import tensor_digest
    >>> draws = Draws((2, 5, 3), partial(Stream(0, 0).normal, word="w"))
    >>> digest = draws_digest({"a": ((2, 15), draws)}, {"b": torch.ones(1)})
    >>> digest == tensor_digest({"a": draws.part(0, 5).reshape(2, 15), "b": torch.ones(1)})
    True
    """
    digest = hashlib.sha256()
    for name, (shape, draws) in tables.items():
        digest.update(f"{name} {torch.float32} {shape};".encode())
        for start in range(0, draws.count, HASHED):
            stop = min(start + HASHED, draws.count)
            digest.update(draws.numbers(start, stop).numpy().data)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
