"""Both source kernels larger than 1x1 (Burkholz 2024, Eq. 2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import System
from bnrecon.runtime.errors import UserError


def embed(weight: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
    """Pad a target's weight (c2, c0, kh, kw) with zeros to a larger kernel around it.

    If the difference Δk is odd, the additional row or column comes last. Raises ``UserError`` for a
    target kernel larger than ``sides``.
    """
    height, width = sides[0] - weight.shape[2], sides[1] - weight.shape[3]
    if min(height, width) < 0:
        raise UserError(
            f"two source kernels that compose to {sides[0]}x{sides[1]} cannot hold a target "
            f"kernel of {weight.shape[2]}x{weight.shape[3]}"
        )
    pads = (width // 2, width - width // 2, height // 2, height - height // 2)
    return F.pad(weight, pads)


def kernel_composition_system(
    weight: torch.Tensor, first: torch.Tensor, second: torch.Tensor, device: torch.device
) -> System:
    """The system M γ = vec(W) for two kernels and a target embedded in their composition, stride 1.

    For A (c1, c0, k1h, k1w) and B (c2, c1, k2h, k2w) two successive convolutions of stride 1 have
    the kernel ``W'[i, j, k] = Σ_l γ_l Σ_{p + q = k} B[i, l, p] A[l, j, q]`` of size dim(k2, k1) =
    k1 + k2 - 1 per side: n = c2 · c0 · |dim(k2, k1)|. Column l of M, which is stored, is the full
    convolution of B[:, l] with A[l, :], in the order (i, k, j). Rows outside the kernel of the
    target W (c2, c0, kh, kw) are zero on the right-hand side.

    >>> A, B = torch.randn(20, 2, 1, 3), torch.randn(3, 20, 1, 2)
    >>> weight = torch.randn(3, 2, 1, 2)
    >>> system = kernel_composition_system(weight, A, B, torch.device("cpu"))
    >>> system.operator.shape  # n - c2 + 1 = 22 > 20
    (24, 20)
    """
    (c1, c0, *sides), pads = first.shape, [side - 1 for side in first.shape[2:]]
    flipped = first.to(device, torch.float64).flip(2, 3).reshape(c1 * c0, 1, *sides)
    composed = F.conv2d(second.to(device, torch.float64), flipped, padding=pads, groups=c1)
    columns = composed.unflatten(1, (c1, c0)).permute(1, 0, 3, 4, 2).flatten(1)
    height, width = composed.shape[2:]
    rows = embed(weight.to(device, torch.float64), (height, width)).permute(0, 2, 3, 1).flatten(1)
    return linear_system(KhatriRao(columns, columns.new_ones(c1, 1)), rows)
