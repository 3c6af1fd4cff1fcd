"""More than two source layers for one target layer (Burkholz 2024, Theorem 2.5).

A target is W (c2, c0 · taps); a chain's weights are C_1 (c_1, c0 · taps) and C_l (c_l, c_(l-1)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def least_total_width(equations: int, layers: int) -> int:
    """The total width n + L - 1 that the dimensions require.

    This is one scale per equation, and one for each of the L - 1 places between layers where a
    factor can be moved. The theorem needs one more, n + L, including the last layer's c2. For L = 2
    this is Theorem 2.2's c1 + c2 >= n + 1.

    >>> least_total_width(108, 2) - 4 == 108 - 4 + 1
    True
    """
    return equations + layers - 1


def balanced_widths(total: int, outputs: int, layers: int, fan_in: int = 1) -> tuple[int, ...]:
    """Widths c_1 … c_L of this total: c_L = c2, the others as equal as possible.

    Condition (iii) of the theorem, c_l >= c0, is too weak, for two layers at least. The rows of W'
    lie in the row space of C_1, which no scale changes: general targets need c_1 >= c0 · taps. Its
    columns lie, up to the c2 last scales, in the column space of C_L: c_(L-1) < c2 is possible only
    if c0 · taps · (c2 - c_(L-1)) < c2. ``fan_in`` meets the first condition. More are necessary
    (erratum 4): the caller can check the widths with ``generic_rank``.

    Args:
        total: the sum of all widths.
        outputs: c2.
        layers: L, at least 2.
        fan_in: the smallest c_1.

    >>> balanced_widths(111, 4, 3), balanced_widths(57, 2, 4, fan_in=27)
    ((54, 53, 4), (27, 14, 14, 2))
    """
    first = max(fan_in, -(-(total - outputs) // (layers - 1)))
    if layers == 2:
        return total - outputs, outputs
    inside, rest = divmod(total - outputs - first, layers - 2)
    return (first, *(inside + (number < rest) for number in range(layers - 2)), outputs)


def generic_rank(weights: Sequence[torch.Tensor]) -> int:
    """Rank of the Jacobian at random scales: the dimension of the set of reachable targets.

    Below n almost no target is reachable, with any solver. At n the set has interior; over the
    reals it need not be everything.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [len(weight) for weight in weights]
    draws = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    scales = [draw.to(weights[0].device) for draw in draws]
    return int(torch.linalg.matrix_rank(deep_jacobian(weights, scales), rtol=1e-10))


def draw_deep(inputs: int, taps: int, widths: Sequence[int], seed: int) -> list[torch.Tensor]:
    """He-normal weights of a chain, in float64.

    The first kernel covers the target's, the others are 1x1. They are drawn on the CPU, so that
    they are the same for every device.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = [inputs * taps, *widths[:-1]]
    return [
        torch.randn(rows, fan_in, generator=generator, dtype=torch.float64) * (2 / fan_in) ** 0.5
        for rows, fan_in in zip(widths, columns, strict=True)
    ]


def compose_deep(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> torch.Tensor:
    """W' = diag(γ_L) C_L … diag(γ_1) C_1, (…, c2, c0 · taps), for scales (…, c_l)."""
    product = weights[0] * scales[0][..., None]
    for weight, scale in zip(weights[1:], scales[1:], strict=True):
        product = (weight @ product) * scale[..., None]
    return product


