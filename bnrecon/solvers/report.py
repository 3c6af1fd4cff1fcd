"""The report of a solution; read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SolverReport:
    """How a solution was computed.

    Args:
        solver: the name of the solver.
        relative_residual: ‖M x - b‖ / ‖b‖ in float64, recomputed from the operator, not the
            solver's estimate.
        iterations: 0 for direct solvers.
        seconds: wall-clock time.
        converged: whether the residual is within the tolerance.
        norm: which of many solutions this is.
        precision: of the products.
        reason: why ``auto`` chose this solver.
        diagnosis: why there is no exact solution, or the solver missed it, with M's rank if known.
        at_limit: whether the solver made as many iterations as allowed, by
            ``SolverSpec.max_iterations`` or by default; ``least_squares``, refits and LBFGS may
            have finished with the last one.
        memory: bytes needed besides the operator, estimated before the solve; not compared.
    """

    solver: str
    relative_residual: float
    iterations: int
    seconds: float
    converged: bool
    norm: str
    precision: str = ""
    reason: str = ""
    diagnosis: str = ""
    at_limit: bool = False
    memory: int = field(default=0, compare=False)
