"""The register of solvers: built-in ones, and those that a user adds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bnrecon.operators.system import System
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.user_code import Registered, attribute_errors, unregistered
from bnrecon.solvers import closed_form, dense, iterative, lbfgs, least_squares
from bnrecon.solvers.base import Answer, Solve, Unsuitable, require_square
from bnrecon.solvers.factorization import LARGEST, largest
from bnrecon.solvers.spec import SolverSpec

# What solver=auto chooses from.
AUTO = ("closed_form", "least_squares", "lu", "matrix_free", "refined")

SQUARE = "the only solution of a square system"
MINIMUM_NORM = "minimum norm of the scales"
SVD_NORM = f"{MINIMUM_NORM}, to float32 accuracy"


def _any_system(rows: int, columns: int, orthogonal: bool) -> None:
    """The check of a solver that accepts every system."""


@dataclass(frozen=True)
class Solver:
    """A registered solver."""

    name: str  # what ``SolverSpec.name`` calls it
    # ``solve(system, spec)``, or ``solve(system, spec, checkpoint)`` if ``resumable``, returns an
    # ``Answer``
    solve: Solve
    memory: Callable[[int, int], int]  # of rows and columns: bytes besides the operator's
    registered: Registered  # the function and who registered it
    # ``check(rows, columns, orthogonal)`` raises ``Unsuitable`` if it does not apply
    check: Callable[[int, int, bool], None] = _any_system
    norm: str = SQUARE  # which of many solutions it finds
    square: bool = False  # whether the default width is c1 = n
    resumable: bool = False  # whether it resumes from a ``Checkpoint``
    products: bool = False  # whether it only multiplies by M, without factorizing it
    largest: Callable[[torch.device], float] = lambda _: math.inf  # by device: the most unknowns

    def require(self, rows: int, columns: int, orthogonal: bool, device: torch.device) -> None:
        """Raise ``Unsuitable`` if it does not apply to a system, or not on this device."""
        self.check(rows, columns, orthogonal)
        if rows > self.largest(device):
            raise Unsuitable(
                f"dense LU of {rows} unknowns has more than 2^31 entries, which LAPACK does not "
                "index; use solver=matrix_free with oversampling=1.5, or on a CPU solver=refined"
            )


def _built_in(function: Solve, memory: Callable[[int, int], int], **traits: Any) -> Solver:
    name = function.__name__
    return Solver(name, function, memory, Registered(f"solver {name}", function), **traits)


SQUARE_SYSTEMS: dict[str, Any] = {"check": require_square, "square": True}
LAPACK_LU: dict[str, Any] = SQUARE_SYSTEMS | {"largest": lambda _: LARGEST}
KRYLOV: dict[str, Any] = {"memory": iterative.memory, "resumable": True, "products": True}
SOLVERS = {
    solver.name: solver
    for solver in (
        _built_in(
            closed_form.closed_form, closed_form.memory, check=closed_form.check, products=True
        ),
        _built_in(dense.lu, dense.lu_memory, **LAPACK_LU),
        _built_in(dense.refined, dense.refined_memory, **SQUARE_SYSTEMS, largest=largest),
        _built_in(iterative.matrix_free, norm=f"near the {MINIMUM_NORM}", **KRYLOV),
        _built_in(iterative.minimum_norm, check=iterative.check_wide, norm=MINIMUM_NORM, **KRYLOV),
        _built_in(least_squares.least_squares, least_squares.memory, norm="least squares"),
        _built_in(
            lbfgs.lbfgs, lbfgs.lbfgs_memory, norm="the one LBFGS reaches from zero", products=True
        ),
        _built_in(lbfgs.lu_lbfgs, lbfgs.lu_memory, **LAPACK_LU),
        _built_in(lbfgs.lu_lbfgs_defaults, lbfgs.lu_memory, **LAPACK_LU),
        _built_in(lbfgs.svd_lbfgs, lbfgs.svd_memory, check=lbfgs.check_svd, norm=SVD_NORM),
        _built_in(lbfgs.svd_lu_lbfgs, lbfgs.svd_memory, check=lbfgs.check_svd, norm=SVD_NORM),
    )
}


def register_solver(
    name: str,
    *,
    memory: Callable[[int, int], int],
    check: Callable[[int, int, bool], None] = _any_system,
    norm: str | None = None,
    square: bool = False,
    version: str | None = None,
) -> Callable:
    """Register a user's solver: a function ``(system, spec) -> (x, iterations)``, or an ``Answer``.

    Results depend on the source file of the registering module (even a changed comment causes a
    rerun), or on ``version`` if set.

    Args:
        name: selected by ``solver=name``.
        memory: ``memory(rows, columns)`` gives the bytes it needs besides the operator.
        check: ``check(rows, columns, orthogonal)`` raises ``Unsuitable`` for systems it cannot
            solve.
        norm: which of many solutions it finds; "not stated" by default, unless ``square``.
        square: whether it needs square systems, so that c1 = n by default.
        version: change it when the solver changes; without it the source file counts.

    >>> @register_solver("pinv", memory=lambda rows, columns: 24 * rows * columns, norm="minimum")
    ... def pseudo_inverse(system, spec):
    ...     return torch.linalg.pinv(system.operator.dense()) @ system.rhs, 0
    >>> SOLVERS.pop("pinv").norm
    'minimum'
    """
    if name == "auto":
        raise UserError("solver=auto chooses among solvers; register yours under another name")
    described = norm or (SQUARE if square else "not stated")

    def add(function: Callable) -> Callable:
        registered = Registered(f"solver {name}", function, version)
        registered.warn_of_replacing(SOLVERS[name].registered if name in SOLVERS else None)

        def solve(system: System, spec: SolverSpec) -> Answer:
            tensors = {k: v for k, v in vars(system).items() if isinstance(v, torch.Tensor)}
            copies: dict[str, Any] = {field: tensor.clone() for field, tensor in tensors.items()}
            copied = dataclasses.replace(system, **copies)  # it may write there
            with attribute_errors(registered):
                returned = function(copied, spec)
                if not isinstance(returned, tuple | list):
                    kind = type(returned).__name__
                    raise UserError(f"solver {name}: it returned {kind}; return (x, iterations)")
                answer = Answer(*returned)
                count, at_limit = int(answer.iterations), bool(answer.at_limit)  # NumPy's too
            x = _scales(name, answer.x, system)
            return answer._replace(x=x, iterations=count, at_limit=at_limit)

        def bytes_needed(rows: int, columns: int) -> int:
            with attribute_errors(registered):
                return int(memory(rows, columns))

        checked = attribute_errors(registered)(check)  # each call is attributed
        SOLVERS[name] = Solver(name, solve, bytes_needed, registered, checked, described, square)
        return function

    return add


def _scales(name: str, x: object, system: System) -> torch.Tensor:
    """The scales of a user's solver, on the system's device, with checked shape."""
    shape, description = (system.operator.shape[1],), type(x).__name__
    if isinstance(x, torch.Tensor):
        description = f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
        dense = x.layout == torch.strided and not x.is_meta
        description += "" if dense else ", without values in memory" if x.is_meta else ", sparse"
        if tuple(x.shape) == shape and x.is_floating_point() and dense:
            return x.detach().to(system.rhs.device, copy=True)  # the solver may reuse it
    raise UserError(
        f"solver {name}: its scales are {description}; for this layer it must return a tensor of "
        f"floating-point numbers of shape {shape}"
    )


def lookup(name: str) -> Solver:
    """Return the solver of that name; raise ``UserError`` with the nearest name if unknown."""
    if name not in SOLVERS:
        raise unregistered("solver", name, SOLVERS)
    return SOLVERS[name]
