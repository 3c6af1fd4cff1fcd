"""M of two matrices of signs, made tile by tile inside its products: no factor is ever stored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bnrecon.operators.base import CHUNK_BYTES, form
from bnrecon.operators.signs import SignMatrix
from bnrecon.runtime.precision import FLOAT64, Precision

__all__ = ["Generated"]

TILE = 2**20  # signs that are made at once on a processor, near its second cache
TILE_ROWS = 1024  # of them at least: the products of shorter tiles are added up too often


class Generated:
    """The operator of ``KhatriRao`` for factors ±a and ±b of one bit an entry.

    M (m c0, c1) has the columns vec(B[:, l] A[l, :]). Its products make a run of rows of B^T and of
    A from their bits, multiply them and go on to the next: what is kept beside vectors is one tile,
    and the bits where they are few. Signs are exact in every precision; a b comes at the end.

    Args:
        transposed: B^T (c1, m).
        first: A (c1, c0).
        device: where products are computed.
        precision: what they are computed in.
        tile_rows: features a tile; chosen by size where it is not given.

    >>> from numpy import array
    >>> first, second = (SignMatrix(2, 1, size, lambda start, stop: array([1, 0], dtype="u1"))
    ...                  for size in (2.0, 5.0))
    >>> M = Generated(second, first, torch.device("cpu"))
    >>> M.dense(), M.matvec(torch.tensor([3.0, 4.0], dtype=torch.float64))
    (tensor([[10., 10.]], dtype=torch.float64), tensor([70.], dtype=torch.float64))
    """

    def __init__(
        self,
        transposed: SignMatrix,
        first: SignMatrix,
        device: torch.device,
        precision: Precision = FLOAT64,
        tile_rows: int | None = None,
    ):
        self.transposed, self.first = transposed.hold(device), first.hold(device)
        self.device, self.precision, self.dtype = device, precision, precision.vectors
        self.shape = (transposed.columns * first.columns, first.rows)
        self.size = transposed.size * first.size
        self.tile_rows = tile_rows

    def _tiles(self, many: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Features in runs, and the signs of B^T and A; ``many`` numbers a feature are made."""
        numbers = max(self.transposed.columns, many)
        if self.device.type == "cpu":
            rows = max(TILE_ROWS, TILE // numbers)
        else:
            rows = CHUNK_BYTES[self.device.type] // (numbers * self.precision.factors.itemsize)
        rows = self.tile_rows or rows
        pairs = zip(
            self.transposed.tiles(rows, self.precision.factors),
            self.first.tiles(rows, self.precision.factors),
            strict=True,
        )
        for (part, signs), (_, first) in pairs:
            yield part, signs, first

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x = a b vec(B diag(x) A), for x (c1,) or (c1, k)."""
        many = x.reshape(len(x), -1)
        m, c0, k = self.transposed.columns, self.first.columns, many.shape[1]
        product = torch.zeros(k * c0, m, dtype=self.dtype, device=self.device)
        with self.precision.products():
            for part, signs, first in self._tiles(k * c0):
                scaled = (many[part, :, None].to(first.dtype) * first[:, None]).flatten(1)
                if product.dtype == signs.dtype:
                    product.addmm_(scaled.T, signs)
                else:
                    product += scaled.T @ signs
        product *= self.size
        return product.reshape(k, c0, m).permute(2, 1, 0).reshape(self.shape[0], *x.shape[1:])

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y = a b rowsum((B^T Y) ∘ A), for y (m c0,) or (m c0, k)."""
        m, c0, k = self.transposed.columns, self.first.columns, y.numel() // max(1, len(y))
        table = y.reshape(m, c0, k).transpose(1, 2).reshape(m, k * c0).to(self.precision.factors)
        product = torch.empty(self.first.rows, k, dtype=self.dtype, device=self.device)
        with self.precision.products():
            for part, signs, first in self._tiles(k * c0):
                reached = (signs @ table).reshape(-1, k, c0).mul_(first[:, None])
                torch.sum(reached, 2, dtype=self.dtype, out=product[part])
        product *= self.size
        return product.reshape(self.shape[1], *y.shape[1:])

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows: (count, m c0)."""
        second, first = (
            matrix.signs(part, self.dtype, self.device) for matrix in (self.transposed, self.first)
        )
        return (second[:, :, None] * first[:, None]).flatten(1).mul_(self.size)

    def dense(self) -> torch.Tensor:
        """M (m c0, c1)."""
        return form(self)

    def to(self, precision: Precision) -> Generated:
        """The same features in another precision."""
        return Generated(self.transposed, self.first, self.device, precision, self.tile_rows)

    def column_norms(self) -> torch.Tensor:
        """The same for all: a b sqrt(m c0)."""
        norm = self.size * self.shape[0] ** 0.5
        return torch.full((self.shape[1],), norm, dtype=self.dtype, device=self.device)

    def row_norms(self) -> torch.Tensor:
        """The same for all: a b sqrt(c1)."""
        norm = self.size * self.shape[1] ** 0.5
        return torch.full((self.shape[0],), norm, dtype=self.dtype, device=self.device)

    def leading(self, count: int) -> Generated:
        """The first ``count`` features."""
        return Generated(
            self.transposed.leading(count),
            self.first.leading(count),
            self.device,
            self.precision,
            self.tile_rows,
        )
