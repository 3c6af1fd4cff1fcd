"""What a solver needs of a matrix."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bnrecon.runtime.precision import Precision

CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 2**30}  # default bound of temporary memory


class Products(Protocol):
    """A matrix as its products with vectors, whose type is ``dtype``."""

    shape: tuple[int, int]
    dtype: torch.dtype

    @abc.abstractmethod
    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x for x (columns,) or (columns, k)."""

    @abc.abstractmethod
    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y for y (rows,) or (rows, k)."""


class Operator(Products, abc.ABC):
    """A matrix through its products, norms and columns; it need not be stored.

    ``dtype`` and ``device`` are those of vectors, ``precision`` is what products run in.
    """

    device: torch.device
    precision: Precision

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows; by default products with unit vectors."""
        chosen = torch.arange(self.shape[1], device=self.device)[part]
        units = torch.zeros(self.shape[1], len(chosen), dtype=self.dtype, device=self.device)
        units[chosen, torch.arange(len(chosen), device=self.device)] = 1
        return self.matvec(units).T

    @abc.abstractmethod
    def to(self, precision: Precision) -> Operator:
        """The same matrix in another precision."""

    @abc.abstractmethod
    def column_norms(self) -> torch.Tensor:
        """Euclidean norms of M's columns, or numbers near them, by which solvers scale columns."""

    @property
    def local(self) -> Operator:
        """This process's part of M: all of it, unless processes divide the columns."""
        return self

    def mapped(self, make: Callable[[Operator], Any]) -> Any:
        """Apply ``make`` to M, or to each process's part of it."""
        return make(self)

    def agreed(self, flag: bool) -> bool:
        """Whether a flag is set in all processes that divide M."""
        return flag

    def leading(self, count: int) -> Operator:
        """The matrix of the first ``count`` columns, if each can be omitted."""
        raise NotImplementedError

    def dense(self, more: int = 0) -> torch.Tensor:
        """M in dense form, stored by columns, so that LAPACK can factorize it in place.

        ``more`` columns follow, for the caller to write.
        """
        rows, columns = self.shape
        transposed = torch.empty(columns + more, rows, dtype=self.dtype, device=self.device)
        size = CHUNK_BYTES["cpu"] // 4  # of a block, which is copied up to three times
        block = max(1, size // (max(1, rows) * transposed.element_size()))
        for start in range(0, columns, block):
            part = slice(start, min(start + block, columns))
            transposed[part] = self.columns(part)
        return transposed.T
