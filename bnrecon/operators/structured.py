"""Feature matrices without feature tensors: id_cond's selection, ortho_cond's Kronecker product."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator
from bnrecon.runtime.precision import Precision


class Selection(Operator):
    """M with a single 1 in each row: ``(M x)_r = x[feature[r]]``.

    id_cond at maximum width has ``feature`` = 0 … n - 1, M = I (Random features for normalization
    layers, Eq. 2); at minimum width the first entries of all outputs share feature 0 (Eq. 3).

    >>> x = torch.tensor([5.0, 7.0], dtype=torch.float64)
    >>> Selection(torch.tensor([0, 1, 0]), 2, torch.float64).matvec(x)
    tensor([5., 7., 5.], dtype=torch.float64)
    """

    def __init__(self, feature: torch.Tensor, columns: int, dtype: torch.dtype):
        self.feature = feature
        self.shape, self.dtype, self.device = (len(feature), columns), dtype, feature.device
        self.precision = Precision.of(dtype)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """Return x[feature]."""
        return x[self.feature]

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """Sums of y by feature."""
        return y.new_zeros(self.shape[1], *y.shape[1:]).index_add_(0, self.feature, y)

    def to(self, precision: Precision) -> Selection:
        """The same for another precision."""
        return Selection(self.feature, self.shape[1], precision.vectors)

    def column_norms(self) -> torch.Tensor:
        """Square roots of how many rows each feature has."""
        return torch.bincount(self.feature, minlength=self.shape[1]).to(self.dtype).sqrt()


class Kronecker(Operator):
    """M = U2 ⊗ U1 for U2 (m, m) and U1 (c0, c0): ``M x = vec(U2 X U1^T)``, X = x as (m, c0).

    ortho_cond's M, which is orthogonal like both factors (Random features for normalization layers,
    Sect. 3). 2 n (m + c0) flops.
    """

    def __init__(self, u2: torch.Tensor, u1: torch.Tensor):
        self.u2, self.u1 = u2, u1
        self.shape = (len(u2) * len(u1), u2.shape[1] * u1.shape[1])
        self.dtype, self.device, self.precision = u2.dtype, u2.device, Precision.of(u2.dtype)

    def _apply(self, left: torch.Tensor, right: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        table = x.reshape(left.shape[1], right.shape[1], -1)
        return torch.einsum("ab,bcs,dc->ads", left, table, right).reshape(-1, *x.shape[1:])

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """U2 X U1^T."""
        return self._apply(self.u2, self.u1, x)

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """U2^T Y U1."""
        return self._apply(self.u2.T, self.u1.T, y)

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns, as rows."""
        number = torch.arange(self.shape[1], device=self.device)[part]
        inputs = self.u1.shape[1]
        return (self.u2.T[number // inputs, :, None] * self.u1.T[number % inputs, None]).flatten(1)

    def to(self, precision: Precision) -> Kronecker:
        """The same factors in another precision; bf16 is not worth it here."""
        return Kronecker(self.u2.to(precision.vectors), self.u1.to(precision.vectors))

    def column_norms(self) -> torch.Tensor:
        """Products of the factors' column norms."""
        return torch.outer(self.u2.norm(dim=0), self.u1.norm(dim=0)).reshape(-1)
