"""A matrix whose columns are scaled, as its products."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator

__all__ = ["Scaled", "inverse_norms"]


class Scaled:
    """M D for D = diag(scaling), in the operator's precision.

    >>> from bnrecon.operators.khatri_rao import KhatriRao
    >>> M = KhatriRao(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.ones(2, 1))
    >>> Scaled(M, inverse_norms(M.column_norms())).matvec(torch.tensor([1.0, 0.0]))
    tensor([0.6000, 0.8000])
    """

    def __init__(self, operator: Operator, scaling: torch.Tensor):
        self.operator, self.dtype, self.shape = operator, operator.dtype, operator.shape
        self.scaling = scaling.to(operator.dtype)

    def matvec(self, y: torch.Tensor) -> torch.Tensor:
        """M (D y)."""
        return self.operator.matvec(self.scaling * y)

    def rmatvec(self, r: torch.Tensor) -> torch.Tensor:
        """D (M^T r)."""
        return self.scaling * self.operator.rmatvec(r)


def inverse_norms(norms: torch.Tensor) -> torch.Tensor:
    """1 / norm of each column, at most the inverse of the smallest normal number; 0 for zero.

    Args:
        norms: (columns,), not negative.

    Returns:
        (columns,) factors that make columns of these norms as long as 1, but for subnormal norms,
        whose inverse would be infinite.
    """
    smallest = torch.finfo(norms.dtype).tiny
    return torch.where(norms > 0, 1 / norms.clamp_min(smallest), torch.zeros_like(norms))
