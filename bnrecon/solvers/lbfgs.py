"""The papers' solvers: LBFGS in float32, after LU, after an SVD.

The papers do not print LBFGS's settings; bnrecon's are chosen so that LBFGS goes as far as float32
allows. ``lu_lbfgs_defaults`` uses PyTorch's instead, with which LBFGS ended at the LU solution on
all tested layers of trained networks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from bnrecon.operators.system import Scales, System
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers.base import Answer, LinAlgError, Unsuitable
from bnrecon.solvers.progress import ResidualBar, clock
from bnrecon.solvers.spec import SolverSpec

HISTORY = 100
MAX_ITERATIONS = 2000  # unless ``SolverSpec.max_iterations`` is set; the papers state none
UNSCALED = (1e-5, 1e2)  # root mean squares of b
# LAPACK's gesdd has a workspace of some 4 n² numbers, counted by a 32-bit integer.
LARGEST_SVD = 20_000
Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Settings:
    """What ``torch.optim.LBFGS`` minimizes, and how."""

    iterations: int  # at most, unless the ``SolverSpec`` sets a limit
    evaluations: float  # most evaluations of the error per iteration
    # Minimize the mean over the n equations, ‖M x - b‖² / n, instead of ‖M x - b‖² / mean(b²)
    mean: bool
    options: Mapping[str, Any] = field(default_factory=dict)  # other than torch.optim.LBFGS's


SEARCH = {"lr": 1, "history_size": HISTORY, "line_search_fn": "strong_wolfe"}
TOLERANCES = {"tolerance_grad": 1e-12, "tolerance_change": 1e-15}
THOROUGH = Settings(MAX_ITERATIONS, 25, mean=False, options=SEARCH | TOLERANCES)
PYTORCHS = Settings(20, 1.25, mean=True)  # lr 1, history 100, no line search, tolerances 1e-7, 1e-9


def lbfgs_memory(_rows: int, columns: int) -> int:
    """Bytes: the history of steps and gradients in float32."""
    return 4 * columns * (2 * HISTORY + 8)


def in_units(solver: Callable[[System, SolverSpec], Answer]) -> Callable:
    """Give a solver b divided by the power of 2 nearest its root mean square.

    LBFGS is not scale-free: the first step and the tolerances are absolute, and float32 under- or
    overflows in b^T b. Within ``UNSCALED`` it does not matter, and b keeps its unit.
    """

    @functools.wraps(solver)
    def solve(system: System, spec: SolverSpec) -> Answer:
        rhs = system.rhs.double()
        if not rhs.any():
            return solver(system, spec)
        largest = rhs.abs().max()
        size = largest * (rhs / largest).square().mean().sqrt()  # no square under- or overflows
        if UNSCALED[0] <= size <= UNSCALED[1]:
            return solver(system, spec)
        unit = size.log2().round().exp2()
        answer = solver(dataclasses.replace(system, rhs=rhs / unit), spec)
        return answer._replace(x=unit * answer.x.double())

    return solve


@in_units
def lbfgs(system: System, spec: SolverSpec) -> Answer:
    """LBFGS alone, from zero (Burkholz 2024, Sect. 3.1, on the overparameterized system)."""
    operator, rhs = system.operator.to(FLOAT32), system.rhs.to(torch.float32)
    start = torch.zeros(operator.shape[1]).to(rhs)
    return minimize(operator.matvec, operator.rmatvec, rhs, start, spec, THOROUGH)


def lu_memory(rows: int, columns: int) -> int:
    """Bytes: M in float32 and its factors."""
    return 2 * 4 * rows * columns + 2**26


@in_units
def lu_lbfgs(system: System, spec: SolverSpec) -> Answer:
    """``torch.linalg.solve``, then LBFGS from its solution (Burkholz 2024, Sect. 3.1)."""
    return _lu_lbfgs(system, spec, THOROUGH)


def lu_lbfgs_defaults(system: System, spec: SolverSpec) -> Answer:
    """``lu_lbfgs`` with all of PyTorch's default settings, minimizing the mean squared error.

    Burkholz 2024, Sect. 3.1, says "LBFGS as implemented by the Pytorch function torch.optim.LBFGS
    that minimizes the mean squared error" and prints no settings. LBFGS ends when no entry of the
    gradient, 2 M^T r / n, is above 1e-7, or at its first step if that is lost in the rounding of x:
    on layers of trained networks the solution is the LU's. With a much larger right-hand side (1e3)
    it continues.
    """
    return _lu_lbfgs(system, spec, PYTORCHS)


def _lu_lbfgs(system: System, spec: SolverSpec, settings: Settings) -> Answer:
    operator, rhs = system.operator.to(FLOAT32), system.rhs.to(torch.float32)
    n = len(rhs)
    with clock(f"torch.linalg.solve of {n} x {n} in float32", 2 / 3 * n**3 / 1e11):
        start = torch.linalg.solve(operator.dense(), rhs)
    return minimize(operator.matvec, operator.rmatvec, rhs, start, spec, settings)


def check_svd(rows: int, columns: int, _orthogonal: bool) -> None:
    """Raise ``Unsuitable`` unless M can have full rank and is small enough for an SVD."""
    if columns < rows:
        raise Unsuitable(
            f"{rows} equations of {columns} unknowns cannot be preconditioned to full rank; "
            "use solver=least_squares"
        )
    if rows > LARGEST_SVD or rows * columns >= 2**31:
        raise Unsuitable(
            f"the SVD of a {rows} x {columns} matrix needs a workspace of more than 2^31 numbers, "
            "which LAPACK does not index; use solver=refined, which needs none"
        )


def svd_memory(rows: int, columns: int) -> int:
    """Bytes: M, its singular vectors, and LAPACK's workspace of about three such matrices."""
    return 4 * rows * (3 * columns + 5 * rows)


