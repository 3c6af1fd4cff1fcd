"""M of two matrices that are read in blocks of rows; products go tile by tile."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bnrecon.operators.base import CHUNK_BYTES, Operator
from bnrecon.operators.rows import TILE, Rows
from bnrecon.operators.signs import ExpandedSigns, SignMatrix, has_room_for_signs
from bnrecon.runtime.precision import FLOAT64, Precision

TILE_BYTES = 2**22  # of rows of B^T or A on a CPU: they stay in its cache
TILE_ROWS = 1024  # at least: products of shorter tiles need too many sums


class Generated(Operator):
    """The operator of ``KhatriRao`` for factors that are never in memory as a whole in float64.

    M (m c0, c1) has the columns vec(B[:, l] A[l, :]). Its products take a run of rows of B^T and of
    A, multiply them and go on to the next. Besides vectors, memory holds one tile and the source of
    the rows: random bits, or rounded rows in memory or in a file. In float64 the exact rows are
    drawn or read again for each product. Random signs are exact in every precision; products are
    multiplied by their sizes at the end.

    Args:
        transposed: B^T (c1, m).
        first: A (c1, c0).
        device: where products are computed.
        precision: of products.

    >>> from bnrecon.operators.rows import HeldRows
    >>> second, first = (HeldRows(torch.tensor(rows)) for rows in ([[1.0], [5.0]], [[3.0], [2.0]]))
    >>> M = Generated(second, first, torch.device("cpu"))
    >>> M.dense(), M.matvec(torch.tensor([3.0, 4.0], dtype=torch.float64))
    (tensor([[ 3., 10.]], dtype=torch.float64), tensor([49.], dtype=torch.float64))
    """

    def __init__(
        self, transposed: Rows, first: Rows, device: torch.device, precision: Precision = FLOAT64
    ):
        self.transposed, self.first = _prepared((transposed, first), precision.factors, device)
        self.device, self.precision, self.dtype = device, precision, precision.vectors
        self.shape = (transposed.columns * first.columns, first.rows)
        self.size = transposed.size * first.size
        self._norms: torch.Tensor | None = None

    @staticmethod
    def tile_bytes(features: int, numbers: int, device: torch.device) -> int:
        """Bytes of the tiles of a float64 product, with ``numbers`` numbers per feature.

        On a CPU ten times ``TILE`` numbers suffice for tiles, their random numbers and products; on
        a GPU there are rows of B^T and A, and their product with the vector.
        """
        if device.type == "cpu":
            return 8 * max(10 * TILE, 4 * TILE_ROWS * numbers)
        return 3 * min(CHUNK_BYTES[device.type], 8 * features * numbers)

    def _tiles(self, many: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield runs of features and their rows of B^T and A; a feature makes ``many`` numbers."""
        numbers, dtype = max(self.transposed.columns, many), self.precision.factors
        if self.device.type == "cpu":
            rows = max(TILE_ROWS, TILE_BYTES // (numbers * dtype.itemsize))
        else:
            rows = max(1, CHUNK_BYTES[self.device.type] // (numbers * dtype.itemsize))
        pairs = (each.tiles(rows, dtype, self.device) for each in (self.transposed, self.first))
        for (part, second), (_, first) in zip(*pairs, strict=True):
            yield part, second, first

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x = a b vec(B diag(x) A), for x (c1,) or (c1, k)."""
        many = x.reshape(len(x), -1)
        m, c0, k = self.transposed.columns, self.first.columns, many.shape[1]
        product = torch.zeros(k * c0, m, dtype=self.dtype, device=self.device)
        with self.precision.products():
            for part, second, first in self._tiles(k * c0):
                scaled = (many[part, :, None].to(first.dtype) * first[:, None]).flatten(1)
                if product.dtype == second.dtype:
                    product.addmm_(scaled.T, second)
                else:  # bf16 products on a CPU need the sum over features contiguous
                    turned = scaled.T.contiguous() if self.device.type == "cpu" else scaled.T
                    product += turned @ second
        product *= self.size
        return product.reshape(k, c0, m).permute(2, 1, 0).reshape(self.shape[0], *x.shape[1:])

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y = a b rowsum((B^T Y) ∘ A), for y (m c0,) or (m c0, k)."""
        m, c0, k = self.transposed.columns, self.first.columns, y.numel() // max(1, len(y))
        table = y.reshape(m, c0, k).transpose(1, 2).reshape(m, k * c0).to(self.precision.factors)
        product = torch.empty(self.first.rows, k, dtype=self.dtype, device=self.device)
        with self.precision.products():
            for part, second, first in self._tiles(k * c0):
                reached = (second @ table).reshape(-1, k, c0).mul_(first[:, None])
                torch.sum(reached, 2, dtype=self.dtype, out=product[part])
        product *= self.size
        return product.reshape(self.shape[1], *y.shape[1:])

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows: (count, m c0)."""
        second, first = (
            matrix.values(part, self.dtype, self.device) for matrix in (self.transposed, self.first)
        )
        return (second[:, :, None] * first[:, None]).flatten(1)

    def to(self, precision: Precision) -> Generated:
        """The same features in another precision."""
        return Generated(self.transposed, self.first, self.device, precision)

    def column_norms(self) -> torch.Tensor:
        """|B[:, l]| · |A[l, :]|; computed once, as it may take a pass over all rows."""
        if self._norms is None:
            norms = self.transposed.norms(self.device) * self.first.norms(self.device)
            self._norms = norms.to(self.dtype)
        return self._norms

    def leading(self, count: int) -> Generated:
        """The first ``count`` features."""
        second, first = self.transposed.section(slice(count)), self.first.section(slice(count))
        return Generated(second, first, self.device, self.precision)


def _prepared(
    factors: tuple[Rows, Rows], dtype: torch.dtype, device: torch.device
) -> tuple[Rows, Rows]:
    """The factors prepared for many products: rounded, or the bits of signs.

    In bf16, signs are kept expanded if a GPU has room for both factors.
    """
    second, first = (factor.hold(dtype, device) for factor in factors)
    if (
        dtype == torch.bfloat16
        and type(second) is type(first) is SignMatrix
        and has_room_for_signs(second.rows * (second.columns + first.columns), device)
    ):
        return ExpandedSigns.of(second, device), ExpandedSigns.of(first, device)
    return second, first
