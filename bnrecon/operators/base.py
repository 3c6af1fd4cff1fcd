"""What a solver needs of a matrix, and the matrix itself from it where it is small."""

from __future__ import annotations

from typing import Protocol

import torch

from bnrecon.runtime.precision import Arithmetic

__all__ = ["CHUNK_BYTES", "Operator", "form"]

CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 2**30}  # bound of temporary memory, where none is given


class Operator(Protocol):
    """What a solver needs of a matrix: its shape, its products, and its dense form for small sizes.

    ``dtype`` is that of vectors. A right-hand side is (rows,), several are (rows, k); so are unknowns.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x for x (columns,) or (columns, k)."""

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y for y (rows,) or (rows, k)."""

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows."""

    def dense(self) -> torch.Tensor:
        """M itself, stored by columns as LAPACK wants it."""

    def to(self, arithmetic: Arithmetic) -> Operator:
        """The same matrix in another arithmetic."""

    def column_norms(self) -> torch.Tensor:
        """Euclidean norms of M's columns."""

    def row_norms(self) -> torch.Tensor:
        """Euclidean norms of M's rows."""

    def leading(self, count: int) -> Operator:
        """The matrix of the first ``count`` columns."""


def form(operator: Operator) -> torch.Tensor:
    """M itself, from an operator's ``columns``, a chunk at a time; stored by columns, so that LAPACK can factorize it in place."""
    rows, columns = operator.shape
    transposed = torch.empty(columns, rows, dtype=operator.dtype, device=operator.device)
    block = max(1, CHUNK_BYTES["cpu"] // (max(1, rows) * transposed.element_size()))
    for start in range(0, columns, block):
        part = slice(start, start + block)
        transposed[part] = operator.columns(part)
    return transposed.T
