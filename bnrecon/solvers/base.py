"""What every solver is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from bnrecon.operators.system import System
from bnrecon.runtime.errors import RunError, UserError, nearest
from bnrecon.runtime.hardware import available_memory, gigabytes
from bnrecon.runtime.own_code import Registered, blamed

__all__ = [
    "AUTO",
    "SOLVERS",
    "Answer",
    "Report",
    "Solution",
    "Solver",
    "SolverOptions",
    "Unsuitable",
    "lookup",
    "register_solver",
    "require_memory",
    "require_square",
]


@dataclass(frozen=True)
class SolverOptions:
    """``tolerance``: relative residual at which a layer counts as solved. ``max_iterations``: ``None`` for the solver's own."""

    tolerance: float = 1e-10
    max_iterations: int | None = None


class Answer(NamedTuple):
    """What a solver returns: x (columns of M), the iterations, and where they differ by system its ``norm`` and arithmetic.

    A plain ``(x, iterations)`` does too.
    """

    x: torch.Tensor
    iterations: int
    norm: str | None = None
    arithmetic: str = ""


@dataclass(frozen=True)
class Report:
    """How a solution came about.

    ``relative_residual`` is ‖M x - b‖ / ‖b‖ in float64, recomputed from the operator, never the solver's own estimate.
    ``memory`` is the number of bytes the solver said beforehand that it needs beside the operator. ``norm`` says which of many
    solutions this is, ``arithmetic`` what the work was done in, ``reason`` why ``auto`` picked this solver, ``diagnosis`` why the
    system has no exact solution or none was found, with M's rank where it is known.
    """

    solver: str
    relative_residual: float
    iterations: int
    seconds: float
    memory: int
    converged: bool
    norm: str
    arithmetic: str = ""
    reason: str = ""
    diagnosis: str = ""


@dataclass(frozen=True)
class Solution:
    """The scales x (columns of M) in float64, and the report."""

    scale: torch.Tensor
    report: Report


class Unsuitable(UserError):
    """The solver does not fit this system: its shape, its features or its size."""


@dataclass(frozen=True)
class Solver:
    """A registered solver.

    ``solve(system, options)`` returns an ``Answer``. ``check(rows, columns, orthogonal)`` raises ``Unsuitable``
    where it does not apply. ``memory(rows, columns)`` is what it needs in bytes beside the operator. ``norm`` says which of many
    solutions it gives.
    """

    name: str
    solve: Callable[[System, SolverOptions], Answer]
    check: Callable[[int, int, bool], None]
    memory: Callable[[int, int], int]
    norm: str
    square: bool
    registered: Registered

    @property
    def code(self) -> str | None:
        """A fingerprint of a user's solver, ``None`` for bnrecon's own: results of other code are others."""
        return self.registered.fingerprint


SOLVERS: dict[str, Solver] = {}


AUTO = (
    "closed_form",
    "least_squares",
    "lu",
    "matrix_free",
    "refined",
)  # what solver=auto picks from


def register_solver(
    name: str,
    *,
    memory: Callable[[int, int], int],
    check: Callable[[int, int, bool], None] = lambda *_: None,
    norm: str = "the only solution of a square system",
    square: bool = False,
    version: str | None = None,
) -> Callable:
    """Register a solver under a name that ``solver.name`` accepts: a function ``(system, options) -> (x, iterations)``.

    ``square=True`` makes c1 = n the width that is taken where none is asked for. Results belong to the source files of the module
    that registers and of your modules that it imports (a changed comment is a rerun), and to the values bound to the function; with
    a ``version`` to that instead: change it when the solver changes.

    >>> @register_solver("pseudo_inverse", memory=lambda rows, columns: 24 * rows * columns, norm="minimum norm")
    ... def pseudo_inverse(system, options):
    ...     return torch.linalg.pinv(system.operator.dense()) @ system.rhs, 0
    """

    def add(function: Callable) -> Callable:
        registered = Registered(f"solver {name}", function, version)

        def solve(system: System, options: SolverOptions) -> Answer:
            with blamed(registered):
                return Answer(*function(system, options))

        SOLVERS[name] = Solver(name, solve, check, memory, norm, square, registered)
        return function

    return add


def lookup(name: str) -> Solver:
    """Find a solver by name; raise ``UserError`` with the nearest name for an unknown one."""
    if name not in SOLVERS:
        raise UserError(f"solver.name={name}: {nearest(name, SOLVERS)}")
    return SOLVERS[name]


def require_square(rows: int, columns: int, _orthogonal: bool = False) -> None:
    """Raise ``Unsuitable`` unless there are as many unknowns as equations."""
    if rows != columns:
        raise Unsuitable(
            f"this solver needs a square system, this one has {rows} equations and {columns} unknowns: give features.width=maximum "
            "(c1 = n) or features.width=minimum (c1 = n - c2 + 1), or use solver=matrix_free"
        )


def require_memory(need: int, device: torch.device, name: str, instead: str) -> None:
    """Raise ``RunError`` where ``need`` bytes are not there, naming the alternative."""
    there = available_memory(device)
    if need > there:
        raise RunError(
            f"solver {name} needs {gigabytes(need)} on {device.type}, {gigabytes(there)} are free; {instead}"
        )
