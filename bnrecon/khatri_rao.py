"""The feature matrix M as an operator: a column-wise Khatri-Rao product that is never formed, unless small."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Identity", "KhatriRao", "Operator", "Pivoted"]


class Operator(Protocol):
    """What a solver needs of a matrix: its shape, its products, and its dense form for small sizes."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x for x (columns,)."""

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y for y (rows,)."""

    def dense(self) -> torch.Tensor:
        """M itself."""

    def to(self, dtype: torch.dtype) -> Operator:
        """The same matrix in another arithmetic."""

    def column_norms(self) -> torch.Tensor:
        """Euclidean norms of M's columns."""


class KhatriRao:
    """M (m c0, c1) whose column l is vec(B[:, l] A[l, :]), for B (m, c1) and A (c1, c0), m = c2 kh kw.

    With the target's weight as a matrix W (m, c0), row (i, p) and column j standing for output, tap and input,
    ``M x = vec(B diag(x) A)`` and ``M^T y = rowsum((B^T Y) ∘ A)``: 2 · n · c1 flops each on c1 · (m + c0) numbers, where
    dense M has n · c1 (Burkholz 2024, Eq. 2, for a first kernel of 1x1).

    ``transposed`` is B^T (c1, m), so that a run of features is one contiguous block. Products work through blocks of
    ``block`` features: temporary memory stays at block · (c0 + m) numbers.

    >>> M = KhatriRao(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 3.0], [5.0, 7.0]]))
    >>> M.matvec(torch.tensor([1.0, 1.0]))  # vec of [[1, 0], [2, 1]] @ [[1, 3], [5, 7]]
    tensor([ 1.,  3.,  7., 13.])
    """

    def __init__(self, transposed: torch.Tensor, first: torch.Tensor, block: int = 4096):
        if len(transposed) != len(first) or transposed.ndim != 2 or first.ndim != 2:
            raise ValueError(f"B^T {tuple(transposed.shape)} and A {tuple(first.shape)} must both be matrices of c1 rows")
        self.transposed, self.first, self.block = transposed, first, block
        self.shape = (transposed.shape[1] * first.shape[1], len(first))
        self.dtype, self.device = first.dtype, first.device

    @classmethod
    def of(cls, first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype, device: torch.device) -> KhatriRao:
        """Build the operator of a pair A (c1, c0), B (c2, c1, kh, kw)."""
        transposed = second.to(device).transpose(0, 1).flatten(1).to(dtype).contiguous()
        return cls(transposed, first.to(device, dtype).contiguous())

    def _blocks(self):
        for start in range(0, len(self.first), self.block):
            yield slice(start, start + self.block)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x = vec(B diag(x) A)."""
        product = torch.zeros(self.transposed.shape[1], self.first.shape[1], dtype=self.dtype, device=self.device)
        for part in self._blocks():
            product.addmm_(self.transposed[part].T, x[part, None] * self.first[part])
        return product.reshape(-1)

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y = rowsum((B^T Y) ∘ A)."""
        matrix = y.reshape(self.transposed.shape[1], self.first.shape[1])
        product = torch.empty(len(self.first), dtype=self.dtype, device=self.device)
        for part in self._blocks():
            torch.sum((self.transposed[part] @ matrix).mul_(self.first[part]), 1, out=product[part])
        return product

    def dense(self) -> torch.Tensor:
        """M (m c0, c1)."""
        return torch.einsum("lm,lc->mcl", self.transposed, self.first).reshape(self.shape)

    def to(self, dtype: torch.dtype) -> KhatriRao:
        """The same features in another arithmetic."""
        return KhatriRao(self.transposed.to(dtype), self.first.to(dtype), self.block)

    def column_norms(self) -> torch.Tensor:
        """|B[:, l]| · |A[l, :]|."""
        return self.transposed.norm(dim=1) * self.first.norm(dim=1)


