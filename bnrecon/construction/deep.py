"""More than two source layers for one target layer (Burkholz 2024, Theorem 2.5): a polynomial system, solved by Levenberg-Marquardt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = [
    "DeepSolution",
    "balanced_widths",
    "compose_deep",
    "deep_jacobian",
    "draw_deep",
    "generic_rank",
    "least_total_width",
    "solve_deep",
]


def least_total_width(equations: int, layers: int) -> int:
    """N + L - 1: as many scales as equations, and one for each of the L - 1 places between layers where a factor can be moved.

    The theorem asks for n + L, the last layer's c2 counted. For L = 2 this is Theorem 2.2's c1 + c2 >= n + 1.

    >>> least_total_width(108, 2) - 4 == 108 - 4 + 1
    True
    """
    return equations + layers - 1


def balanced_widths(total: int, outputs: int, layers: int, fan_in: int = 1) -> tuple[int, ...]:
    """Widths c_1 … c_L of that total: c_L = c2, the others as equal as can be with c_1 >= ``fan_in``.

    Two layers have to be wider than the theorem, whose (iii) asks for c_l >= c0, says. The rows of W' lie in the row space of C_1, which
    no scale changes: general targets need c_1 >= c0 · taps, more than c0 where the first kernel is larger than 1x1. Its columns, up
    to the c2 last scales, lie in the column space of C_L: with c_(L-1) < c2 only if c0 · taps · (c2 - c_(L-1)) < c2. The first is seen
    to here, the second is the caller's: ``generic_rank`` tells.

    >>> balanced_widths(111, 4, 3), balanced_widths(57, 2, 4, fan_in=27)
    ((54, 53, 4), (27, 14, 14, 2))
    """
    first = max(fan_in, -(-(total - outputs) // (layers - 1)))
    if layers == 2:
        return total - outputs, outputs
    inside, rest = divmod(total - outputs - first, layers - 2)
    return (first, *(inside + (number < rest) for number in range(layers - 2)), outputs)


def generic_rank(weights: Sequence[torch.Tensor], seed: int = 0) -> int:
    """Rank of the Jacobian at random scales: the dimension of the set of targets that these weights can become.

    Below n almost no target is among them, whatever the solver. At n the set has interior; over the reals it need not be everything.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = [
        torch.randn(len(weight), generator=generator, dtype=torch.float64) for weight in weights
    ]
    scales = [draw.to(weights[0].device) for draw in draws]
    return int(torch.linalg.matrix_rank(deep_jacobian(weights, scales), rtol=1e-10))


def draw_deep(inputs: int, taps: int, widths: Sequence[int], seed: int) -> list[torch.Tensor]:
    """He-normal weights of a chain whose first kernel covers the target's and whose others are 1x1; float64.

    The first is (c1, c0 · taps), the others are (c_l, c_(l-1)). They are drawn on the CPU, so that
    the numbers are the seed's on every device that they are moved to.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = [inputs * taps, *widths[:-1]]
    return [
        torch.randn(rows, fan_in, generator=generator, dtype=torch.float64) * (2 / fan_in) ** 0.5
        for rows, fan_in in zip(widths, columns, strict=True)
    ]


def compose_deep(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> torch.Tensor:
    """W' = diag(γ_L) C_L diag(γ_(L-1)) … diag(γ_1) C_1, (…, c2, c0 · taps); scales (…, c_l)."""
    product = weights[0] * scales[0][..., None]
    for weight, scale in zip(weights[1:], scales[1:], strict=True):
        product = (weight @ product) * scale[..., None]
    return product


def deep_jacobian(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> torch.Tensor:
    """Derivative of vec(W') in all scales, (…, n, Σ c_l): each layer's block is a column-wise Khatri-Rao product.

    Column j of layer l is what lies behind its channel j times what lies before it.
    """
    before, product = [], None
    for weight, scale in zip(weights, scales, strict=True):
        reached = (
            weight.expand(*scale.shape[:-1], *weight.shape) if product is None else weight @ product
        )
        before.append(reached)
        product = reached * scale[..., None]
    outputs = weights[-1].shape[0]
    behind = torch.eye(outputs, dtype=weights[0].dtype, device=weights[0].device)
    behind = behind.expand(*scales[0].shape[:-1], outputs, outputs)
    blocks = []
    for number in reversed(range(len(weights))):
        blocks.append(
            (behind[..., :, None, :] * before[number].transpose(-1, -2)[..., None, :, :]).flatten(
                -3, -2
            )
        )
        behind = (behind * scales[number][..., None, :]) @ weights[number]
    return torch.cat(blocks[::-1], -1)


@dataclass(frozen=True)
class DeepSolution:
    """The best of several starts: scales (c_l,), ‖W' - W‖ / ‖W‖, each start's error, and the iterations taken."""

    scales: list[torch.Tensor]
    relative_error: float
    errors: torch.Tensor
    iterations: int


def solve_deep(
    target: torch.Tensor,
    weights: Sequence[torch.Tensor],
    starts: int = 8,
    max_iterations: int = 300,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> DeepSolution:
    """Find scales with which a chain of layers composes to ``target`` (c2, c0 · taps), from several random starts at once.

    Levenberg-Marquardt: δ = -Jᵀ (J Jᵀ + λ I)⁻¹ r, the damping λ lowered after each step that helps and raised after each that does
    not. Stops when one start has reached ``tolerance``. Other than for two layers nothing promises that there is a real solution, or
    that it is found. Works on the target's device, from starts that are the same on every device.

    Raises ``ValueError`` for a target that is zero or not finite.

    >>> _ = torch.manual_seed(0)
    >>> target = torch.randn(3, 4, dtype=torch.float64)
    >>> solve_deep(target, draw_deep(4, 1, balanced_widths(16, 3, 3), 0)).relative_error < 1e-9
    True
    """
    norm = target.norm()
    if not 0 < float(norm) < float("inf"):
        raise ValueError("the target is zero or not finite: there is nothing to be solved for")
    weights = [weight.to(target.device) for weight in weights]
    widths = [len(weight) for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(starts, sum(widths), generator=generator, dtype=torch.float64).to(target.device)
    x *= (
        norm / compose_deep(weights, x.split(widths, -1)).flatten(1).norm(dim=1, keepdim=True)
    ) ** (1 / len(widths))

    def residual(x: torch.Tensor) -> torch.Tensor:
        return (compose_deep(weights, x.split(widths, -1)) - target).flatten(1) / norm

    r = residual(x)
    damping = torch.full((starts,), 1e-2, dtype=torch.float64, device=target.device)
    eye = torch.eye(target.numel(), dtype=torch.float64, device=target.device)
    iterations = 0
    while iterations < max_iterations and float(r.norm(dim=1).min()) > tolerance:
        iterations += 1
        jacobian = deep_jacobian(weights, x.split(widths, -1)) / norm
        gram = jacobian @ jacobian.transpose(1, 2)
        scale = gram.diagonal(dim1=1, dim2=2).mean(1)
        step = -(
            jacobian.transpose(1, 2)
            @ torch.linalg.solve(gram + (damping * scale)[:, None, None] * eye, r[..., None])
        )[..., 0]
        tried = x + step
        reached = residual(tried)
        better = reached.norm(dim=1) < r.norm(dim=1)
        x, r = torch.where(better[:, None], tried, x), torch.where(better[:, None], reached, r)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-15, 1e8)
    errors = r.norm(dim=1)
    best = int(errors.argmin())
    return DeepSolution(list(x[best].split(widths)), float(errors[best]), errors, iterations)