@in_units
def svd_lbfgs(system: System, spec: SolverSpec) -> Answer:
    """LBFGS preconditioned by M = U S V^T: minimize ‖(M V S^-1) z - b‖², x = V S^-1 z.

    Random features for normalization layers, Fig. 2c: "M is first preconditioned with a SVD to
    improve LBFGS". Exactly, M V S^-1 = U; it is formed as the product, so that the SVD's own
    rounding stays in the system that is solved.
    """
    return _preconditioned(system, spec, lambda _, rhs: torch.zeros_like(rhs))


@in_units
def svd_lu_lbfgs(system: System, spec: SolverSpec) -> Answer:
    """Precondition by an SVD, solve by LU, finish with LBFGS (same paper, Fig. 2d)."""
    return _preconditioned(system, spec, torch.linalg.solve)


def _preconditioned(system: System, spec: SolverSpec, start: Callable) -> Answer:
    """LBFGS in float32 on M V S^-1 (rows, rows) and b, starting at ``start`` of these."""
    dense = system.operator.to(FLOAT32).dense()
    rows, columns = dense.shape
    with clock(f"SVD of {rows} x {columns}", 12 * rows**2 * columns / 5e10):
        _, values, vh = torch.linalg.svd(dense, full_matrices=False)
    if not float(values[-1]) > 0:
        raise LinAlgError("a singular value is zero")
    back = vh.T / values
    preconditioned, rhs = dense @ back, system.rhs.to(torch.float32)
    first = start(preconditioned, rhs)
    solved = minimize(preconditioned.matmul, preconditioned.T.matmul, rhs, first, spec)
    return solved._replace(x=back @ solved.x)


def minimize(
    matvec: Product,
    rmatvec: Product,
    rhs: torch.Tensor,
    start: torch.Tensor,
    spec: SolverSpec,
    settings: Settings = THOROUGH,
) -> Answer:
    """Minimize ‖M x - b‖² by ``torch.optim.LBFGS``.

    By default lr 1, history 100, strong Wolfe line search, at most 2,000 iterations.

    The papers state none of these. The error and its gradient 2 M^T r use the products in float32.
    Both are in units of mean(b²), so that PyTorch's absolute tolerances mean the same for every
    layer. With the mean over the n equations instead of the sum, the first step, of length min(1, 1
    / ‖g‖₁), would be lost in the rounding of x on layers of trained networks, and LBFGS would end
    there, as with ``PYTORCHS``.

    The search begins at ``start`` (c1,). ``rhs`` b (n,) is in the precision of the products; only
    the progress bar uses the tolerance. ``at_limit`` of the answer says whether LBFGS was still
    running at the limit of iterations.
    """
    square = (rhs @ rhs / len(rhs)).clamp_min(torch.finfo(rhs.dtype).tiny)
    unit = torch.full_like(square, len(rhs)) if settings.mean else square
    x = start.clone()
    limit = spec.max_iterations or settings.iterations
    evaluations = max(2, int(settings.evaluations * limit))  # one is made before the first step
    optimizer = torch.optim.LBFGS([x], max_iter=limit, max_eval=evaluations, **settings.options)
    with ResidualBar(f"LBFGS of {len(rhs)} x {len(start)}", spec.tolerance) as bar:

        def closure() -> torch.Tensor:
            residual = matvec(x) - rhs
            x.grad = 2 * rmatvec(residual) / unit
            error = residual @ residual
            relative = float(error / square) / len(rhs)
            bar.show(optimizer.state[x].get("n_iter", 0), relative**0.5)
            return error / unit

        optimizer.step(closure)
    steps, evaluated = (optimizer.state[x].get(name, 0) for name in ("n_iter", "func_evals"))
    at_limit = steps >= limit or evaluated >= evaluations
    precision = str(rhs.dtype).removeprefix("torch.")
    return Answer(x, steps, precision=precision, at_limit=at_limit)


def minimize_weight_error(system: System, start: Scales, spec: SolverSpec) -> tuple[Scales, int]:
    """Minimize the mean of (outer ∘ (M inner) - W)² over both scales, in float32.

    This is Burkholz 2024, Sect. 3.1, literally: "the mean squared error between our constructed
    network and the target". ``minimize`` uses the residual of the pivoted system instead, whose
    only unknowns are the inner scales. Of the system, only the matrix M (n, c1) and the weight W
    (c2, entries) are used. Returns the scales in float32, and the iterations.
    """
    matrix, weight = system.matrix.to(FLOAT32), system.weight.to(torch.float32)
    inner, outer = (part.to(torch.float32).clone() for part in (start.inner, start.outer))
    limit = spec.max_iterations or PYTORCHS.iterations
    evaluations = max(2, int(PYTORCHS.evaluations * limit))
    optimizer = torch.optim.LBFGS([inner, outer], max_iter=limit, max_eval=evaluations)

    def closure() -> torch.Tensor:
        reached = matrix.matvec(inner).reshape(weight.shape)
        off = outer[:, None] * reached - weight
        inner.grad = 2 * matrix.rmatvec((outer[:, None] * off).flatten()) / off.numel()
        outer.grad = 2 * (off * reached).sum(1) / off.numel()
        return off.square().mean()

    optimizer.step(closure)
    return Scales(inner, outer), optimizer.state[inner].get("n_iter", 0)
