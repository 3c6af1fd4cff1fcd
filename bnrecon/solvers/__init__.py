"""Solvers of M γ = vec(W), one a file, behind one call."""

from bnrecon.solvers import closed_form, dense, iterative, lbfgs, least_squares
from bnrecon.solvers.base import (
    SOLVERS,
    Answer,
    Report,
    Solution,
    SolverOptions,
    Unsuitable,
    register_solver,
)
from bnrecon.solvers.diagnosis import diagnose
from bnrecon.solvers.solving import Choice, choose, solve

__all__ = [
    "SOLVERS",
    "Answer",
    "Choice",
    "Report",
    "Solution",
    "SolverOptions",
    "Unsuitable",
    "choose",
    "closed_form",
    "dense",
    "diagnose",
    "iterative",
    "lbfgs",
    "least_squares",
    "register_solver",
    "solve",
]
