"""Matrix-free solvers: Krylov methods in low precision, corrected in float64.

``matrix_free`` (CGLS) gives a solution close to minimum norm, ``minimum_norm`` (Craig's method)
exactly the one of minimum norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.columns import Scaled, inverse_norms
from bnrecon.operators.distributed import Distributed
from bnrecon.operators.integers import IntegerGradients, IntegerProducts, find_signs
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import System
from bnrecon.runtime.hardware import has_fast_int8
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, INT8, TF32, Precision, precision_schedule
from bnrecon.solvers.base import Answer, Unsuitable
from bnrecon.solvers.checkpoint import Checkpoint, InnerCheckpoint, RefinementState
from bnrecon.solvers.krylov import MOST_ITERATIONS, cgls, craig, integer_cgls
from bnrecon.solvers.progress import ResidualBar
from bnrecon.solvers.spec import SolverSpec

# The factor by which an inner solve must reduce the residual. The precision allows more, but each
# restart loses what Krylov methods have learned of the spectrum, and digits beyond the precision
# are not real.
GAIN = {
    BFLOAT16.name: 1e-2,
    TF32.name: 1e-3,
    FLOAT32.name: 1e-5,
    BFLOAT16.with_integer_gradients().name: 5e-3,
    FLOAT32.with_integer_gradients().name: 1e-5,
}
# Entries of M below which more outer corrections cost more than bf16 saves (width 16: 0.08 s in
# bf16, 0.06 s in float32).
BF16_ENTRIES = 3 * 10**7
# c1 / n from which bf16 is expected to suffice: rounding of size ε costs ε κ in CGLS, ε κ² in
# Craig's method. Closer to 1, memory is planned for float32, though bf16 is tried first there, too.
BF16_OVERSAMPLING = {"matrix_free": 1.02, "minimum_norm": 1.1}

# c1 / n from which 8-bit integer products are fastest; at 1.02 the errors of rounded gradients cost
# as much as they save (n = 9,216, one thread of a Zen 4 processor).
INTEGER_OVERSAMPLING = 1.03
# The same for gradients alone, of other features: at 1.05 they need up to twice the iterations.
GRADIENT_OVERSAMPLING = 1.1
# Iterations in which the residual must fall by a hundredth, or gradients become exact again.
INTEGER_PATIENCE = 30

# If the columns' norms spread wider than this (relative standard deviation), scaling them to 1
# pays: it restores the Marchenko-Pastur conditioning of layers with few inputs. With 64 inputs they
# spread by 0.09, with 3 by 0.4.
SPREAD = 0.25

Inner = Callable[..., tuple[torch.Tensor, int]]  # cgls or craig: a rough solution, the iterations


def expected_iterations(oversampling: float, tolerance: float) -> float:
    """ln(1/tol) / (½ ln(c1/n)), whatever n: the Marchenko-Pastur law fixes M's spectrum.

    >>> round(expected_iterations(1.5, 1e-10)), round(expected_iterations(1.02, 1e-10))
    (114, 2326)
    """
    if not oversampling > 1:
        return math.inf
    return math.log(1 / tolerance) / (0.5 * math.log(oversampling))


def memory(rows: int, columns: int) -> int:
    """Bytes of vectors and temporaries; the layer counts the factors' rounded copies."""
    return 8 * (8 * columns + 6 * rows) + min(2**25, 8 * rows * columns)


def integers_pay(rows: int, columns: int, device: torch.device, signs: bool = True) -> bool:
    """Whether ``matrix_free`` should multiply signs, or others' gradients, in 8-bit integers.

    >>> integers_pay(36_864, 36_900, torch.device("cpu"))
    False
    """
    least = INTEGER_OVERSAMPLING if signs else GRADIENT_OVERSAMPLING
    enough = columns >= least * rows and rows * columns >= BF16_ENTRIES
    return enough and has_fast_int8(device)


def rounded_itemsize(solver: str, rows: int, columns: int, device: torch.device) -> int:
    """Bytes per number of the factors that a solver's products read.

    Four in float32, which all solvers but the matrix-free ones use, and these for small systems
    and, after bf16, for near-square ones; two in bf16.

    >>> rounded_itemsize("minimum_norm", 36_864, 38_000, torch.device("cpu"))
    4
    """
    least = BF16_OVERSAMPLING.get(solver, math.inf)
    enough = columns >= least * rows and rows * columns >= BF16_ENTRIES
    return (precision_schedule(device)[0] if enough else FLOAT32).factors.itemsize