class Identity:
    """M = I, the feature matrix of id_cond (Random features for normalization layers, Eq. 2)."""

    def __init__(self, n: int, dtype: torch.dtype, device: torch.device):
        self.shape, self.dtype, self.device = (n, n), dtype, device

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of x."""
        return x.clone()

    rmatvec = matvec

    def dense(self) -> torch.Tensor:
        """The identity matrix."""
        return torch.eye(self.shape[0], dtype=self.dtype, device=self.device)

    def to(self, dtype: torch.dtype) -> Identity:
        """The same in another arithmetic."""
        return Identity(self.shape[0], dtype, self.device)

    def column_norms(self) -> torch.Tensor:
        """Ones."""
        return torch.ones(self.shape[0], dtype=self.dtype, device=self.device)


class Pivoted:
    """The system of the minimum width: second scales eliminated through a pivot in each output (Burkholz 2024, Eq. 2, Thm 2.2).

    Output i's weights are reached up to its second scale when ``(M x)_r - (w_r / w_p) (M x)_p = 0`` for all its entries r but
    the pivot p, the entry of largest magnitude: n - c2 homogeneous equations. One more, ``(M x)_q = w_q`` for the largest
    pivot q, picks a solution out of the line of them. Outputs that are wholly zero ask (M x)_r = 0.

    ``weight`` is the target as (c2, entries), entries in the order of M's rows.
    """

    def __init__(self, operator: Operator, weight: torch.Tensor, pivots: torch.Tensor | None = None, fixed: int | None = None):
        weight = weight.to(operator.device, operator.dtype)
        outputs, entries = weight.shape
        self.operator = operator
        self.weight = weight
        self.dtype, self.device = operator.dtype, operator.device
        self.shape = (operator.shape[0] - outputs + 1, operator.shape[1])
        self.pivots = weight.abs().argmax(1) if pivots is None else pivots
        values = weight.gather(1, self.pivots[:, None])
        self.ratios = torch.where(values == 0, torch.zeros_like(weight), weight / torch.where(values == 0, 1, values))
        self.others = torch.ones_like(weight, dtype=torch.bool).scatter_(1, self.pivots[:, None], False)
        self.fixed = int(values.abs().argmax()) if fixed is None else fixed
        self.row_shape = (outputs, entries)

    def right_hand_side(self) -> torch.Tensor:
        """Zeros, and the one pivot that is fixed."""
        rhs = torch.zeros(self.shape[0], dtype=self.dtype, device=self.device)
        rhs[-1] = self.weight[self.fixed, self.pivots[self.fixed]]
        return rhs

    def _eliminate(self, product: torch.Tensor) -> torch.Tensor:
        """Rows of M (or of M x) to rows of the pivoted system, along the first dimension."""
        table = product.reshape(*self.row_shape, -1)
        pivot_rows = table[torch.arange(len(table), device=self.device), self.pivots]
        reduced = table - self.ratios[..., None] * pivot_rows[:, None]
        return torch.cat([reduced[self.others], pivot_rows[self.fixed][None]]).reshape(self.shape[0], *product.shape[1:])

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """Eliminate after M x."""
        return self._eliminate(self.operator.matvec(x))

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T after the transposed elimination."""
        table = torch.zeros(self.row_shape, dtype=self.dtype, device=self.device)
        table[self.others] = y[:-1]
        rows = torch.arange(len(table), device=self.device)
        table[rows, self.pivots] -= (self.ratios * table).sum(1)
        table[self.fixed, self.pivots[self.fixed]] += y[-1]
        return self.operator.rmatvec(table.reshape(-1))

    def dense(self) -> torch.Tensor:
        """The eliminated matrix."""
        return self._eliminate(self.operator.dense())

    def to(self, dtype: torch.dtype) -> Pivoted:
        """The same in another arithmetic."""
        return Pivoted(self.operator.to(dtype), self.weight.to(dtype), self.pivots, self.fixed)

    def column_norms(self) -> torch.Tensor:
        """Norms of M's own columns, of the same size as the pivoted ones'."""
        return self.operator.column_norms()

    def second_scales(self, product: torch.Tensor) -> torch.Tensor:
        """Recover the second scale of each output from M x: the pivot asked for over the pivot reached."""
        reached = product.reshape(self.row_shape).gather(1, self.pivots[:, None])[:, 0]
        wanted = self.weight.gather(1, self.pivots[:, None])[:, 0]
        return torch.where(wanted == 0, torch.zeros_like(wanted), wanted / torch.where(reached == 0, 1, reached))
