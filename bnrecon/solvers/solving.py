"""One call for all solvers: choose, check, solve, and recompute the residual."""

from __future__ import annotations

import dataclasses
import time

import torch

from bnrecon.construction.two_layer import System
from bnrecon.errors import RunError
from bnrecon.hardware import available_memory
from bnrecon.khatri_rao import KhatriRao
from bnrecon.solvers.base import Report, Solution, SolverOptions, lookup, require_memory
from bnrecon.solvers.dense import LARGEST

__all__ = ["choose", "relative_residual", "solve"]


def choose(rows: int, columns: int, orthogonal: bool, memory: int) -> str:
    """Name the solver for a system of ``rows`` equations, ``columns`` unknowns and ``memory`` free bytes.

    The closed form where M is orthogonal. From an oversampling of 1.02 on, the spectrum keeps away from 0 and the matrix-free
    solver converges. In between a square system is factorized: in float64 up to 4,000 unknowns, which takes seconds, beyond
    that in float32 with correction, if it fits.

    >>> choose(36864, 55296, orthogonal=False, memory=16 * 10**9)
    'matrix_free'
    """
    if orthogonal:
        return "closed_form"
    if rows != columns or rows > LARGEST:
        return "matrix_free"
    if rows <= 4000 and lookup("lu").memory(rows, columns) < memory:
        return "lu"
    return "refined" if lookup("refined").memory(rows, columns) < memory else "matrix_free"


def solve(name: str, system: System, options: SolverOptions | None = None) -> Solution:
    """Solve a system with a registered solver and report the residual recomputed from the operator in float64.

    ``auto`` stands for the solver that ``choose`` names; where there are only a few more features than the n equations, for
    that of the first n of them.

    Raises ``Unsuitable`` where the solver does not apply, ``RunError`` where memory does not suffice, the system is singular or
    the answer is not finite. A solver that merely falls short says ``converged=False``.
    """
    options = options or SolverOptions()
    if name == "auto" and (part := _leading_square(system)) is not None:
        found = solve("auto", part, options)
        scale = torch.zeros(system.operator.shape[1], dtype=torch.float64, device=found.scale.device)
        scale[: len(found.scale)] = found.scale
        return Solution(scale, dataclasses.replace(found.report, norm="that of the first n features; the other scales are 0"))
    if name == "auto":
        name = choose(*system.operator.shape, system.orthogonal, available_memory(system.rhs.device))
    solver = lookup(name)
    solver.check(*system.operator.shape, system.orthogonal)
    need = solver.memory(*system.operator.shape)
    require_memory(need, system.rhs.device, name, "use solver=matrix_free with features.oversampling=1.5, or features=id_cond")
    started = time.perf_counter()
    try:
        x, iterations = solver.solve(system, options)
    except torch.linalg.LinAlgError:
        rows, columns = system.operator.shape
        raise RunError(
            f"the {rows} x {columns} system is singular: some features are dead or linearly dependent; take more of them "
            "(features.oversampling=1.5), another seed, or other features"
        ) from None
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    spent = time.perf_counter() - started
    if not bool(torch.isfinite(x).all()):
        raise RunError(
            f"solver {name} gave scales that are not finite: the system is singular to working precision; take more features"
        )
    x = x.to(torch.float64)
    residual = relative_residual(system, x)
    return Solution(x, Report(name, residual, iterations, spent, need, residual <= options.tolerance, solver.norm))


def _leading_square(system: System) -> System | None:
    """The system of the first n features, where a few more than n are there and its factorization fits; ``None`` otherwise.

    Below an oversampling of 1.02 the spectrum reaches down to about 0: an iteration would hardly end, and a factorization
    needs no more than n features.
    """
    rows, columns = system.operator.shape
    operator = system.operator
    if not isinstance(operator, KhatriRao) or not rows < columns < 1.02 * rows:
        return None
    if choose(rows, rows, False, available_memory(system.rhs.device)) == "matrix_free":
        return None
    leading = KhatriRao(operator.transposed[:rows], operator.first[:rows], operator.block)
    return dataclasses.replace(system, operator=leading, matrix=leading)


def relative_residual(system: System, x: torch.Tensor) -> float:
    """‖M x - b‖ / ‖b‖ in float64 from the operator; the absolute residual where b is zero."""
    residual, norm = float((system.operator.matvec(x) - system.rhs).norm()), float(system.rhs.norm())
    return residual / norm if norm > 0 else residual