def matrix_free(system: System, spec: SolverSpec, checkpoint: Checkpoint | None = None) -> Answer:
    """Solve by CGLS in the fastest precision of the device, corrected in float64.

    From zero, plain CGLS gives the scales of minimum norm. Rounded factors span slightly different
    rows, so the sum of the corrections deviates by some 0.4% in bf16; it still solves M x = b to
    float64 accuracy. Where 8-bit integers are fast, random signs are multiplied in them: factors
    are exact, directions are rounded, and x is off by some 0.7% (``integer_cgls``). For other
    features in memory, only M^T y is (``IntegerGradients``): x is off by 1.3% at 1.5 n and 2.5% at
    1.1 n. If the norms of M's columns spread widely, they are scaled to 1 first, and the norm is
    that of the scales in units of the columns' inverse norms. With fewer unknowns than equations,
    or without a solution, the result is near a least-squares solution; ``least_squares`` iterates
    until it is one.
    """
    rows, columns = system.operator.shape
    if columns < rows:
        return refine(system, spec, cgls, "near least squares", checkpoint=checkpoint)
    norms = system.operator.column_norms()
    spread = float(norms.std(correction=0) / norms.mean())
    norm, scaling = "near the minimum norm of the scales", None
    if spread > SPREAD:
        norm, scaling = f"{norm} times their columns' norms", inverse_norms(norms)
    return refine(system, spec, cgls, norm, scaling, checkpoint=checkpoint)


def check_wide(rows: int, columns: int, _orthogonal: bool) -> None:
    """Raise ``Unsuitable`` for fewer unknowns than equations."""
    if columns < rows:
        raise Unsuitable(
            f"solver=minimum_norm picks one of many solutions, and {rows} equations of {columns} "
            "unknowns have none in general; use solver=matrix_free or solver=least_squares"
        )


def minimum_norm(system: System, spec: SolverSpec, checkpoint: Checkpoint | None = None) -> Answer:
    """The solution of smallest ‖x‖, in whatever precision the inner solves run.

    Craig's method: conjugate gradients on M M^T y = b. Inner solves only give corrections of y; x =
    M^T y is formed with the exact M, so it lies in the span of its rows. Rounding of relative size
    ε costs ε κ² here and ε κ in CGLS: bf16 suffices down to an oversampling of about 1.1, below
    which the precision goes up a step.
    """
    norm = "minimum norm of the scales"
    return refine(system, spec, craig, norm, dual=True, checkpoint=checkpoint)


