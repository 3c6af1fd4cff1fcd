"""The matrix-free solver: CGLS through the operator, float32 inside, float64 correction outside."""

from __future__ import annotations

import torch

from bnrecon.construction.two_layer import System
from bnrecon.khatri_rao import Operator
from bnrecon.solvers.base import SolverOptions, register_solver

__all__ = ["cgls", "matrix_free"]


def _memory(rows: int, columns: int) -> int:
    """Vectors; the float32 copy of the factors is counted with the layer."""
    return 8 * (6 * columns + 6 * rows)


@register_solver("matrix_free", memory=_memory, norm="minimum norm of the scales in units of their columns' inverse norms")
def matrix_free(system: System, options: SolverOptions) -> tuple[torch.Tensor, int]:
    """Solve by CGLS in float32, corrected in float64: residual, inner solve for the correction, until the tolerance is met.

    Columns are scaled to norm 1, which restores the Marchenko-Pastur conditioning of layers with few inputs. Each inner
    solve need only gain a few digits; when one gains less than a factor of 3 the arithmetic goes up to float64, and when that
    stalls too the best x is returned. Iterations are about ln(1/tol) / (½ ln(c1/n)).
    """
    operator, rhs = system.operator, system.rhs
    scaling = operator.column_norms()
    scaling = torch.where(scaling > 0, 1 / scaling.clamp_min(torch.finfo(scaling.dtype).tiny), torch.zeros_like(scaling))
    limit = options.max_iterations or 20_000
    ladder = [torch.float32, torch.float64]
    inner = operator.to(ladder[0])
    best = x = torch.zeros(operator.shape[1], dtype=rhs.dtype, device=rhs.device)
    smallest = size = float(rhs.norm())
    target, spent, residual = 0.5 * options.tolerance * size, 0, rhs
    while size > target and spent < limit:
        gain = max(1e-5 if ladder[0] == torch.float32 else 1e-14, 0.5 * target / size)
        correction, steps = cgls(inner, scaling.to(inner.dtype), (residual / size).to(inner.dtype), gain, limit - spent)
        spent += steps
        x = best + size * correction.to(rhs.dtype)
        residual = rhs - operator.matvec(x)
        size, before = float(residual.norm()), size
        if size < smallest:
            best, smallest = x, size
        else:
            residual = rhs - operator.matvec(best)
            size = smallest
        if size > before / 3:
            ladder.pop(0)
            if not ladder:
                break
            inner = operator.to(ladder[0])
    return best, spent


def cgls(
    operator: Operator, scaling: torch.Tensor, rhs: torch.Tensor, gain: float, max_iterations: int
) -> tuple[torch.Tensor, int]:
    """Conjugate gradients on the normal equations of M D y = b, D = diag(``scaling``); returns D y and the iterations.

    Stops when the recursive residual has fallen to ``gain`` · ‖b‖, when the gradient vanishes (a least-squares solution), or
    when the residual has not fallen for 60 iterations by a hundredth, which is the arithmetic's limit.
    """
    y = torch.zeros_like(scaling)
    residual = rhs.clone()
    gradient = scaling * operator.rmatvec(residual)
    direction = gradient.clone()
    energy = first = torch.dot(gradient, gradient)
    goal, marked, marked_at = gain * residual.norm(), residual.norm(), 0
    tiny = torch.finfo(rhs.dtype).eps ** 2
    for step in range(1, max_iterations + 1):
        image = operator.matvec(scaling * direction)
        length = energy / torch.dot(image, image)
        y.addcmul_(length.expand_as(y), direction)
        residual.addcmul_(-length.expand_as(residual), image)
        size = residual.norm()
        if not size > goal:
            break
        if size < 0.99 * marked:
            marked, marked_at = size, step
        elif step - marked_at >= 60:
            break
        gradient = scaling * operator.rmatvec(residual)
        energy, previous = torch.dot(gradient, gradient), energy
        if not energy > tiny * first:
            break
        direction = gradient + (energy / previous) * direction
    return scaling * y, step
