"""In-place LU of a dense matrix: by LAPACK, or by panels where that is faster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch

from bnrecon.runtime.hardware import onednn_is_faster
from bnrecon.runtime.torch_modes import CPU
from bnrecon.solvers.base import LinAlgError

LARGEST = 46_340  # for LAPACK's 32-bit indices: n² must stay below 2^31
BY_PANELS = 8_192  # unknowns from which panels are faster
PANEL, TILE = 768, 2048  # columns eliminated at once; rows and columns of a product


@dataclass(frozen=True)
class Lapack:
    """L, U and pivots as ``torch.linalg.lu_factor`` returns them."""

    triangles: torch.Tensor  # L and U, in the memory of the matrix
    pivots: torch.Tensor

    def solve(self, columns: torch.Tensor, transposed: bool = False) -> torch.Tensor:
        """M^-1 times (n, k), or (M^T)^-1."""
        return torch.linalg.lu_solve(self.triangles, self.pivots, columns, adjoint=transposed)


@dataclass(frozen=True)
class Panels:
    """L and U of M^T, whose rows are contiguous: M^T[order] = L U."""

    triangles: torch.Tensor  # L and U, in the memory of the matrix
    order: torch.Tensor

    def solve(self, columns: torch.Tensor, transposed: bool = False) -> torch.Tensor:
        """M^-1 times (n, k), or (M^T)^-1."""
        triangle = torch.linalg.solve_triangular
        if transposed:
            middle = triangle(self.triangles, columns[self.order], upper=False, unitriangular=True)
            return triangle(self.triangles, middle, upper=True)
        middle = triangle(self.triangles.T, columns, upper=False)
        solved = triangle(self.triangles.T, middle, upper=True, unitriangular=True)
        return torch.empty_like(solved).index_copy_(0, self.order, solved)


# Solves systems of one matrix (n, n) repeatedly.
Factorization: TypeAlias = Lapack | Panels


def factorize(matrix: torch.Tensor) -> Factorization:
    """LU with partial pivoting in the memory of ``matrix``, which must be stored by columns.

    Unknowns are limited by ``largest``, in float64 by ``LARGEST``. Raises ``LinAlgError`` if it is
    exactly singular.
    """
    if not matrix.T.is_contiguous():
        raise ValueError(
            "the matrix is not stored by columns, and could not be factorized in place"
        )
    panels = matrix.dtype == torch.float32 and panels_pay(len(matrix), matrix.device)
    return by_panels(matrix) if panels else by_lapack(matrix)


def panels_pay(unknowns: int, device: torch.device) -> bool:
    """Whether ``factorize`` uses panels in float32: faster, or n is too large for LAPACK."""
    return unknowns > LARGEST or (unknowns >= BY_PANELS and onednn_is_faster(device))


def panel_memory(unknowns: int) -> int:
    """Bytes of an LU by panels besides the matrix: copies of a panel, and tiles."""
    if not panels_pay(unknowns, CPU):
        return 0
    return 20 * PANEL * unknowns + 12 * TILE**2


def largest(device: torch.device) -> float:
    """The most unknowns of a matrix in float32: panels have 64-bit indices, LAPACK 32-bit ones."""
    panels = device.type == "cpu" and torch.backends.mkldnn.is_available()
    return math.inf if panels else LARGEST


def by_lapack(matrix: torch.Tensor) -> Lapack:
    """LAPACK's LU, which exchanges rows of M."""
    pivots = torch.empty(len(matrix), dtype=torch.int32, device=matrix.device)
    singular = torch.empty((), dtype=torch.int32, device=matrix.device)
    torch.linalg.lu_factor_ex(matrix, out=(matrix, pivots, singular))
    _require_regular(int(singular))
    return Lapack(matrix, pivots)


def by_panels(matrix: torch.Tensor) -> Panels:
    """The LU of M^T by panels of columns, with oneDNN's products; float32 on the CPU.

    LAPACK exchanges rows. The rows of M^T are M's columns, which are contiguous, so an exchange
    costs little. On a Zen 5 oneDNN multiplies with 512-bit vectors, while MKL, which PyTorch's
    LAPACK calls, uses 256.
    """
    rows = matrix.T
    n, order = len(rows), torch.arange(len(rows), device=rows.device)
    for start in range(0, n, PANEL):
        stop = min(start + PANEL, n)
        panel, swaps, singular = torch.linalg.lu_factor_ex(rows[start:, start:stop])
        _require_regular(int(singular) and start + int(singular))
        moved: dict[int, int] = {}
        for row, other in enumerate(swaps.tolist(), start=1):
            moved[row], moved[other] = moved.get(other, other), moved.get(row, row)
        to, source = (
            torch.tensor(list(which), device=rows.device) + start - 1
            for which in (moved, moved.values())
        )
        order[to] = order[source]
        for beside in (rows[:, :start], rows[:, stop:]):
            for tile in beside.split(TILE, 1):
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
        del packed, panel
    return Panels(rows, order)


def _require_regular(singular: int) -> None:
    if singular:
        raise LinAlgError(f"pivot {singular} is zero")
