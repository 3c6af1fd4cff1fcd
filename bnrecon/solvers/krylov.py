"""Krylov methods in their operator's precision: CGLS, also by 8-bit integers, and Craig's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.base import Products
from bnrecon.operators.distributed import Distributed
from bnrecon.operators.integers import IntegerProducts
from bnrecon.solvers.checkpoint import InnerCheckpoint, KrylovState

# Iterations between checks of the residual on a GPU. A check leaves the GPU idle until the next
# iteration is launched; up to nine iterations too many cost less.
LOOK_EVERY = 10
MOST_ITERATIONS = 50_000  # unless the user sets a limit
PATIENCE = 100  # iterations of integer_cgls in which the residual must fall by a hundredth


def cgls(
    operator: Products,
    rhs: torch.Tensor,
    gain: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
    flat: float | None = None,
    patience: float = 100,
    checkpoint: InnerCheckpoint | None = None,
) -> tuple[torch.Tensor, int]:
    """Conjugate gradients on M^T M x = M^T b for ‖b‖ = 1, in the operator's precision.

    On a GPU the stopping criteria are checked only every ten iterations.

    Args:
        operator: M (n, c1).
        rhs: b (n,).
        gain: stop when the recursive residual has fallen to this.
        max_iterations: most products with M and M^T.
        show: called with iterations and residual.
        flat: stop when the gradient M^T r has fallen to this share of the first, at a least-squares
            solution; by default when it vanishes.
        patience: stop when the residual has not fallen by a hundredth in this many iterations, the
            limit of the precision.
        checkpoint: gets the state after every iteration; the solve resumes from its state.

    Returns:
        x (c1,) and the iterations.
    """
    progress = Progress(checkpoint, 0.99, patience)
    state = progress.resume(rhs) or begin_at_zero(operator, rhs)
    x, residual, direction, energy, first, done, *_ = state
    step = done
    tiny = (torch.finfo(rhs.dtype).eps if flat is None else flat) ** 2
    every = 1 if rhs.device.type == "cpu" else LOOK_EVERY
    if not energy > 0:
        return x, step  # b is orthogonal to M's range
    for step in range(done + 1, max_iterations + 1):
        checking = step % every == 0
        image = operator.matvec(direction)
        alpha = ratio(energy, torch.dot(image, image))
        x.addcmul_(alpha, direction)
        residual.addcmul_(alpha, image, value=-1)
        if checking:
            size = float(residual.norm())
            show(step, size)
            if not size > gain or progress.stagnates(size, step):
                break
        gradient = operator.rmatvec(residual)
        energy, previous = torch.dot(gradient, gradient), energy
        if checking and not energy > tiny * first:
            break
        beta = ratio(energy, previous)
        direction = gradient + beta * direction
        progress.save(KrylovState(x, residual, direction, energy, first, step))
    return x, step


def craig(
    operator: Products,
    rhs: torch.Tensor,
    gain: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
    checkpoint: InnerCheckpoint | None = None,
) -> tuple[torch.Tensor, int]:
    """Craig's method: conjugate gradients on M M^T y = b, in the operator's precision.

    The residual need not fall in every iteration: the limit of the precision counts as reached
    after 200 iterations in which it has not fallen by a tenth, or, in float64, after as many as
    there are equations. If M M^T y = b has no solution, the residual grows without bound, which
    ends it too. On a GPU this is checked only every ten iterations.

    Arguments are as in ``cgls``, also ‖b‖ = 1. Returns y (n,) and the iterations.
    """
    square = torch.dot(rhs, rhs)
    zero = KrylovState(torch.zeros_like(rhs), rhs.clone(), rhs.clone(), square, square)
    progress = Progress(checkpoint, 0.9, max(200, len(rhs)) if rhs.dtype == torch.float64 else 200)
    y, residual, direction, energy, lowest, done, *_ = progress.resume(rhs) or zero
    step = done
    every = 1 if rhs.device.type == "cpu" else LOOK_EVERY
    for step in range(done + 1, max_iterations + 1):
        image = operator.rmatvec(direction)
        alpha = ratio(energy, torch.dot(image, image))
        y.addcmul_(alpha, direction)
        residual.addcmul_(alpha, operator.matvec(image), value=-1)
        energy, previous = torch.dot(residual, residual), energy
        lowest = torch.minimum(lowest, energy)  # it may fall and rise between checks
        if step % every == 0:
            size, least = float(energy) ** 0.5, float(lowest) ** 0.5
            show(step, size)
            if not gain < size < 1e8 or progress.stagnates(least, step):
                break
        beta = ratio(energy, previous)
        direction = residual + beta * direction
        progress.save(KrylovState(y, residual, direction, energy, lowest, step))
    return y, step


def integer_cgls(
    operator: IntegerProducts | Distributed,
    rhs: torch.Tensor,
    gain: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
    *,
    checkpoint: InnerCheckpoint | None = None,
) -> tuple[torch.Tensor, int]:
    """Conjugate gradients on M^T M x = M^T b for ‖b‖ = 1, along directions rounded to 8 bits.

    Directions need not be accurate, but M times them must be: x and r = b - M x stay consistent,
    and the iteration can go on to float64 accuracy, while bf16 has to restart with a corrected
    residual at each 1e-2. A direction p is rounded, then used exactly:

        x += α p,  r -= α M p  with  α = <M p, r> / <M p, M p>,  which minimizes ‖r‖ along p.

    The gradient g = M^T r, of a rounded r, is off by about a hundredth, as is the next direction g
    + β p. With β = <g, g - g'> / <g', g'> (Polak and Ribière; g' is the previous gradient) the
    iteration forgets the effect of errors. Rounded directions leave the span of M's rows: x is
    within 1% of the solution of minimum norm, its norm within 1e-4 of the least.

    Arguments are as in ``cgls``, b in float64. Returns x (c1,) in float64 and the iterations.
    """
    progress = Progress(checkpoint, 0.99, PATIENCE)
    state = progress.resume(rhs) or begin_at_zero(operator, rhs)
    x, residual, direction, energy, first, done, *_ = state
    gradient = operator.rmatvec(residual) if done else direction
    step, tiny = done, torch.finfo(rhs.dtype).eps ** 2
    if not energy > 0:
        return x, step  # b is orthogonal to M's range
    for step in range(done + 1, max_iterations + 1):
        direction = operator.nearest(direction)
        image = operator.matvec(direction)
        alpha = ratio(torch.dot(image, residual), torch.dot(image, image))
        x.addcmul_(alpha, direction)
        residual.addcmul_(alpha, image, value=-1)
        size = float(residual.norm())
        show(step, size)
        if not size > gain or progress.stagnates(size, step):
            break
        previous, gradient = gradient, operator.rmatvec(residual)
        beta = ratio(torch.dot(gradient, gradient - previous), energy)
        energy = torch.dot(gradient, gradient)
        if not energy > tiny * first:
            break
        direction.mul_(beta).add_(gradient)
        progress.save(KrylovState(x, residual, direction, energy, first, step))
    return x, step


class Progress:
    """Saves a solve's state and detects stagnation.

    A solve stagnates if the residual has not fallen to ``share`` of itself in ``patience`` steps.
    """

    def __init__(self, checkpoint: InnerCheckpoint | None, share: float, patience: float):
        self.checkpoint, self.share, self.patience = checkpoint, share, patience
        self.mark = 1.0, 0  # the residual's norm at its last such fall, and the iteration

    def resume(self, rhs: torch.Tensor) -> KrylovState | None:
        """Return the state to resume from, on b's device; ``None`` if the solve has not begun."""
        state = None if self.checkpoint is None else self.checkpoint.refinement.inner
        if state is None:
            return None
        self.mark = state.marked, state.marked_at
        return state.on(rhs)

    def stagnates(self, size: float, step: int) -> bool:
        """Whether the solve stagnates, with a residual of this norm."""
        if size < self.share * self.mark[0]:
            self.mark = size, step
        return step - self.mark[1] >= self.patience

    def save(self, state: KrylovState) -> None:
        """Save a state; this adds when the residual last fell."""
        if self.checkpoint is not None:
            self.checkpoint.save(state._replace(marked=self.mark[0], marked_at=self.mark[1]))


def begin_at_zero(operator: Products, rhs: torch.Tensor) -> KrylovState:
    """The state of CGLS at x = 0, whose first direction is the gradient M^T b."""
    gradient = operator.rmatvec(rhs)
    energy = torch.dot(gradient, gradient)
    return KrylovState(rhs.new_zeros(operator.shape[1]), rhs.clone(), gradient, energy, energy)


def ratio(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """The quotient of two energies; 0 if both have vanished, as they may between checks.

    The iteration then makes no step.
    """
    return numerator / denominator.clamp_min(torch.finfo(denominator.dtype).tiny)