def refine(
    system: System,
    spec: SolverSpec,
    inner: Inner,
    norm: str,
    scaling: torch.Tensor | None = None,
    dual: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Answer:
    """Correct in float64 the solutions of ``inner`` in lower precision (iterative refinement).

    With r = b - M x, solve M d = r roughly and take x += α d, where α minimizes ‖r - α M d‖, so
    that the residual never grows. An inner solve need not gain more than the last one did. If a
    correction gains less than a factor of 2, the precision goes up a step, finally to float64.

    Args:
        system: n equations of c1 unknowns.
        spec: tolerance and iterations.
        inner: ``cgls`` or ``craig``.
        norm: which of many solutions this gives, for the report.
        scaling: (c1,), factors of M's columns in the inner solves.
        dual: whether inner solves give corrections of y, with d = M^T y.
        checkpoint: where the state is saved between iterations, and resumed from.
    """
    exact, rhs = system.operator, system.rhs
    schedule, integers = _schedule(exact, inner, scaling)
    limit = spec.max_iterations or MOST_ITERATIONS
    start = None if checkpoint is None else checkpoint.load()
    start = start or RefinementState(rhs.new_zeros(exact.shape[1]), rhs, 0, len(schedule))
    x, residual, iterations = start.x.to(rhs), start.residual.to(rhs), start.iterations
    level, reduction = max(0, len(schedule) - start.precisions_remaining), start.reduction
    names, resumed = start.names, start.inner
    rhs_norm, residual_norm = float(rhs.norm()), float(residual.norm())
    target = 0.5 * spec.tolerance * rhs_norm
    solve_inner: Inner | None = None

    def update(correction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        direction = exact.rmatvec(correction.to(rhs)) if dual else correction.to(rhs)
        direction = direction if scaling is None else scaling * direction
        return _line_search(exact, x, residual, direction)

    with ResidualBar(f"solving {exact.shape[0]} x {exact.shape[1]}", spec.tolerance) as bar:

        def show(steps: int, inner_residual: float) -> None:
            bar.show(iterations + steps, inner_residual * residual_norm / rhs_norm)

        while level < len(schedule) and residual_norm > target and iterations < limit:
            if solve_inner is None:
                # Operators that gain nothing by bf16 stay in float32.
                precision, solve_inner = _inner_solve(
                    exact, schedule[level], inner, scaling, integers
                )
                if resumed is not None and names[-1:] != (precision.name,):
                    # It ran in another machine's precision: only its iterate is used.
                    x, residual = update(resumed.x)
                    iterations, resumed = iterations + resumed.step, None
                    residual_norm = float(residual.norm())
                    continue
            names += (precision.name,) if names[-1:] != (precision.name,) else ()
            usual = GAIN.get(schedule[level].name, 0.0) if reduction is None else reduction
            required = max(usual, 0.8 * target / residual_norm)
            remaining = len(schedule) - level
            state = RefinementState(x, residual, iterations, remaining, reduction, names, resumed)
            resumed = None
            correction, steps = solve_inner(
                (residual / residual_norm).to(precision.vectors),
                required,
                limit - iterations,
                show,
                checkpoint=None if checkpoint is None else InnerCheckpoint(checkpoint, state),
            )
            iterations += steps
            from_zero, previous_norm = not bool(x.any()), residual_norm
            x, residual = update(correction)
            residual_norm = float(residual.norm())
            if residual_norm <= target and not from_zero:  # an updated residual is recomputed first
                residual = rhs - exact.matvec(x)
                residual_norm = float(residual.norm())
            gained = residual_norm / previous_norm
            if gained > 0.5:
                level, reduction, solve_inner, integers = level + 1, None, None, None
            elif gained > 2 * required:
                reduction = min(0.25, gained)
    at_limit = iterations >= limit and residual_norm > target
    return Answer(x, iterations, norm, " then ".join(names), at_limit)


def _schedule(
    exact: Operator, inner: Inner, scaling: torch.Tensor | None
) -> tuple[list[Precision], IntegerProducts | Distributed | None]:
    """The precisions of inner solves, fastest first, and products in 8-bit integers, if any."""
    schedule = precision_schedule(exact.device)
    if exact.shape[0] * exact.shape[1] < BF16_ENTRIES:
        return [precision for precision in schedule if precision is not BFLOAT16], None
    if inner is not cgls or not integers_pay(*exact.shape, exact.device):
        return schedule, None
    part = exact.local
    signs = find_signs(part) if scaling is None else None
    if exact.agreed(signs is not None):
        return [INT8, *schedule], exact.mapped(lambda part: IntegerProducts(part, signs))
    pay = integers_pay(*exact.shape, exact.device, signs=False)
    suits = pay and isinstance(part, KhatriRao) and IntegerGradients.suit(part)
    if exact.agreed(suits):
        return [schedule[0].with_integer_gradients(), *schedule], None
    return schedule, None


def _inner_solve(
    exact: Operator,
    precision: Precision,
    inner: Inner,
    scaling: torch.Tensor | None,
    integers: IntegerProducts | Distributed | None,
) -> tuple[Precision, Inner]:
    """The operator's precision, and ``inner`` with the operator in it."""
    if precision is INT8 and integers is not None:
        return INT8, partial(integer_cgls, integers)
    operator: Operator | IntegerGradients
    if precision.integer_gradients:
        operator = exact.mapped(partial(IntegerGradients, precision=precision))
    else:
        operator = exact.to(precision)
    rounded = operator if scaling is None else Scaled(operator, scaling)
    limits = {"patience": INTEGER_PATIENCE} if precision.integer_gradients else {}
    return operator.precision, partial(inner, rounded, **limits)


def _line_search(
    exact: Operator, x: torch.Tensor, residual: torch.Tensor, direction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next x + α d and the residual r - α M d, where α minimizes its norm."""
    image = exact.matvec(direction)
    step = torch.dot(image, residual) / torch.dot(image, image)
    if not bool(torch.isfinite(step)):
        return x, residual
    return x + step * direction, residual - step * image
