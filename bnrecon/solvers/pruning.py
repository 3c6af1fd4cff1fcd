"""Solutions that use only some features: by magnitude, by rounds, and of least L1 norm.

Feature l adds x_l m_l to the weight, where m_l is its column of M: its contribution |x_l| ‖m_l‖
stays the same if the feature is scaled and its scale divided. Features are compared by it, never by
|x_l| alone. All methods only use products with M and M^T.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator

import torch

from bnrecon.features.spec import PRUNINGS
from bnrecon.operators.base import Operator, Products
from bnrecon.operators.columns import Scaled, inverse_norms, select_columns
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.system import System
from bnrecon.runtime.errors import UserError, require_choice
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers.base import Solution
from bnrecon.solvers.krylov import MOST_ITERATIONS, cgls
from bnrecon.solvers.progress import ResidualBar
from bnrecon.solvers.report import SolverReport
from bnrecon.solvers.solving import relative_residual, solve
from bnrecon.solvers.spec import SolverSpec

FLAT = 1e-5  # of the gradient at a refit: the residual is above the least one by some 1e-6 of it
# The share of features that a round of ``iterative`` keeps. Smaller steps gain little: at n = 400
# and 0.9 n kept features one round leaves an error of 0.10, four 0.017, 16 and 64 0.013.
ROUND = 0.95
ROUND_GAIN, ROUND_STEPS = 1e-3, 100  # its solves only rank features
PENALTY_STEP, LAST_PENALTY = 0.5, 1e-3  # of the path, in units of the penalty that removes all
PATH_STEPS, PATH_CHANGE = 300, 1e-4


def prune(system: System, spec: SolverSpec, count: int, method: str) -> Solution:
    """Solve with at most ``count`` features; all other scales are exactly 0.

    - ``magnitude``: the ``count`` largest contributions of the solution with all features, kept
      unchanged.
    - ``refit``: the same features, with new scales by least squares.
    - ``iterative``: in rounds that keep 95% of the features and refit, as lottery tickets are
      pruned (Frankle and Carbin 2019).
    - ``l1``: the largest contributions of the solution of least Σ |x_l| ‖m_l‖, computed
      approximately (``least_l1``), refitted. That solution has at most n nonzeros, being a basic
      solution of a linear program.

    A refit is exact if the kept features have rank n; otherwise M x = b has no solution in general,
    and then the report has ``converged=False``. With all features this is ``solve``.

    Args:
        system: n equations of c1 unknowns, without elimination of second scales.
        spec: the solver of the solution with all features; a refit chooses its own.
        count: how many features may be used, 1 to c1.
        method: one of the above.

    Raises:
        UserError: the system or the solver does not support pruning; no such method or count.

    >>> from bnrecon.construction.two_layer import linear_system
    >>> from bnrecon.operators.khatri_rao import KhatriRao
    >>> _ = torch.manual_seed(0)
    >>> matrix = KhatriRao(torch.randn(9, 3).double(), torch.randn(9, 2).double())
    >>> solution = prune(linear_system(matrix, torch.randn(3, 2).double()), SolverSpec(), 6, "l1")
    >>> int((solution.scale != 0).sum()), solution.report.converged
    (6, True)
    """
    return next(prune_to(system, spec, [count], method))


def prune_to(
    system: System, spec: SolverSpec, counts: Iterable[int], method: str
) -> Iterator[Solution]:
    """``prune`` to each of several counts; features are ranked once.

    ``iterative`` ranks them anew for each count. The first count's seconds include the ranking.
    """
    if isinstance(system.operator, Eliminated):
        raise UserError(none_to_spare(*system.matrix.shape))
    require_choice("pruning=", method, PRUNINGS)
    check_solver(method, spec)
    columns = system.operator.shape[1]
    order: torch.Tensor | None = None
    whole: Solution | None = None
    for count in counts:
        if count < 1:
            raise UserError(f"count={count}: at least one feature is needed")
        started = time.perf_counter()
        if count >= columns:
            yield solve(system, spec)
            continue
        if method == "iterative":
            order = shrink(system, count)
        elif method == "l1" and order is None:
            order = _largest_first(least_l1(system.operator, system.rhs))
        elif order is None:
            whole = solve(system, spec)
            order = _largest_first(whole.scale.abs() * system.operator.column_norms())
        if method == "magnitude" and whole is not None:
            support = order[:count]
            scale = _spread(system, support, whole.scale[support])  # as they are
            solution = _reported(system, spec, scale, whole.report)
        else:
            solution = refit(system, spec, order[:count])
        report = dataclasses.replace(solution.report, seconds=time.perf_counter() - started)
        approximated = method == "magnitude" or count < system.operator.shape[0]
        if approximated and not report.converged:
            why = f"approximated: {method} keeps {count} of {columns} features"
            report = dataclasses.replace(report, diagnosis=why)
        yield Solution(solution.scale, report)


def none_to_spare(equations: int, features: int) -> str:
    """Say why a layer between the minimum width and n cannot be pruned."""
    return (
        f"keep: {features} features for {equations} equations have none to spare; take "
        "oversampling=1.5"
    )


def check_solver(method: str, spec: SolverSpec) -> None:
    """Raise ``UserError`` for a solver that a method would not use.

    >>> check_solver("refit", SolverSpec("minimum_norm"))
    """
    if method in ("l1", "iterative") and spec.name != "auto":
        raise UserError(
            f"pruning={method} does not use solver={spec.name}; take solver=auto, or pruning=refit"
        )


def refit(system: System, spec: SolverSpec, support: torch.Tensor) -> Solution:
    """Solve again with the features ``support`` (k,): exactly for k >= n, else least squares.

    Least squares is CGLS in float64 on columns of norm 1, until the gradient has fallen to 1e-5 of
    its initial size.
    """
    part = select_columns(system.operator, support)
    rows, columns = part.shape
    if columns >= rows:
        restricted = dataclasses.replace(system, operator=part, matrix=part, orthogonal=False)
        solution = solve(restricted, dataclasses.replace(spec, name="auto"))
        return Solution(_spread(system, support, solution.scale), solution.report)
    operator = _normalized(part)
    size = system.rhs.norm().clamp_min(torch.finfo(system.rhs.dtype).tiny)
    limit = spec.max_iterations or MOST_ITERATIONS
    b = system.rhs / size
    with ResidualBar(f"refitting {columns} features", spec.tolerance) as bar:
        y, steps = cgls(operator, b, spec.tolerance, limit, bar.show, FLAT, math.inf)
    scale = _spread(system, support, size * operator.scaling * y)
    report = SolverReport(
        solver="least_squares",
        relative_residual=0.0,
        iterations=steps,
        seconds=0.0,
        converged=False,
        norm="least squares",
        precision="float64",
        reason="fewer features than equations",
        at_limit=steps >= limit,
    )
    return _reported(system, spec, scale, report)


def shrink(system: System, count: int) -> torch.Tensor:
    """The features left after rounds of solving and removing the smallest contributions.

    Solves are rough, in float32: they only rank.
    """
    whole = system.operator.to(FLOAT32)
    columns = whole.shape[1]
    rhs = (system.rhs / system.rhs.norm().clamp_min(torch.finfo(system.rhs.dtype).tiny)).float()
    support = torch.arange(columns, device=rhs.device)
    rounds = max(1, math.ceil(math.log(count / columns) / math.log(ROUND)))
    for number in range(1, rounds + 1):
        operator = _normalized(select_columns(whole, support))
        y, _ = cgls(operator, rhs, ROUND_GAIN, ROUND_STEPS, flat=ROUND_GAIN)
        remaining = round(columns * (count / columns) ** (number / rounds))
        support = support[_largest_first(y.abs())[:remaining]]
    return support


def least_l1(operator: Operator, rhs: torch.Tensor) -> torch.Tensor:
    """Rank features by the solution of least L1 norm, nearly (basis pursuit): values (c1,).

    With columns scaled to norm 1 and contributions y, minimize ½ ‖M y - b‖² + θ ‖y‖₁ for penalties
    θ that are halved from max |M^T b|, which removes all, down to a thousandth of it, each from the
    previous solution. The minimizer has y_l ≠ 0 only where |m_l^T (b - M y)| = θ. So |y_l + m_l^T
    (b - M y)| ranks these by |y_l| and before all others, which are ranked by how close they are to
    entering.

    This is approximate: steps and penalties end before the last features are decided. Compared with
    linear programming at n = 144 to 576 and c1 = 1.5 n, 98% of the first n features are the same;
    the errors were 1.4 to 3.1 times those of linear programming's features with 0.975 n kept
    features, and 0.95 to 1.4 times with 0.9 n.
    """
    matrix = _normalized(operator.to(FLOAT32))
    b = (rhs / rhs.norm().clamp_min(torch.finfo(rhs.dtype).tiny)).to(matrix.dtype)
    step = 1 / (1.05 * _largest_eigenvalue(matrix))
    correlation = matrix.rmatvec(b)
    penalty = first = float(correlation.abs().max())
    y = torch.zeros_like(correlation)
    while penalty > LAST_PENALTY * first:
        penalty *= PENALTY_STEP
        y = _shrinkage(matrix, b, penalty, y, step)
    return (y + matrix.rmatvec(b - matrix.matvec(y))).abs().to(rhs.dtype)


def _shrinkage(
    matrix: Products, b: torch.Tensor, penalty: float, y: torch.Tensor, step: float
) -> torch.Tensor:
    """FISTA (Beck and Teboulle 2009) with restarts (O'Donoghue and Candès 2015), from y."""
    ahead, momentum = y, 1.0
    for _ in range(PATH_STEPS):
        moved = ahead + step * matrix.rmatvec(b - matrix.matvec(ahead))
        new = moved.sign() * (moved.abs() - step * penalty).clamp_min(0)
        change = new - y
        if float(torch.dot(ahead - new, change)) > 0:
            momentum, ahead = 1.0, new
        else:
            after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = new + (momentum - 1) / after * change
            momentum = after
        y = new
        if float(change.norm()) <= PATH_CHANGE * float(y.norm()):
            break
    return y


def _largest_eigenvalue(matrix: Scaled) -> float:
    """Of M^T M, by the power method; the Marchenko-Pastur law gives 4.95 at 1.5 features a row."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(matrix.shape[1], dtype=torch.float32, generator=generator)
    vector = vector.to(matrix.scaling)
    size = 1.0
    for _ in range(50):
        vector = matrix.rmatvec(matrix.matvec(vector / vector.norm()))
        size = float(vector.norm())
    return size


def _largest_first(values: torch.Tensor) -> torch.Tensor:
    """The order of values from largest to smallest; ties keep their order."""
    return values.sort(descending=True, stable=True).indices


def _spread(system: System, support: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Put values of the features ``support`` (k,) among zeros, (c1,)."""
    scale = torch.zeros(system.operator.shape[1], dtype=values.dtype, device=values.device)
    return scale.index_copy_(0, support, values)


def _reported(
    system: System, spec: SolverSpec, scale: torch.Tensor, report: SolverReport
) -> Solution:
    """The solution with the residual of these scales."""
    residual = relative_residual(system, scale)
    converged = residual <= spec.tolerance
    report = dataclasses.replace(report, relative_residual=residual, converged=converged)
    return Solution(scale, report)


def _normalized(operator: Operator) -> Scaled:
    return Scaled(operator, inverse_norms(operator.column_norms().to(operator.dtype)))
