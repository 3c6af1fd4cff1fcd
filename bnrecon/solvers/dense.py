"""Direct solvers on the formed matrix: LU in float64, and LU in float32 corrected in float64 through the operator."""

from __future__ import annotations

import torch

from bnrecon.construction.two_layer import System
from bnrecon.solvers.base import SolverOptions, Unsuitable, register_solver, require_square

__all__ = ["gmres", "lu", "refined"]

# Libraries of dense linear algebra index entries by 32-bit integers: n² may not reach 2^31.
LARGEST = 46_340


def check_dense(rows: int, columns: int, _orthogonal: bool = False) -> None:
    """Square, and small enough for 32-bit indexing."""
    require_square(rows, columns)
    if rows > LARGEST:
        raise Unsuitable(
            f"dense LU of {rows} unknowns has more than 2^31 entries, which dense libraries do not index safely; "
            "use solver=matrix_free with features.oversampling=1.5"
        )


@register_solver("lu", memory=lambda rows, columns: 4 * 8 * rows * columns, check=check_dense, square=True)
def lu(system: System, options: SolverOptions) -> tuple[torch.Tensor, int]:
    """``torch.linalg.solve`` on M in float64: 8 n² bytes, as much again for the factors, (2/3) n³ flops."""
    return torch.linalg.solve(system.operator.dense(), system.rhs), 0


@register_solver("refined", memory=lambda rows, columns: 4 * 4 * rows * columns, check=check_dense, square=True)
def refined(system: System, options: SolverOptions) -> tuple[torch.Tensor, int]:
    """LU in float32 as preconditioner of GMRES in float64 through the operator: M is never stored in float64.

    Plain iterative refinement needs κ(M) · 6e-8 well below 1, which square random M often violates; GMRES on M (LU)^-1 only
    needs most of the spectrum near 1.
    """
    factors, pivots = torch.linalg.lu_factor(system.operator.to(torch.float32).dense())

    def precondition(residual: torch.Tensor) -> torch.Tensor:
        size = residual.norm()
        scaled = (residual / size).to(torch.float32)[:, None]
        return torch.linalg.lu_solve(factors, pivots, scaled)[:, 0].to(torch.float64) * size

    return gmres(system, precondition, options.tolerance / 10, options.max_iterations or 200)


def gmres(system: System, precondition, tolerance: float, max_iterations: int, restart: int = 40) -> tuple[torch.Tensor, int]:
    """Restarted GMRES with right preconditioning, residual recomputed at each restart; returns x and the iterations."""
    matrix, rhs = system.operator, system.rhs
    x = torch.zeros(matrix.shape[1], dtype=rhs.dtype, device=rhs.device)
    target, spent, last = tolerance * rhs.norm(), 0, float("inf")
    while spent < max_iterations:
        residual = rhs - matrix.matvec(x)
        size = residual.norm()
        if size <= target or not size < 0.9 * last:
            break
        last = float(size)
        steps = min(restart, max_iterations - spent)
        basis = [residual / size]
        directions: list[torch.Tensor] = []
        hessenberg = torch.zeros(steps + 1, steps, dtype=rhs.dtype, device=rhs.device)
        for k in range(steps):
            directions.append(precondition(basis[k]))
            vector = matrix.matvec(directions[k])
            for _ in range(2):  # Gram-Schmidt twice keeps the basis orthogonal to rounding
                stacked = torch.stack(basis)
                overlap = stacked @ vector
                vector = vector - overlap @ stacked
                hessenberg[: k + 1, k] += overlap
            hessenberg[k + 1, k] = vector.norm()
            spent += 1
            start = torch.zeros(k + 2, dtype=rhs.dtype, device=rhs.device)
            start[0] = size
            # On the CPU, where least squares has a driver that stands rank deficiency.
            small = (
                torch.linalg.lstsq(hessenberg[: k + 2, : k + 1].cpu(), start[:, None].cpu(), driver="gelsd")
                .solution[:, 0]
                .to(rhs)
            )
            left = (hessenberg[: k + 2, : k + 1] @ small - start).norm()
            if left <= 0.5 * target or hessenberg[k + 1, k] <= 1e-14:
                break
            basis.append(vector / hessenberg[k + 1, k])
        x = x + small @ torch.stack(directions)
    return x, spent
