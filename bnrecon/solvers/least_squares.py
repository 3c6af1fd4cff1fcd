"""The least-squares solution of systems without an exact one, at any rank of M."""

from __future__ import annotations

import torch

from bnrecon.operators.system import System
from bnrecon.solvers.base import Answer
from bnrecon.solvers.krylov import MOST_ITERATIONS, cgls
from bnrecon.solvers.progress import ResidualBar, clock
from bnrecon.solvers.spec import SolverSpec

LARGEST = 4000  # the smaller side of M up to which its singular values are used


def memory(rows: int, columns: int) -> int:
    """Bytes: M and its singular vectors if they are used, else vectors."""
    return 8 * (3 * rows * columns if min(rows, columns) <= LARGEST else 12 * columns)


def least_squares(system: System, spec: SolverSpec) -> Answer:
    """Find the x of smallest norm that minimizes ‖M x - b‖.

    By singular values (LAPACK's gelsd) if M has up to 4,000 rows or columns, else by CGLS. gelsd
    works at any rank; it runs on the CPU, as GPUs only have ``gels``, which is silently wrong for a
    rank-deficient M. CGLS runs in float64 from zero, unscaled, until the gradient M^T r has fallen
    to 1e-10 of its initial size.
    """
    operator, rhs = system.operator, system.rhs
    rows, columns = operator.shape
    if min(rows, columns) > LARGEST:
        size = rhs.norm().clamp_min(torch.finfo(rhs.dtype).tiny)
        limit = spec.max_iterations or MOST_ITERATIONS
        gain = 0.1 * spec.tolerance
        with ResidualBar(f"least squares {rows} x {columns}", spec.tolerance) as bar:
            x, steps = cgls(operator, rhs / size, gain, limit, bar.show, 1e-10, float("inf"))
        at_limit = steps >= limit
        reached = f"as far as {limit} iterations got" if at_limit else "minimum norm of the scales"
        return Answer(size * x, steps, f"least squares, {reached}", "float64", at_limit)
    operations = 8 * min(rows, columns) ** 2 * max(rows, columns)
    with clock(f"singular values of {rows} x {columns}", operations / 2e10):
        fit = torch.linalg.lstsq(operator.dense().cpu(), rhs[:, None].cpu(), driver="gelsd")
    norm = "least squares, minimum norm of the scales"
    return Answer(fit.solution[:, 0].to(rhs), 0, norm, "float64")
