"""Frozen random linear layers and normalizations with random statistics (Giannou et al. 2023)."""

from __future__ import annotations

import math

import torch
from torch import nn

from bnrecon.features.portable_random import Stream

REFINEMENTS = 2  # corrections of a square solve; a third changes nothing in float64
TOLERANCE = 1e-10  # relative residual of LU up to which the system counts as regular


def random_linear(
    inputs: int, outputs: int, stream: Stream, word: str, density: float = 1.0
) -> nn.Linear:
    """Draw a frozen float64 layer without bias, its entries uniform with variance 1 / inputs.

    The paper's "arbitrary continuous and bounded distribution". With ``density`` below 1 each entry
    is zero with probability 1 - density (Theorem 3), and the others are not rescaled.

    >>> random_linear(3, 2, Stream(seed=0, layer=0), "first").weight.shape
    torch.Size([2, 3])
    """
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False, dtype=torch.float64)
    weight = stream.uniform((outputs, inputs), word, math.sqrt(3 / inputs)).double()
    if density < 1:
        weight *= stream.mask((outputs, inputs), f"{word} mask", density)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def random_norm(width: int, stream: Stream, word: str) -> nn.BatchNorm1d:
    """A float64 ``BatchNorm1d`` in eval mode: means uniform on [-1, 1], variances on [0.5, 1.5]."""
    norm = nn.BatchNorm1d(width, dtype=torch.float64)
    mean, variance = _statistics(norm)
    mean.copy_(stream.uniform((width,), f"{word} mean"))
    variance.copy_(1 + stream.uniform((width,), f"{word} variance", 0.5))
    return norm.eval()


def set_affine(norm: nn.BatchNorm1d, scale: torch.Tensor, shift: torch.Tensor) -> None:
    """Choose γ and β so that the normalization maps y to ``scale`` y + ``shift`` (Proposition 1).

    γ = scale · sqrt(σ² + ε) and β = shift + scale · μ for the frozen μ and σ².

    >>> norm = random_norm(2, Stream(seed=0, layer=0), "first")
    >>> set_affine(norm, torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))
    >>> norm(torch.ones(1, 2, dtype=torch.float64)).tolist()
    [[2.0, 4.0]]
    """
    mean, variance = _statistics(norm)
    with torch.no_grad():
        norm.weight.copy_(scale * (variance + norm.eps).sqrt())
        norm.bias.copy_(shift + scale * mean)


def scale_of(norm: nn.BatchNorm1d) -> torch.Tensor:
    """The factor of a normalization in eval mode: γ / sqrt(σ² + ε)."""
    return norm.weight.detach() / (_statistics(norm)[1] + norm.eps).sqrt()


def _statistics(norm: nn.BatchNorm1d) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError("this normalization holds no statistics")
    return mean, variance


def khatri_rao(second: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """M (m k, c) with M γ = vec(V diag(γ) W), rows in row-major order (Lemma 1).

    V (m, c), W (c, k).
    """
    return (second[:, None, :] * first.T[None]).reshape(-1, second.shape[1])


def solve_scales(
    second: torch.Tensor, first: torch.Tensor, weight: torch.Tensor, refinements: int = REFINEMENTS
) -> torch.Tensor:
    """Solve V diag(γ) W = W* for γ (c,) (Lemma 1): V (m, c), W (c, k), W* (m, k).

    A square system is solved by LU, refined ``refinements`` times, in float64. In a singular system
    LU may meet no zero pivot and return meaningless numbers: if its residual is above 1e-10 of W*,
    the pseudo-inverse's γ is computed too, and the one with the smaller residual is returned. With
    more or fewer scales than equations, γ is the pseudo-inverse's.

    >>> v, w = torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    >>> solve_scales(v, w, torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64)))
    tensor([3., 4.], dtype=torch.float64)
    """
    matrix, rhs = khatri_rao(second, first), weight.reshape(-1, 1)
    solution = _solve_square(matrix, rhs, refinements)
    error = math.inf if solution is None else float((rhs - matrix @ solution).norm())
    if solution is not None and error <= TOLERANCE * float(rhs.norm()):
        return solution[:, 0]
    shortest = torch.linalg.lstsq(matrix, rhs, driver="gelsd").solution
    if solution is not None and error < float((rhs - matrix @ shortest).norm()):
        return solution[:, 0]
    return shortest[:, 0]


def _solve_square(matrix: torch.Tensor, rhs: torch.Tensor, refinements: int) -> torch.Tensor | None:
    """The refined LU solution; ``None`` for another shape, a zero pivot or an overflow."""
    if matrix.shape[0] != matrix.shape[1]:
        return None
    factors, pivots, info = torch.linalg.lu_factor_ex(matrix)
    if int(info) != 0:
        return None
    solution = torch.linalg.lu_solve(factors, pivots, rhs)
    for _ in range(refinements):
        solution = solution + torch.linalg.lu_solve(factors, pivots, rhs - matrix @ solution)
    return solution if bool(solution.isfinite().all()) else None
