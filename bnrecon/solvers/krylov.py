"""Krylov methods in the precision of their operator: CGLS and Craig's method."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.base import Products

__all__ = ["LOOK_EVERY", "cgls", "craig"]

# Iterations between checks of the residual on a GPU. A check waits for the GPU and leaves it idle
# until the next iteration is launched; up to nine iterations too many cost less.
LOOK_EVERY = 10


def cgls(
    operator: Products,
    rhs: torch.Tensor,
    gain: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
    flat: float | None = None,
    patience: float = 100,
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

    Returns:
        x (c1,) and the iterations.
    """
    x = torch.zeros(operator.shape[1], dtype=rhs.dtype, device=rhs.device)
    residual = rhs.clone()
    gradient = operator.rmatvec(residual)
    direction = gradient.clone()
    energy = first = torch.dot(gradient, gradient)
    marked, marked_at, step = 1.0, 0, 0
    tiny = (torch.finfo(rhs.dtype).eps if flat is None else flat) ** 2
    every = 1 if rhs.device.type == "cpu" else LOOK_EVERY
    if not energy > 0:
        return x, 0  # b is orthogonal to M's range
    for step in range(1, max_iterations + 1):
        looking = step % every == 0
        image = operator.matvec(direction)
        length = _ratio(energy, torch.dot(image, image))
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
        direction = gradient + _ratio(energy, previous) * direction
    return x, step


def craig(
    operator: Products,
    rhs: torch.Tensor,
    gain: float,
    max_iterations: int,
    show: Callable[[int, float], None] = lambda *_: None,
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

    Returns:
        y (n,) and the iterations.
    """
    y = torch.zeros_like(rhs)
    residual, direction = rhs.clone(), rhs.clone()
    energy = lowest = torch.dot(residual, residual)
    marked, marked_at, step = 1.0, 0, 0
    patience = max(200, len(rhs)) if rhs.dtype == torch.float64 else 200
    every = 1 if rhs.device.type == "cpu" else LOOK_EVERY
    for step in range(1, max_iterations + 1):
        image = operator.rmatvec(direction)
        length = _ratio(energy, torch.dot(image, image))
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
        direction = residual + _ratio(energy, previous) * direction
    return y, step


def _ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """The quotient of two energies; 0 where both have vanished, as they may between looks.

    The iteration then stands still.
    """
    return above / below.clamp_min(torch.finfo(below.dtype).tiny)
