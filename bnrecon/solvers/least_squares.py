"""The least-squares answer to systems that have no exact solution, whatever M's rank."""

from __future__ import annotations

import torch

from bnrecon.construction.two_layer import System
from bnrecon.solvers.base import Answer, SolverOptions, register_solver
from bnrecon.solvers.iterative import matrix_free

__all__ = ["least_squares"]

LARGEST = 4000  # the smaller side of M up to which its singular values are used


@register_solver(
    "least_squares", memory=lambda rows, columns: 8 * (3 * rows * columns if min(rows, columns) <= LARGEST else 12 * columns),
    norm="least squares",
)  # fmt: skip
def least_squares(system: System, options: SolverOptions) -> Answer:
    """Minimise ‖M x - b‖, and among those x its norm: by singular values (LAPACK's gelsd) up to 4,000 equations, else by CGLS.

    gelsd stands any rank; it runs on the CPU, as GPUs only have ``gels``, which is silently wrong where rank is lacking.
    """
    operator, rhs = system.operator, system.rhs
    if min(operator.shape) > LARGEST:
        answer = matrix_free(system, options)
        return answer._replace(norm=f"least squares, {answer.norm}")
    found = torch.linalg.lstsq(operator.dense().cpu(), rhs[:, None].cpu(), driver="gelsd")
    return Answer(found.solution[:, 0].to(rhs), 0, "least squares, minimum norm of the scales", "float64")
