"""Options of the solvers."""

from __future__ import annotations

from dataclasses import dataclass

from bnrecon.runtime.options import check_fields, option


@dataclass
class SolverSpec:
    """How M γ = vec(W) is solved.

    Args:
        name: a solver in ``bnrecon.solvers.SOLVERS``; ``auto`` chooses by the system's size.
        tolerance: relative residual ‖M γ - b‖ / ‖b‖, in float64, at which a layer has converged.
        max_iterations: most iterations; ``None`` for the solver's limit: 2,000 for the papers'
            LBFGS, PyTorch's 20 for ``lu_lbfgs_defaults``, 400 products for ``refined``, 50,000 for
            the matrix-free solvers and ``least_squares``. ``at_limit`` of a report says whether it
            was reached.

    Raises:
        UserError: a value is not allowed; the message starts with the field.

    >>> SolverSpec(tolerance=0)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: tolerance=0: must be above 0 and at most 1
    """

    name: str = option("auto", "how M gamma = vec(W) is solved; auto chooses by size")
    tolerance: float = option(
        1e-10, "relative residual at which a layer counts as converged", above=0, at_most=1
    )
    max_iterations: int | None = option(
        None,
        "maximum number of iterations; null: the solver's limit (2,000 for the papers' LBFGS)",
        above=0,
    )

    def __post_init__(self) -> None:
        check_fields(self)
