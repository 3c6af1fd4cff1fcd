"""Matrices read in blocks of rows, which are generated, read or in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch

from bnrecon.operators.mapped import mapped_tensor
from bnrecon.operators.signs import SignMatrix

TILE = 2**20  # float64 numbers, 8 MB, generated at once on a CPU


def _slices(
    matrix: Rows, rows: int, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[slice, torch.Tensor]]:
    for start in range(0, matrix.rows, rows):
        part = slice(start, min(start + rows, matrix.rows))
        yield part, matrix.values(part, dtype, device)


def _norms(matrix: Rows, device: torch.device) -> torch.Tensor:
    # Small tensors allocated between tiles would fragment the memory of the next tile.
    norms = torch.empty(matrix.rows, dtype=torch.float64, device=device)
    for part, tile in matrix.tiles(max(1, TILE // matrix.columns), torch.float64, device):
        torch.linalg.vector_norm(tile, dim=1, out=norms[part])
    return norms


class HeldRows:
    """The rows of a tensor, in memory or mapped from a file."""

    tiles, norms, size = _slices, _norms, 1.0

    def __init__(self, table: torch.Tensor):
        self.table, (self.rows, self.columns) = table, table.shape

    def hold(self, dtype: torch.dtype, device: torch.device) -> HeldRows:
        """The same rows in another type, or unchanged."""
        return HeldRows(self.table.to(device, dtype))

    def section(self, part: slice) -> HeldRows:
        """The matrix of some rows."""
        return HeldRows(self.table[part])

    def values(self, part: slice, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Some rows, copied only if needed."""
        return self.table[part].to(device, dtype)


@dataclass(frozen=True)
class TableRows:
    """Rows of float32 numbers of a table (outer, rows, inner): row l is [:, l], flattened.

    Iterations read a rounded copy, 2 bytes per number in bf16; what needs exact numbers, such as
    corrections in float64, reads them again tile by tile. If they fit into one tile, they are kept
    in float64 too.

    >>> table = torch.arange(12.0).reshape(2, 3, 2)
    >>> matrix = TableRows(3, 4, lambda start, stop: table[:, start:stop])
    >>> matrix.values(slice(1, 3), torch.float64, torch.device("cpu"))
    tensor([[ 2.,  3.,  8.,  9.],
            [ 4.,  5., 10., 11.]], dtype=torch.float64)
    """

    rows: int  # of the matrix
    columns: int  # outer times inner
    read: Callable[[int, int], torch.Tensor]  # of start and stop: [:, start:stop], always the same
    mapped: bool = False  # whether the rounded copy is in a file, too
    size: ClassVar[float] = 1.0

    tiles, norms = _slices, _norms

    def hold(self, dtype: torch.dtype, device: torch.device) -> Rows:
        """A rounded copy; in float64 these rows, unless they are few."""
        small = self.rows * self.columns <= TILE
        if dtype == torch.float64 and not small:
            return self
        size = self.rows, self.columns
        if self.mapped and not small:
            table = mapped_tensor(size, dtype)
        else:
            table = torch.empty(size, dtype=dtype, device=device)
        for part, tile in self.tiles(max(1, TILE // self.columns), dtype, table.device):
            table[part] = tile
        return HeldRows(table)

    def table(self, part: slice) -> torch.Tensor:
        """The numbers of some rows in the table's layout: (outer, count, inner)."""
        start, stop, _ = part.indices(self.rows)
        return self.read(start, stop)

    def section(self, part: slice) -> TableRows:
        """The matrix of some rows."""
        start, stop, _ = part.indices(self.rows)
        return dataclasses.replace(
            self, rows=stop - start, read=lambda a, b: self.read(start + a, start + b)
        )

    def values(self, part: slice, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Some rows, generated or read now."""
        numbers = self.table(part).transpose(0, 1)
        values = torch.empty(numbers.shape, dtype=dtype, device=numbers.device).copy_(numbers)
        return values.reshape(-1, self.columns).to(device)


# A matrix that products read one run of rows at a time. ``tiles`` yields all rows divided by
# ``size``; each tile may overwrite the previous one.
Rows: TypeAlias = HeldRows | TableRows | SignMatrix
