"""Krylov methods in the precision of their operator: CGLS and Craig's method."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.base import Products
from bnrecon.solvers.checkpoint import InnerCheckpoint, KrylovState

__all__ = ["LOOK_EVERY", "MOST_ITERATIONS", "cgls", "craig", "ratio"]

# Iterations between checks of the residual on a GPU. A check waits for the GPU and leaves it idle
# until the next iteration is launched; up to nine iterations too many cost less.
LOOK_EVERY = 10
MOST_ITERATIONS = 50_000  # where the user sets no limit


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

    On a GPU the stopping criteria are checked in every tenth iteration only.

    Args:
        operator: M (n, c1).
        rhs: b (n,).
        gain: stop when the recursive residual has fallen to this.
        max_iterations: products with M and M^T, at most.
        show: called with iterations and residual.
        flat: stop when the gradient M^T r has fallen to this share of the first one, at a
            least-squares solution; by default when it vanishes.
        patience: stop when the residual has not fallen by a hundredth for so many iterations,
            which is the limit of the precision.
        checkpoint: is given the state after every iteration; one that it has is gone on from.

    Returns:
        x (c1,) and the iterations.
    """
    state = None if checkpoint is None else checkpoint.load()
    if state is None:
        gradient = operator.rmatvec(rhs)
        energy = torch.dot(gradient, gradient)
        x = torch.zeros(operator.shape[1], dtype=rhs.dtype, device=rhs.device)
        state = KrylovState(x, rhs.clone(), gradient.clone(), energy, energy)
    x, residual, direction, energy, first, done, marked, marked_at = state.on(rhs)
    step = done
    tiny = (torch.finfo(rhs.dtype).eps if flat is None else flat) ** 2
    every = 1 if rhs.device.type == "cpu" else LOOK_EVERY
    if not energy > 0:
        return x, step  # b is orthogonal to M's range
    for step in range(done + 1, max_iterations + 1):
        looking = step % every == 0
        image = operator.matvec(direction)
        length = ratio(energy, torch.dot(image, image))
        x.addcmul_(length, direction)
        residual.addcmul_(length, image, value=-1)
        if looking:
            size = float(residual.norm())
            show(step, size)
            if not size > gain:
                break
            if size < 0.99 * marked:
                marked, marked_at = size, step
            elif step - marked_at >= patience:
                break
        gradient = operator.rmatvec(residual)
        energy, previous = torch.dot(gradient, gradient), energy
        if looking and not energy > tiny * first:
            break
        direction = gradient + ratio(energy, previous) * direction
        if checkpoint is not None:
            checkpoint.save(
                KrylovState(x, residual, direction, energy, first, step, marked, marked_at)
            )
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

    The residual need not fall in every iteration: after 200 iterations in which it has not fallen
    by a tenth, the limit of the precision is taken to be reached; in float64, after as many as
    there are equations. Where M M^T y = b has no solution the residual grows without bound, which
    ends it too. On a GPU this is checked in every tenth iteration only.

    Args:
        operator: M (n, c1).
        rhs: b (n,), of norm 1.
        gain: stop when the recursive residual has fallen to this.
        max_iterations: products with M and M^T, at most.
        show: called with iterations and residual.
        checkpoint: is given the state after every iteration; one that it has is gone on from.

    Returns:
        y (n,) and the iterations.
    """
    state = None if checkpoint is None else checkpoint.load()
    if state is None:
        energy = torch.dot(rhs, rhs)
        state = KrylovState(torch.zeros_like(rhs), rhs.clone(), rhs.clone(), energy, energy)
    y, residual, direction, energy, lowest, done, marked, marked_at = state.on(rhs)
    step = done
    patience = max(200, len(rhs)) if rhs.dtype == torch.float64 else 200
    every = 1 if rhs.device.type == "cpu" else LOOK_EVERY
    for step in range(done + 1, max_iterations + 1):
        image = operator.rmatvec(direction)
        length = ratio(energy, torch.dot(image, image))
        y.addcmul_(length, direction)
        residual.addcmul_(length, operator.matvec(image), value=-1)
        energy, previous = torch.dot(residual, residual), energy
        lowest = torch.minimum(
            lowest, energy
        )  # it may have fallen and risen again since the last look
        if step % every == 0:
            size, least = float(energy) ** 0.5, float(lowest) ** 0.5
            show(step, size)
            if not gain < size < 1e8:
                break
            if least < 0.9 * marked:
                marked, marked_at = least, step
            elif step - marked_at >= patience:
                break
        direction = residual + ratio(energy, previous) * direction
        if checkpoint is not None:
            checkpoint.save(
                KrylovState(y, residual, direction, energy, lowest, step, marked, marked_at)
            )
    return y, step


def ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """The quotient of two energies; 0 where both have vanished, as they may between looks.

    The iteration then stands still.
    """
    return above / below.clamp_min(torch.finfo(below.dtype).tiny)
