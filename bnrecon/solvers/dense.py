"""Direct solvers on the formed matrix: LU in float64, and in float32 corrected in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.system import System
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import factorization
from bnrecon.solvers.base import Answer
from bnrecon.solvers.progress import ResidualBar, clock
from bnrecon.solvers.spec import SolverSpec

MOST_STEPS = 400  # of GMRES, unless ``SolverSpec.max_iterations`` is set
RESTART = 60  # GMRES vectors before a restart: 2 · 60 · 8 n bytes
DEFLATED = 2  # singular values that the approximate inverse treats separately
CORRECTIONS = 10  # of the float64 LU, at most; one suffices unless κ(M) nears 1e16


def _factors(operator: Operator) -> factorization.Factorization:
    n = operator.shape[0]
    # A laptop's; only for the expected time of the progress bar
    speed = 1e11 if operator.dtype == torch.float32 else 5e10
    precision = str(operator.dtype).removeprefix("torch.")
    with clock(f"LU of {n} x {n} in {precision}", 2 / 3 * n**3 / speed):
        return factorization.factorize(operator.dense())


def lu_memory(rows: int, columns: int) -> int:
    """Bytes: M in float64, factorized in place."""
    return 8 * rows * columns + 2**26


def lu(system: System, _spec: SolverSpec) -> Answer:
    """Dense LU in float64 (LAPACK's dgetrf), in place, corrected: 8 n² bytes, (2/3) n³ flops.

    LU leaves a residual of about 9 u ‖|M| |x|‖ at n = 2,289, u = 2.2e-16, which misses the
    tolerance in ill-conditioned systems, where x is large. One correction x += (LU)^-1 r with r = b
    - M x from the operator reduces it to 0.2 u ‖|M| |x|‖, the rounding of the product M x itself,
    below which no float64 residual differs from zero. Corrections end when one no longer halves the
    residual.
    """
    factors = _factors(system.operator)

    def solve(residual: torch.Tensor) -> torch.Tensor:
        return factors.solve(residual[:, None])[:, 0]

    x = solve(system.rhs)
    residual = system.rhs - system.operator.matvec(x)
    for _ in range(CORRECTIONS):
        better = x + solve(residual)
        next_residual = system.rhs - system.operator.matvec(better)
        if not next_residual.norm() < 0.5 * residual.norm():
            break
        x, residual = better, next_residual
    return Answer(x, 0, precision="float64")


def refined_memory(rows: int, columns: int) -> int:
    """Bytes: M in float32, factorized in place, and the vectors of GMRES."""
    factors = 4 * rows * columns + factorization.panel_memory(columns)
    return factors + 16 * RESTART * columns + 2**26


def refined(system: System, spec: SolverSpec) -> Answer:
    """LU in float32, in place, as preconditioner of GMRES in float64 through the operator.

    M is never stored in float64.

    Plain iterative refinement needs κ(M) · 6e-8 well below 1, which square random M often violates.
    GMRES only needs most of the spectrum of M times the approximate inverse to be near 1
    (``approximate_inverse``).
    """
    factors = _factors(system.operator.to(FLOAT32))
    inverse = approximate_inverse(system.operator.matvec, factors)
    return preconditioned_gmres(system, spec, inverse)


def preconditioned_gmres(
    system: System,
    spec: SolverSpec,
    precondition: Callable[[torch.Tensor], torch.Tensor],
    factorized: str = "LU in float32",
) -> Answer:
    """Solve a system by GMRES in float64, with an approximate inverse in float32."""
    operator, rhs = system.operator, system.rhs
    limit, tolerance = spec.max_iterations or MOST_STEPS, spec.tolerance / 10
    with ResidualBar(f"correcting {len(rhs)} x {len(rhs)}", spec.tolerance) as bar:
        x, steps = gmres(operator, rhs, precondition, tolerance, limit, show=bar.show)
    at_limit = steps >= limit and bool((rhs - operator.matvec(x)).norm() > tolerance * rhs.norm())
    precision = f"{factorized}, corrected in float64"
    return Answer(x, steps, precision=precision, at_limit=at_limit)


def approximate_inverse(
    matvec: Callable[[torch.Tensor], torch.Tensor], factors: factorization.Factorization
) -> Callable[[torch.Tensor], torch.Tensor]:
    """An approximate inverse of M from its LU in float32, also where M is nearly singular.

    (LU)^-1 r is then a large multiple of one vector v, and float32 loses the rest to rounding: by a
    factor of 1e8, all of GMRES's vectors are v and noise. The two smallest singular values are
    therefore treated separately. With orthonormal U and V (n, 2) near their left and right singular
    vectors, from one step of inverse iteration each,

        P r = (LU)^-1 (r - U U^T r) + V (U^T M V)^-1 U^T r,

    in float64 except for (LU)^-1. If the smallest value is far below the next, the second pair of
    vectors is mostly rounding: a change of rank one, which GMRES corrects in one step. If (LU)^-1
    overflows float32, P is (LU)^-1 alone, and a solver's scales are not finite.

    Takes the product with M (n, n) in float64; P is a function of (n,) or (n, k).
    """

    def solve(residuals: torch.Tensor, transposed: bool = False) -> torch.Tensor:
        columns = residuals.reshape(len(residuals), -1)
        sizes = columns.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
        scaled = (columns / sizes).to(torch.float32)
        solved = factors.solve(scaled, transposed)
        return (solved.to(torch.float64) * sizes).reshape(residuals.shape)

    n, device = len(factors.triangles), factors.triangles.device
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.empty(0, n, dtype=torch.float64, device=device) for _ in range(2))
    for _ in range(min(DEFLATED, n)):
        start = torch.randn(n, dtype=torch.float64, generator=generator).to(device)
        left = _extended(left, solve(_orthogonal(start, right), transposed=True))
        right = _extended(right, solve(left[-1]))
    values = left @ torch.stack([matvec(vector) for vector in right], 1)
    if not bool(torch.isfinite(values).all()):
        return solve
    inverse = torch.linalg.pinv(values)

    def precondition(residuals: torch.Tensor) -> torch.Tensor:
        part = left @ residuals
        return solve(residuals - left.T @ part) + right.T @ (inverse @ part)

    return precondition


def _orthogonal(vector: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Subtract a vector's part in the rows of ``basis``; twice, against rounding."""
    for _ in range(2):
        vector = vector - (basis @ vector) @ basis
    return vector


def _extended(basis: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Extend orthonormal rows by one in the direction of a vector."""
    vector = _orthogonal(vector / vector.norm(), basis)
    return torch.cat([basis, (vector / vector.norm())[None]])


def gmres(
    matrix: Operator,
    rhs: torch.Tensor,
    precondition: Callable[[torch.Tensor], torch.Tensor],
    tolerance: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
) -> tuple[torch.Tensor, int]:
    """Restarted GMRES with right preconditioning, residual recomputed at each restart.

    It solves for a matrix (n, n) in float64, whose inverse ``precondition`` approximates, until the
    relative residual reaches ``tolerance`` or ``max_iterations`` products with the matrix are made.
    ``show`` is called with iterations and residual. Returns x (n,) and the iterations.
    """
    x = torch.zeros(matrix.shape[1], dtype=rhs.dtype, device=rhs.device)
    rhs_norm = rhs.norm()
    target, iterations, previous_norm = tolerance * rhs_norm, 0, float("inf")
    while iterations < max_iterations:
        residual = rhs - matrix.matvec(x)
        residual_norm = residual.norm()
        if residual_norm <= target or not residual_norm < 0.9 * previous_norm:
            break
        previous_norm = float(residual_norm)
        steps = min(RESTART, max_iterations - iterations)
        basis = torch.empty(steps + 1, len(rhs), dtype=rhs.dtype, device=rhs.device)
        directions = torch.empty(steps, len(x), dtype=rhs.dtype, device=rhs.device)
        basis[0] = residual / residual_norm
        # float64 cannot gain more before a restart
        threshold = max(0.5 * target, 1e-14 * residual_norm)
        hessenberg = torch.zeros(steps + 1, steps, dtype=rhs.dtype, device=rhs.device)
        for k in range(steps):
            directions[k] = precondition(basis[k])
            vector = matrix.matvec(directions[k])
            for _ in range(2):  # Gram-Schmidt twice keeps the basis orthogonal to rounding
                overlap = basis[: k + 1] @ vector
                vector = vector - overlap @ basis[: k + 1]
                hessenberg[: k + 1, k] += overlap
            hessenberg[k + 1, k] = vector.norm()
            iterations += 1
            # On the CPU, whose least squares has a driver for rank deficiency.
            small = hessenberg[: k + 2, : k + 1].cpu()
            projected = torch.zeros(k + 2, 1, dtype=rhs.dtype)
            projected[0] = float(residual_norm)
            weights = torch.linalg.lstsq(small, projected, driver="gelsd").solution
            estimate = float((small @ weights - projected).norm())
            show(iterations, estimate / float(rhs_norm))
            if estimate <= threshold or hessenberg[k + 1, k] <= 1e-14:
                break
            basis[k + 1] = vector / hessenberg[k + 1, k]
        x = x + weights[:, 0].to(rhs) @ directions[: k + 1]
    return x, iterations
