"""What is reported of a solution; read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SolverReport:
    """How a solution was found.

    Args:
        solver: the name of the solver.
        relative_residual: ‖M x - b‖ / ‖b‖ in float64, recomputed from the operator, never the
            solver's own estimate.
        iterations: 0 for direct solvers.
        seconds: of wall-clock time.
        converged: whether the residual is within the tolerance.
        norm: which of many solutions this is.
        precision: what the products ran in.
        reason: why ``auto`` chose this solver.
        diagnosis: why there is no exact solution, or none was found, with M's rank where it is
            known.
        at_limit: whether the solver stopped only because it had made as many iterations as it may:
            ``SolverSpec.max_iterations``, or its own limit.
        memory: bytes needed beside the operator, as the solver estimates before it starts; not part
            of comparisons.
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
