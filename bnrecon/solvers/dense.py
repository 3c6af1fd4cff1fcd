"""Direct solvers on the formed matrix: LU in float64, and in float32 corrected in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.system import System
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers.base import Answer, LinAlgError, Unsuitable, require_square
from bnrecon.solvers.progress import ResidualBar, clock
from bnrecon.solvers.spec import SolverSpec

__all__ = ["factorize", "gmres", "lu", "refined"]

# Libraries of dense linear algebra index entries by 32-bit integers: n² may not reach 2^31.
LARGEST = 46_340
RESTART = 60  # GMRES vectors held before a restart: 2 · 60 · 8 n bytes


def check_dense(rows: int, columns: int, _orthogonal: bool = False) -> None:
    """Square, and small enough for 32-bit indexing."""
    require_square(rows, columns)
    if rows > LARGEST:
        raise Unsuitable(
            f"dense LU of {rows} unknowns has more than 2^31 entries, which dense libraries do not "
            "index safely; "
            "use solver=matrix_free with oversampling=1.5"
        )


def factorize(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """LU with row pivoting in the memory of ``matrix``, which must be stored by columns.

    Raises ``LinAlgError`` for an exactly singular matrix.
    """
    if not matrix.T.is_contiguous():
        raise ValueError(
            "the matrix is not stored by columns, and could not be factorized in place"
        )
    pivots = torch.empty(len(matrix), dtype=torch.int32, device=matrix.device)
    singular = torch.empty((), dtype=torch.int32, device=matrix.device)
    torch.linalg.lu_factor_ex(matrix, out=(matrix, pivots, singular))
    if int(singular):
        raise LinAlgError(f"pivot {int(singular)} is zero")
    return matrix, pivots


def _factors(operator: Operator) -> tuple[torch.Tensor, torch.Tensor]:
    n = operator.shape[0]
    # A laptop's; only for the time the bar expects
    speed = 1e11 if operator.dtype == torch.float32 else 5e10
    with clock(
        f"LU of {n} x {n} in {str(operator.dtype).removeprefix('torch.')}", 2 / 3 * n**3 / speed
    ):
        return factorize(operator.dense())


def lu_memory(rows: int, columns: int) -> int:
    """Bytes: M in float64, factorized in place."""
    return 8 * rows * columns + 2**26


def lu(system: System, _spec: SolverSpec) -> Answer:
    """Dense LU in float64 (LAPACK's dgetrf), in place: 8 n² bytes, (2/3) n³ flops."""
    factors, pivots = _factors(system.operator)
    return Answer(
        torch.linalg.lu_solve(factors, pivots, system.rhs[:, None])[:, 0], 0, precision="float64"
    )


def refined_memory(rows: int, columns: int) -> int:
    """Bytes: M in float32, factorized in place, and the vectors of GMRES."""
    return 4 * rows * columns + 16 * RESTART * columns + 2**26


def refined(system: System, spec: SolverSpec) -> Answer:
    """LU in float32, in place, as preconditioner of GMRES in float64 through the operator.

    M is never stored in float64.

    Plain iterative refinement needs κ(M) · 6e-8 well below 1, which square random M often violates;
    GMRES on M (LU)^-1 only needs most of the spectrum near 1.
    """
    factors, pivots = _factors(system.operator.to(FLOAT32))

    def precondition(residual: torch.Tensor) -> torch.Tensor:
        size = residual.norm()
        scaled = (residual / size).to(torch.float32)[:, None]
        return torch.linalg.lu_solve(factors, pivots, scaled)[:, 0].to(torch.float64) * size

    with ResidualBar(f"correcting {len(factors)} x {len(factors)}", spec.tolerance) as bar:
        x, steps = gmres(
            system.operator,
            system.rhs,
            precondition,
            spec.tolerance / 10,
            spec.max_iterations or 400,
            show=bar.show,
        )
    return Answer(x, steps, precision="LU in float32, corrected in float64")


def gmres(
    matrix: Operator,
    rhs: torch.Tensor,
    precondition: Callable[[torch.Tensor], torch.Tensor],
    tolerance: float,
    max_iterations: int,
    restart: int = RESTART,
    show: Callable[[int, float], None] = lambda *_: None,
) -> tuple[torch.Tensor, int]:
    """Restarted GMRES with right preconditioning, residual recomputed at each restart.

    Args:
        matrix: (n, n), in float64.
        rhs: (n,).
        precondition: applies an approximate inverse to (n,).
        tolerance: relative residual at which to stop.
        max_iterations: products with the matrix, at most.
        restart: vectors held before a restart.
        show: called with iterations and relative residual.

    Returns:
        x (n,) and the iterations.
    """
    x = torch.zeros(matrix.shape[1], dtype=rhs.dtype, device=rhs.device)
    whole = rhs.norm()
    target, spent, last = tolerance * whole, 0, float("inf")
    while spent < max_iterations:
        residual = rhs - matrix.matvec(x)
        size = residual.norm()
        if size <= target or not size < 0.9 * last:
            break
        last = float(size)
        steps = min(restart, max_iterations - spent)
        basis = torch.empty(steps + 1, len(rhs), dtype=rhs.dtype, device=rhs.device)
        directions = torch.empty(steps, len(x), dtype=rhs.dtype, device=rhs.device)
        basis[0] = residual / size
        hessenberg = torch.zeros(steps + 1, steps, dtype=rhs.dtype, device=rhs.device)
        for k in range(steps):
            directions[k] = precondition(basis[k])
            vector = matrix.matvec(directions[k])
            for _ in range(2):  # Gram-Schmidt twice keeps the basis orthogonal to rounding
                overlap = basis[: k + 1] @ vector
                vector = vector - overlap @ basis[: k + 1]
                hessenberg[: k + 1, k] += overlap
            hessenberg[k + 1, k] = vector.norm()
            spent += 1
            # On the CPU, where least squares has a driver that stands rank deficiency.
            small = hessenberg[: k + 2, : k + 1].cpu()
            start = torch.zeros(k + 2, 1, dtype=rhs.dtype)
            start[0] = float(size)
            weights = torch.linalg.lstsq(small, start, driver="gelsd").solution
            left = float((small @ weights - start).norm())
            show(spent, left / float(whole))
            if left <= 0.5 * target or hessenberg[k + 1, k] <= 1e-14:
                break
            basis[k + 1] = vector / hessenberg[k + 1, k]
        x = x + weights[:, 0].to(rhs) @ directions[: k + 1]
    return x, spent
