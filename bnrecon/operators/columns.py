"""A matrix with scaled or selected columns."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator, Products
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import Precision


class Scaled:
    """M D for D = diag(scaling), in the operator's precision.

    >>> M = KhatriRao(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.ones(2, 1))
    >>> Scaled(M, inverse_norms(M.column_norms())).matvec(torch.tensor([1.0, 0.0]))
    tensor([0.6000, 0.8000])
    """

    def __init__(self, operator: Products, scaling: torch.Tensor):
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
        (columns,) factors that scale columns of these norms to 1, except for subnormal norms, whose
        inverse would be infinite.
    """
    smallest = torch.finfo(norms.dtype).tiny
    return torch.where(norms > 0, 1 / norms.clamp_min(smallest), torch.zeros_like(norms))


def select_columns(operator: Operator, index: torch.Tensor) -> Operator:
    """The operator of the columns ``index`` (k,), in that order.

    >>> M = KhatriRao(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.ones(2, 1))
    >>> select_columns(M, torch.tensor([1])).dense()
    tensor([[0.],
            [1.]])
    """
    if isinstance(operator, KhatriRao):  # fewer features are a smaller operator of this class
        return KhatriRao(operator.transposed[index], operator.first[index], operator.precision)
    return Selected(operator, index)


class Selected(Operator):
    """M[:, index] through the products of the whole M, which need not store its columns.

    Args:
        operator: M (n, c1).
        index: (k,), the columns.
    """

    def __init__(self, operator: Operator, index: torch.Tensor):
        self.operator, self.index = operator, index
        self.shape = (operator.shape[0], len(index))
        self.dtype, self.device = operator.dtype, operator.device
        self.precision = operator.precision

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M times x, spread over all columns."""
        whole = torch.zeros(self.operator.shape[1], *x.shape[1:], dtype=x.dtype, device=x.device)
        whole[self.index] = x
        return self.operator.matvec(whole)

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """The selected entries of M^T y."""
        return self.operator.rmatvec(y)[self.index]

    def to(self, precision: Precision) -> Selected:
        """The same columns in another precision."""
        return Selected(self.operator.to(precision), self.index)

    def column_norms(self) -> torch.Tensor:
        """Of the selected columns."""
        return self.operator.column_norms()[self.index]

    def leading(self, count: int) -> Selected:
        """The first ``count`` of them."""
        return Selected(self.operator, self.index[:count])
