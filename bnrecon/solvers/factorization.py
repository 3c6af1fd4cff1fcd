"""LU of a dense matrix in its own memory: by LAPACK, or by panels where that is faster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from bnrecon.runtime.hardware import onednn_is_faster
from bnrecon.solvers.base import LinAlgError

BY_PANELS = 8_192  # unknowns from which on panels are faster
PANEL, TILE = 768, 2048  # columns that are eliminated at once, and a product's rows and columns


@dataclass(frozen=True)
class Factorization(ABC):
    """What solves systems of one matrix (n, n), again and again."""

    factors: torch.Tensor  # L and U, in the memory of the matrix

    @abstractmethod
    def solve(self, columns: torch.Tensor, transposed: bool = False) -> torch.Tensor:
        """M^-1 times (n, k), or (M^T)^-1."""


@dataclass(frozen=True)
class Lapack(Factorization):
    """L, U and pivots as ``torch.linalg.lu_factor`` returns them."""

    pivots: torch.Tensor

    def solve(self, columns: torch.Tensor, transposed: bool = False) -> torch.Tensor:
        """M^-1 times (n, k), or (M^T)^-1."""
        return torch.linalg.lu_solve(self.factors, self.pivots, columns, adjoint=transposed)


@dataclass(frozen=True)
class Panels(Factorization):
    """L and U of M^T, whose rows are stored one after the other: M^T[order] = L U."""

    order: torch.Tensor

    def solve(self, columns: torch.Tensor, transposed: bool = False) -> torch.Tensor:
        """M^-1 times (n, k), or (M^T)^-1."""
        triangle = torch.linalg.solve_triangular
        if transposed:
            middle = triangle(self.factors, columns[self.order], upper=False, unitriangular=True)
            return triangle(self.factors, middle, upper=True)
        middle = triangle(self.factors.T, columns, upper=False)
        solved = triangle(self.factors.T, middle, upper=True, unitriangular=True)
        return torch.empty_like(solved).index_copy_(0, self.order, solved)


def factorize(matrix: torch.Tensor) -> Factorization:
    """LU with partial pivoting in the memory of ``matrix``, which must be stored by columns.

    Raises ``LinAlgError`` for an exactly singular matrix.
    """
    if not matrix.T.is_contiguous():
        raise ValueError(
            "the matrix is not stored by columns, and could not be factorized in place"
        )
    if matrix.dtype == torch.float32 and panels_pay(len(matrix), matrix.device):
        return by_panels(matrix)
    return by_lapack(matrix)


def panels_pay(unknowns: int, device: torch.device) -> bool:
    """Whether ``factorize`` takes panels in float32: where these are faster."""
    return unknowns >= BY_PANELS and onednn_is_faster(device)


def by_lapack(matrix: torch.Tensor) -> Lapack:
    """LAPACK's LU, rows of M being exchanged."""
    pivots = torch.empty(len(matrix), dtype=torch.int32, device=matrix.device)
    singular = torch.empty((), dtype=torch.int32, device=matrix.device)
    torch.linalg.lu_factor_ex(matrix, out=(matrix, pivots, singular))
    _check(int(singular))
    return Lapack(matrix, pivots)


def by_panels(matrix: torch.Tensor) -> Panels:
    """The LU of M^T by panels of columns, its products being oneDNN's; float32 on the CPU.

    LAPACK exchanges rows. In M^T, whose rows are M's columns, these lie one after the other, and an
    exchange costs little. On AMD's processors oneDNN multiplies with 512-bit vectors, where MKL,
    which PyTorch's LAPACK calls, has 256.
    """
    rows = matrix.T
    n, order = len(rows), torch.arange(len(rows))
    for start in range(0, n, PANEL):
        stop = min(start + PANEL, n)
        panel, swaps, singular = torch.linalg.lu_factor_ex(rows[start:, start:stop])
        _check(start * bool(singular) + int(singular))
        moved: dict[int, int] = {}
        for row, other in enumerate(swaps.tolist(), start=1):
            moved[row], moved[other] = moved.get(other, other), moved.get(row, row)
        to, source = (start - 1 + torch.tensor(list(which)) for which in (moved, moved.values()))
        for tile in (*rows.split(TILE, 1), order):
            tile[to] = tile[source]
        rows[start:, start:stop] = panel
        if stop == n:
            break
        right = rows[start:stop, stop:]
        right.copy_(
            torch.linalg.solve_triangular(
                panel[: stop - start], right, upper=False, unitriangular=True
            )
        )
        packed = [some.T.contiguous().to_mkldnn() for some in right.split(TILE, 1)]
        for some in rows[stop:].split(TILE):
            left = some[:, start:stop].contiguous().to_mkldnn()
            for tile, factor in zip(some[:, stop:].split(TILE, 1), packed, strict=True):
                tile -= torch.nn.functional.linear(left, factor).to_dense()
    return Panels(rows, order)


def _check(singular: int) -> None:
    if singular:
        raise LinAlgError(f"pivot {singular} is zero")
