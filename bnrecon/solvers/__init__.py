"""Solvers of M γ = vec(W), one in each file, behind one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use
from bnrecon.solvers.spec import SolverSpec

if TYPE_CHECKING:
    from bnrecon.solvers.base import Answer, Solution, Unsuitable
    from bnrecon.solvers.diagnosis import diagnose
    from bnrecon.solvers.register import SOLVERS, register_solver
    from bnrecon.solvers.report import SolverReport
    from bnrecon.solvers.solving import Choice, choose, solve

__all__ = [
    "SOLVERS",
    "Answer",
    "Choice",
    "Solution",
    "SolverReport",
    "SolverSpec",
    "Unsuitable",
    "choose",
    "diagnose",
    "register_solver",
    "solve",
]

__getattr__ = import_on_use(__name__)
