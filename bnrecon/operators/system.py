"""The linear system of one layer, and the scales that solve it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.eliminated import Eliminated


@dataclass(frozen=True)
class Scales:
    """A solution, in float64."""

    inner: torch.Tensor  # (c1,), scales of the first source layer's outputs
    outer: torch.Tensor  # (c2,), scales of the second layer's


@dataclass(frozen=True)
class System:
    """The linear system of one layer: ``operator`` x = ``rhs``, in float64.

    ``matrix`` is M without elimination. ``weight`` is what M x must equal up to the second scales,
    as (c2, entries) in the order of M's rows: the target, minus a skip connection's kernel if that
    is outside the second normalization. ``outer`` (c2,) are the second scales if they are fixed
    before solving; ``None`` means 1.
    """

    operator: Operator
    rhs: torch.Tensor
    matrix: Operator
    weight: torch.Tensor
    orthogonal: bool
    outer: torch.Tensor | None = None

    def scales(self, x: torch.Tensor) -> Scales:
        """Turn a solution into scales of both normalization layers."""
        if isinstance(self.operator, Eliminated):
            return Scales(x, self.operator.second_scales(self.matrix.matvec(x)))
        ones = torch.ones(len(self.weight), dtype=x.dtype, device=x.device)
        return Scales(x, ones if self.outer is None else self.outer.to(ones))
