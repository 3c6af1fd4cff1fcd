"""CGLS by products in 8-bit integers, which are exact for the vectors that it takes them of."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.integers import IntegerProducts
from bnrecon.solvers.checkpoint import InnerCheckpoint, KrylovState
from bnrecon.solvers.krylov import Course, begin_at_zero, ratio

PATIENCE = 100  # iterations in which the residual has to fall by a hundredth


def integer_cgls(
    operator: IntegerProducts,
    rhs: torch.Tensor,
    gain: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
    *,
    checkpoint: InnerCheckpoint | None = None,
) -> tuple[torch.Tensor, int]:
    """Conjugate gradients on M^T M x = M^T b for ‖b‖ = 1, along directions rounded to 8 bits.

    Directions need not be accurate, but M times them has to be: x and r = b - M x stay in step,
    and nothing ends the iteration before float64 does, where in bf16 it has to be begun again with
    a corrected residual at each 1e-2. A direction p is rounded, then taken as it is:

        x += α p,  r -= α M p  with  α = <M p, r> / <M p, M p>,  which minimizes ‖r‖ along p.

    The gradient g = M^T r, of a rounded r, is off by about a hundredth, and with it the next
    direction g + β p. By β = <g, g - g'> / <g', g'> (Polak and Ribière; g' is the gradient before)
    the iteration forgets what errors did to it. Rounded directions leave the span of M's rows: x is
    within 1% of the solution of minimum norm, its norm within 1e-4 of the least.

    Args:
        operator: M (n, c1) of random signs.
        rhs: b (n,) in float64, of norm 1.
        gain: stop when the residual has fallen to this.
        max_iterations: products with M and M^T, at most.
        show: called with iterations and residual.
        checkpoint: is given the state after every iteration; one that it has is gone on from.

    Returns:
        x (c1,) in float64, and the iterations.
    """
    course = Course(checkpoint, 0.99, PATIENCE)
    state = course.resume(rhs) or begin_at_zero(operator, rhs)
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
        if not size > gain or course.stagnates(size, step):
            break
        previous, gradient = gradient, operator.rmatvec(residual)
        beta = ratio(torch.dot(gradient, gradient - previous), energy)
        energy = torch.dot(gradient, gradient)
        if not energy > tiny * first:
            break
        direction.mul_(beta).add_(gradient)
        course.save(KrylovState(x, residual, direction, energy, first, step))
    return x, step
