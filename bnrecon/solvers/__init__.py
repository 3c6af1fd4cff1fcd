"""Solvers of M γ = vec(W), one in each file, behind one call."""

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use
from bnrecon.solvers.spec import SolverSpec as SolverSpec

if TYPE_CHECKING:
    from bnrecon.solvers.base import Answer as Answer
    from bnrecon.solvers.base import Solution as Solution
    from bnrecon.solvers.base import Unsuitable as Unsuitable
    from bnrecon.solvers.diagnosis import diagnose as diagnose
    from bnrecon.solvers.register import SOLVERS as SOLVERS
    from bnrecon.solvers.register import register_solver as register_solver
    from bnrecon.solvers.report import SolverReport as SolverReport
    from bnrecon.solvers.solving import Choice as Choice
    from bnrecon.solvers.solving import choose as choose
    from bnrecon.solvers.solving import solve as solve

__getattr__, __dir__, __all__ = import_on_use(__name__)
