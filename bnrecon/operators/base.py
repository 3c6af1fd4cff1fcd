"""What a solver needs of a matrix, and the matrix itself from it where it is small."""

from __future__ import annotations

from typing import Protocol

import torch

from bnrecon.runtime.precision import Precision

__all__ = ["CHUNK_BYTES", "Operator", "Products", "form"]

CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 2**30}  # bound of temporary memory, where none is given


class Products(Protocol):
    """A matrix as its products with vectors. ``dtype`` is that of vectors."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of vectors."""

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x for x (columns,) or (columns, k)."""

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y for y (rows,) or (rows, k)."""


class Operator(Products, Protocol):
    """What a solver needs of a matrix: its products, norms, and its dense form for small sizes."""

    @property
    def device(self) -> torch.device:
        """Where vectors are."""

    @property
    def precision(self) -> Precision:
        """What products run in."""

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows."""

    def dense(self) -> torch.Tensor:
        """M itself, stored by columns as LAPACK wants it."""

    def to(self, precision: Precision) -> Operator:
        """The same matrix in another precision."""

    def column_norms(self) -> torch.Tensor:
        """Euclidean norms of M's columns."""

    def leading(self, count: int) -> Operator:
        """The matrix of the first ``count`` columns."""


def form(operator: Operator) -> torch.Tensor:
    """M itself, from an operator's ``columns``, a chunk at a time.

    Stored by columns, so that LAPACK can factorize it in place.
    """
    rows, columns = operator.shape
    transposed = torch.empty(columns, rows, dtype=operator.dtype, device=operator.device)
    block = max(1, CHUNK_BYTES["cpu"] // (max(1, rows) * transposed.element_size()))
    for start in range(0, columns, block):
        part = slice(start, start + block)
        transposed[part] = operator.columns(part)
    return transposed.T