def deep_jacobian(weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> torch.Tensor:
    """Derivative of vec(W') in all scales, (…, n, Σ c_l).

    The block of each layer is a column-wise Khatri-Rao product: column j is the product of what
    follows its channel j and what precedes it.
    """
    before: list[torch.Tensor] = []
    reached = weights[0].expand(*scales[0].shape[:-1], *weights[0].shape)
    for number, scale in enumerate(scales):
        if number:
            reached = weights[number] @ reached
        before.append(reached)
        reached = reached * scale[..., None]
    outputs = weights[-1].shape[0]
    after = torch.eye(outputs, dtype=weights[0].dtype, device=weights[0].device)
    after = after.expand(*scales[0].shape[:-1], outputs, outputs)
    blocks = []
    for number in reversed(range(len(weights))):
        columns = after[..., :, None, :] * before[number].transpose(-1, -2)[..., None, :, :]
        blocks.append(columns.flatten(-3, -2))
        after = (after * scales[number][..., None, :]) @ weights[number]
    return torch.cat(blocks[::-1], -1)


@dataclass(frozen=True)
class DeepSolution:
    """The best of several starts."""

    scales: list[torch.Tensor]  # γ_l (c_l,) of each layer
    relative_error: float  # ‖W' - W‖ / ‖W‖
    errors: torch.Tensor  # (starts,), of each start
    iterations: int  # of Levenberg-Marquardt, all starts at once


def draw_starts(
    target: torch.Tensor, weights: Sequence[torch.Tensor], starts: int, seed: int
) -> torch.Tensor:
    """Random scales (starts, Σ c_l) with ‖W'‖ = ‖W‖, the same on every device."""
    widths = [len(weight) for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(starts, sum(widths), generator=generator, dtype=torch.float64).to(target.device)
    norms = compose_deep(weights, x.split(widths, -1)).flatten(1).norm(dim=1, keepdim=True)
    return x * (target.norm() / norms) ** (1 / len(widths))


def solve_deep(
    target: torch.Tensor,
    weights: Sequence[torch.Tensor],
    starts: int = 8,
    max_iterations: int = 300,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> DeepSolution:
    """Find scales with which a chain of layers composes to a target, from several random starts.

    The system is polynomial and is solved by Levenberg-Marquardt: δ = -Jᵀ (J Jᵀ + λ I)⁻¹ r; the
    damping λ falls after a step that helps and rises after one that does not. Unlike with two
    layers, a real solution need not exist, or be found.

    Args:
        target: W.
        weights: C_1 … C_L.
        starts: random starts, processed at once on the target's device.
        max_iterations: most steps of all starts.
        tolerance: relative error of one start at which all stop.
        seed: of the starts.

    Raises:
        ValueError: the target is zero or not finite.

    >>> _ = torch.manual_seed(0)
    >>> target = torch.randn(3, 4, dtype=torch.float64)
    >>> weights = draw_deep(4, 1, balanced_widths(16, 3, 3), 0)
    >>> solve_deep(target, weights).relative_error < 1e-9
    True
    """
    norm = target.norm()
    if not 0 < float(norm) < float("inf"):
        raise ValueError("the target is zero or not finite: there is nothing to solve for")
    weights = [weight.to(target.device) for weight in weights]
    widths = [len(weight) for weight in weights]

    def residual(x: torch.Tensor) -> torch.Tensor:
        return (compose_deep(weights, x.split(widths, -1)) - target).flatten(1) / norm

    x = draw_starts(target, weights, starts, seed)
    r = residual(x)
    damping = torch.full((starts,), 1e-2, dtype=torch.float64, device=target.device)
    iterations = 0
    while iterations < max_iterations and float(r.norm(dim=1).min()) > tolerance:
        iterations += 1
        jacobian = deep_jacobian(weights, x.split(widths, -1)) / norm
        tried = x + _step(jacobian, r, damping)
        reached = residual(tried)
        better = reached.norm(dim=1) < r.norm(dim=1)
        x, r = torch.where(better[:, None], tried, x), torch.where(better[:, None], reached, r)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-15, 1e8)
    errors = r.norm(dim=1)
    best = int(errors.argmin())
    return DeepSolution(list(x[best].split(widths)), float(errors[best]), errors, iterations)


def _step(jacobian: torch.Tensor, r: torch.Tensor, damping: torch.Tensor) -> torch.Tensor:
    """δ (starts, Σ c_l) = -Jᵀ (J Jᵀ + λ I)⁻¹ r, λ in units of the mean diagonal entry of J Jᵀ."""
    gram = jacobian @ jacobian.transpose(1, 2)
    scale = gram.diagonal(dim1=1, dim2=2).mean(1)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    damped = gram + (damping * scale)[:, None, None] * eye
    return -(jacobian.transpose(1, 2) @ torch.linalg.solve(damped, r[..., None]))[..., 0]
