"""Solvers of M γ = vec(W), one a file, behind one call."""

from bnrecon.solvers import closed_form, dense, iterative, lbfgs
from bnrecon.solvers.base import SOLVERS, Report, Solution, SolverOptions, Unsuitable, register_solver
from bnrecon.solvers.solving import choose, solve

__all__ = [
    "SOLVERS", "Report", "Solution", "SolverOptions", "Unsuitable", "choose", "closed_form", "dense", "iterative", "lbfgs",
    "register_solver", "solve",
]  # fmt: skip
