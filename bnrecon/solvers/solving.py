"""One call for all solvers: choose, check, solve, recompute the residual, and say what stands in the way."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch

from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import System
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import available_memory, exact_float32, gigabytes
from bnrecon.solvers.base import Report, Solution, SolverOptions, lookup, require_memory
from bnrecon.solvers.dense import LARGEST
from bnrecon.solvers.diagnosis import diagnose
from bnrecon.solvers.iterative import expected_iterations

__all__ = ["Choice", "choose", "relative_residual", "solve"]

SMALL = 4000  # unknowns up to which LU in float64 takes seconds
WAY_OUT = "take more features (features.oversampling=1.5), another seed or other features, or solver=least_squares"


@dataclass(frozen=True)
class Choice:
    """A solver, why, and how many of the features it is given: the first n, where a few more are there."""

    solver: str
    reason: str
    features: int


def choose(
    rows: int, columns: int, orthogonal: bool, memory: int, tolerance: float = 1e-10
) -> Choice:
    """Pick the solver for ``rows`` equations, ``columns`` unknowns and ``memory`` free bytes.

    The closed form where M is orthogonal; least squares where there are fewer unknowns than equations. Otherwise the
    matrix-free solver takes about ln(1/tol) / (½ ln(c1/n)) iterations of 4 n c1 flops and a factorization (2/3) n³: below 2,400
    iterations (an oversampling of 1.02) or n / 6, at which the two cost the same, the former; beyond, the LU of the
    first n features, in float64 up to 4,000 and in float32 with correction above, if it fits.

    >>> choose(36864, 55296, orthogonal=False, memory=16 * 10**9).solver
    'matrix_free'
    >>> print(choose(36864, 36864, orthogonal=False, memory=16 * 10**9).reason)
    as many features as equations: the spectrum of M reaches down to 0, and an LU is the right tool
    """
    if orthogonal and rows == columns:
        return Choice(
            "closed_form",
            "M is orthogonal, or a permutation of copies: its transpose solves the system",
            columns,
        )
    if columns < rows:
        return Choice(
            "least_squares",
            f"{columns} features for {rows} equations have no exact solution in general",
            columns,
        )
    iterations = expected_iterations(columns / rows, tolerance)
    if iterations <= max(2400, rows / 6):
        return Choice(
            "matrix_free",
            f"oversampling {columns / rows:.4g}: about {iterations:.0f} iterations",
            columns,
        )
    direct = "lu" if rows <= SMALL else "refined"
    short = (
        "as many features as equations"
        if columns == rows
        else f"{columns - rows} features more than equations"
    )
    why = f"{short}: the spectrum of M reaches down to {'' if columns == rows else 'about '}0"
    need = lookup(direct).memory(rows, rows)
    if rows > LARGEST:
        return Choice(
            "matrix_free",
            f"{why}, and {rows} unknowns are too many for a dense LU: slow, and may fall short",
            columns,
        )
    if need > memory:
        without = f"an LU would need {gigabytes(need)}, {gigabytes(memory)} are free: slow, and may fall short"
        return Choice("matrix_free", f"{why}; {without}", columns)
    return Choice(direct, f"{why}, and an LU is the right tool", rows)


def solve(name: str, system: System, options: SolverOptions | None = None) -> Solution:
    """Solve a system with a registered solver and report the residual recomputed from the operator in float64.

    ``auto`` stands for what ``choose`` picks. Scales of features that it leaves out are 0.

    Raises ``UserError`` for a target that is not finite, ``Unsuitable`` where the solver does not apply, ``RunError`` where
    memory does not suffice, the system is singular or the answer is not finite. A solver that merely falls short says
    ``converged=False``; ``report.diagnosis`` says why, where a reason is found.
    """
    options = options or SolverOptions()
    if not bool(torch.isfinite(system.rhs).all()):
        raise UserError(
            "the target's weights are not all finite: nothing can be rebuilt from NaN or infinity"
        )
    if not bool(torch.isfinite(system.matrix.column_norms()).all()):
        raise UserError(
            "the features are not all finite, or too large for float64: the distribution has to be mended"
        )
    if (
        system.operator.shape[0] == 0
    ):  # one entry an output beside a skip connection: the second scales do it alone
        nothing = torch.zeros(
            system.operator.shape[1], dtype=torch.float64, device=system.rhs.device
        )
        return Solution(
            nothing, Report(name, 0.0, 0, 0.0, 0, True, norm="0", reason="no equation is left")
        )
    if name == "auto":
        choice = choose(
            *system.operator.shape,
            system.orthogonal,
            available_memory(system.rhs.device),
            options.tolerance,
        )
        if choice.features < system.operator.shape[1] and not isinstance(system.matrix, KhatriRao):
            choice = Choice(
                "least_squares",
                "features that follow a pattern, of which none can be left out",
                system.operator.shape[1],
            )
        return _chosen(choice, system, options)
    solver = lookup(name)
    solver.check(*system.operator.shape, system.orthogonal)
    need = solver.memory(*system.operator.shape)
    require_memory(
        need,
        system.rhs.device,
        name,
        "use solver=matrix_free with features.oversampling=1.5, or features=id_cond",
    )
    started = time.perf_counter()
    try:
        with exact_float32():
            answer = solver.solve(system, options)
    except torch.linalg.LinAlgError:
        raise RunError(_singular(system)) from None
    if answer.x.is_cuda:
        torch.cuda.synchronize(answer.x.device)
    spent = time.perf_counter() - started
    if not bool(torch.isfinite(answer.x).all()):
        raise RunError(_singular(system, f"solver {name} gave scales that are not finite: "))
    x = answer.x.to(torch.float64)
    residual = relative_residual(system, x)
    converged = residual <= options.tolerance
    diagnosis = "" if converged else diagnose(system)
    norm = answer.norm or solver.norm
    report = Report(
        name,
        residual,
        answer.iterations,
        spent,
        need,
        converged,
        norm,
        answer.arithmetic,
        diagnosis=diagnosis,
    )
    return Solution(x, report)


def _chosen(choice: Choice, system: System, options: SolverOptions) -> Solution:
    """Solve as chosen, with the first features only where the choice says so."""
    columns = system.operator.shape[1]
    if choice.features == columns:
        found = solve(choice.solver, system, options)
        return Solution(found.scale, dataclasses.replace(found.report, reason=choice.reason))
    matrix, operator = (part.leading(choice.features) for part in (system.matrix, system.operator))
    found = solve(
        choice.solver, dataclasses.replace(system, operator=operator, matrix=matrix), options
    )
    scale = torch.zeros(columns, dtype=torch.float64, device=found.scale.device)
    scale[: choice.features] = found.scale
    norm = f"that of the first {choice.features} features; the other {columns - choice.features} scales are 0"
    return Solution(scale, dataclasses.replace(found.report, reason=choice.reason, norm=norm))


def _singular(system: System, before: str = "") -> str:
    rows, columns = system.operator.shape
    return f"{before}the {rows} x {columns} system is singular: {diagnose(system) or 'to working precision'}; {WAY_OUT}"


def relative_residual(system: System, x: torch.Tensor) -> float:
    """‖M x - b‖ / ‖b‖ in float64 from the operator; the absolute residual where b is zero."""
    residual, norm = (
        float((system.operator.matvec(x) - system.rhs).norm()),
        float(system.rhs.norm()),
    )
    return residual / norm if norm > 0 else residual
