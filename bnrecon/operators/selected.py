"""Some columns of a matrix, as an operator of their own."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import Precision

__all__ = ["Selected", "select_columns"]


def select_columns(operator: Operator, index: torch.Tensor) -> Operator:
    """The operator of the columns ``index`` (k,), in that order.

    >>> M = KhatriRao(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.ones(2, 1))
    >>> select_columns(M, torch.tensor([1])).dense()
    tensor([[0.],
            [1.]])
    """
    if isinstance(operator, KhatriRao):  # fewer features are a smaller operator of the same kind
        return KhatriRao(
            operator.transposed[index],
            operator.first[index],
            operator.precision,
            operator.chunk_bytes,
        )
    return Selected(operator, index)


class Selected(Operator):
    """M[:, index] through the products of the whole M, which need not store its columns.

    Args:
        operator: M (n, c1).
        index: (k,), which columns.
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

    def columns(self, part: slice) -> torch.Tensor:
        """Some of the selected columns, as rows: products with unit vectors."""
        wanted = torch.arange(self.shape[1], device=self.device)[part]
        units = torch.zeros(self.shape[1], len(wanted), dtype=self.dtype, device=self.device)
        units[wanted, torch.arange(len(wanted), device=self.device)] = 1
        return self.matvec(units).T

    def to(self, precision: Precision) -> Selected:
        """The same columns in another precision."""
        return Selected(self.operator.to(precision), self.index)

    def column_norms(self) -> torch.Tensor:
        """Of the selected columns."""
        return self.operator.column_norms()[self.index]

    def leading(self, count: int) -> Selected:
        """The first ``count`` of them."""
        return Selected(self.operator, self.index[:count])
