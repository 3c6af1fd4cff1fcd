"""One call for all solvers: choose, check, solve, recompute the residual, diagnose."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch

from bnrecon.operators.structured import Kronecker, Selection
from bnrecon.operators.system import System
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import available_memory, exact_float32, threads_for
from bnrecon.runtime.precision import FLOAT64
from bnrecon.runtime.torch_modes import CPU, outside_torch_modes
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers.base import LESS_MEMORY, LinAlgError, Solution, require_memory
from bnrecon.solvers.checkpoint import Checkpoint
from bnrecon.solvers.diagnosis import diagnose
from bnrecon.solvers.iterative import expected_iterations
from bnrecon.solvers.register import Solver, lookup
from bnrecon.solvers.report import SolverReport
from bnrecon.solvers.spec import SolverSpec

LU_UNKNOWNS = 4000  # unknowns: up to these, LU in float64 takes seconds
WAY_OUT = (
    "take more features (oversampling=1.5), another seed or other features, or solver=least_squares"
)


@dataclass(frozen=True)
class Choice:
    """A solver, why, and how many features it uses: the first n of a few more."""

    solver: str
    reason: str
    features: int


def choose(
    rows: int,
    columns: int,
    orthogonal: bool,
    memory: float,
    tolerance: float = 1e-10,
    patterned: bool = False,
    device: torch.device = CPU,
) -> Choice:
    """Pick the solver for a system.

    The closed form if M is orthogonal; least squares if there are fewer unknowns than equations.
    Otherwise the matrix-free solver takes about ln(1/tol) / (½ ln(c1/n)) iterations of 4 n c1 flops
    and a factorization (2/3) n³. Below 2,400 iterations (an oversampling of 1.02) or n / 6, where
    both cost the same, it is the former; above, the LU of the first n features, in float64 up to
    4,000 and in float32 with correction beyond, if it fits.

    Args:
        rows: n, the equations.
        columns: c1, the unknowns.
        orthogonal: whether M^T M = I at width n.
        memory: free bytes.
        tolerance: the relative residual to reach.
        patterned: whether features follow a pattern, so that all are needed.
        device: where it is solved: LAPACK and GPUs factorize up to 46,340 unknowns.

    >>> choose(36864, 55296, orthogonal=False, memory=16 * 10**9).solver
    'matrix_free'
    >>> print(choose(36864, 36864, orthogonal=False, memory=16 * 10**9).reason)
    as many features as equations: the spectrum of M reaches down to 0, and an LU is the right tool
    """
    if orthogonal and rows == columns:
        why = "M is orthogonal, or a permutation of copies: its transpose solves the system"
        return Choice("closed_form", why, columns)
    if columns < rows:
        why = f"{columns} features for {rows} equations have no exact solution in general"
        return Choice("least_squares", why, columns)
    if rows == 0:
        return Choice("matrix_free", "no equation is left", columns)
    iterations = expected_iterations(columns / rows, tolerance)
    if iterations <= max(2400, rows / 6):
        why = f"oversampling {columns / rows:.4g}: about {iterations:.0f} iterations"
        return Choice("matrix_free", why, columns)
    direct = "lu" if rows <= LU_UNKNOWNS else "refined"
    short, near = f"{columns - rows} features more than equations", "about 0"
    if columns == rows:
        short, near = "as many features as equations", "0"
    why = f"{short}: the spectrum of M reaches down to {near}"
    need = lookup(direct).memory(rows, rows)
    if rows > lookup(direct).largest(device):
        why += f", and {rows} unknowns are too many for a dense LU: slow, and may fall short"
        return Choice("matrix_free", why, columns)
    if need > memory:
        needs = f"an LU would need {format_bytes(need)}, {format_bytes(memory)} are free"
        return Choice("matrix_free", f"{why}; {needs}: slow, and may fall short", columns)
    if patterned and columns > rows:
        reason = "none of the features can be left out, as they follow a pattern"
        return Choice("least_squares", reason, columns)
    return Choice(direct, f"{why}, and an LU is the right tool", rows)


@outside_torch_modes
def solve(
    system: System, spec: SolverSpec | str | None = None, checkpoint: Checkpoint | None = None
) -> Solution:
    """Solve a system and report the residual, recomputed from the operator in float64.

    ``auto`` uses the solver that ``choose`` picks; scales of features that it omits are 0. If the
    tolerance is not reached, the report has ``converged=False``, and ``report.diagnosis`` says why,
    if known.

    Args:
        system: ``operator`` x = ``rhs``, (n, c1) and (n,), in float64.
        spec: solver, tolerance and iterations; ``auto`` and 1e-10 by default. A name stands for
            ``SolverSpec(name)``.
        checkpoint: where iterative solvers save their state between iterations and resume from;
            other solvers ignore it.

    Returns:
        The scales (c1,) in float64 and the report.

    Raises:
        UserError: the target or the features are not finite; ``Unsuitable``: the solver does not
            apply to this system.
        RunError: memory is insufficient, the system is singular or the scales are not finite.

    >>> from bnrecon.construction.two_layer import linear_system
    >>> from bnrecon.operators.khatri_rao import KhatriRao
    >>> _ = torch.manual_seed(0)
    >>> matrix = KhatriRao(torch.randn(9, 3).double(), torch.randn(9, 2).double())
    >>> solution = solve(linear_system(matrix, torch.randn(3, 2).double()))
    >>> solution.scale.shape, solution.report.solver, solution.report.converged
    (torch.Size([9]), 'matrix_free', True)
    """
    spec = SolverSpec(spec) if isinstance(spec, str) else spec or SolverSpec()
    check_finite(system)
    rows, columns = system.operator.shape
    if rows == 0:  # one entry per output and a skip connection: second scales suffice
        scale = torch.zeros(columns, dtype=torch.float64, device=system.rhs.device)
        report = SolverReport(spec.name, 0.0, 0, 0.0, True, "0", reason="no equation is left")
        return Solution(scale, report)
    if spec.name == "auto":
        device, patterned = system.rhs.device, isinstance(system.matrix, Selection | Kronecker)
        memory = available_memory(device)
        choice = choose(rows, columns, system.orthogonal, memory, spec.tolerance, patterned, device)
        return _solve_as_chosen(choice, system, spec, checkpoint)
    return solve_with(lookup(spec.name), system, spec, checkpoint)


def check_finite(system: System) -> None:
    """Raise ``UserError`` for a target or features that are not finite, or not in float64."""
    if kinds := {str(part.dtype) for part in (system.rhs, system.operator)} - {"torch.float64"}:
        raise UserError(f"the system is in {kinds.pop()}; give matrix and weight in float64")
    if not bool(torch.isfinite(system.rhs).all()):
        raise UserError(
            "the target's weights are not all finite: NaN or infinity cannot be reconstructed"
        )
    if not bool(torch.isfinite(system.matrix.column_norms()).all()):
        raise UserError(
            "the features are not all finite, or too large for float64: correct the distribution"
        )


def solve_with(
    solver: Solver, system: System, spec: SolverSpec, checkpoint: Checkpoint | None
) -> Solution:
    """Check that a solver applies, solve, and recompute the residual."""
    rows, columns = system.operator.shape
    solver.require(rows, columns, system.orthogonal, system.rhs.device)
    need = solver.memory(rows, columns)
    require_memory(need, system.rhs.device, solver.name, LESS_MEMORY)
    started = time.perf_counter()
    resumed = (checkpoint,) if solver.resumable else ()
    operations = rows * columns * (1 if solver.products else min(rows, columns))
    try:
        with exact_float32(), threads_for(operations):
            answer = solver.solve(system, spec, *resumed)
    except LinAlgError:
        raise RunError(_singular(system)) from None
    if answer.x.is_cuda:
        torch.cuda.synchronize(answer.x.device)
    seconds = time.perf_counter() - started
    if not bool(torch.isfinite(answer.x).all()):
        before = f"solver {solver.name} gave scales that are not finite"
        if solver.registered.user_defined and not diagnose(system):
            raise RunError(f"{before}, and the system seems regular: correct the solver")
        raise RunError(_singular(system, f"{before}: "))
    x = answer.x.to(torch.float64)
    residual = relative_residual(system, x)
    converged = residual <= spec.tolerance
    report = SolverReport(
        solver=solver.name,
        relative_residual=residual,
        iterations=answer.iterations,
        seconds=seconds,
        converged=converged,
        norm=answer.norm or solver.norm,
        precision=answer.precision,
        diagnosis="" if converged else diagnose(system),
        at_limit=answer.at_limit,
        memory=need,
    )
    return Solution(x, report)


def _solve_as_chosen(
    choice: Choice, system: System, spec: SolverSpec, checkpoint: Checkpoint | None
) -> Solution:
    """Solve as chosen, with only the first features if the choice omits some."""
    columns = system.operator.shape[1]
    spec = dataclasses.replace(spec, name=choice.solver)
    if choice.features == columns:
        solution = solve(system, spec, checkpoint)
        return Solution(solution.scale, dataclasses.replace(solution.report, reason=choice.reason))
    matrix, operator = (part.leading(choice.features) for part in (system.matrix, system.operator))
    solution = solve(dataclasses.replace(system, operator=operator, matrix=matrix), spec)
    scale = torch.zeros(columns, dtype=torch.float64, device=solution.scale.device)
    scale[: choice.features] = solution.scale
    norm = (
        f"that of the first {choice.features} features; "
        f"the other {columns - choice.features} scales are 0"
    )
    report = dataclasses.replace(solution.report, reason=choice.reason, norm=norm)
    return Solution(scale, report)


def _singular(system: System, before: str = "") -> str:
    rows, columns = system.operator.shape
    why = diagnose(system) or "to working precision"
    return f"{before}the {rows} x {columns} system is singular: {why}; {WAY_OUT}"


def relative_residual(system: System, x: torch.Tensor) -> float:
    """‖M x - b‖ / ‖b‖ in float64 from the operator; the absolute residual if b is zero."""
    operator, rhs = system.operator, system.rhs.to(torch.float64)
    if operator.dtype != torch.float64:
        operator = operator.to(FLOAT64)
    difference = operator.matvec(x.to(torch.float64)) - rhs
    if not rhs.any():
        return float(difference.norm())
    largest = rhs.abs().max()
    return float((difference / largest).norm() / (rhs / largest).norm())  # squares may underflow
