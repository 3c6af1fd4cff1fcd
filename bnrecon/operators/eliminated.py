"""Systems of minimum width: second scales eliminated (Burkholz 2024, Lemma 2.1, Eq. 3)."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator
from bnrecon.runtime.precision import Precision


class Eliminated(Operator):
    """M after the elimination of the second scales.

    Output i's weights are reached up to its second scale if ``(M x)_r - (w_r / w_p) (M x)_p = 0``
    for all its entries r except the pivot p, the entry of largest magnitude: n - c2 homogeneous
    equations. One more, ``(M x)_q = w_q`` for the largest pivot q, selects one of the line of
    solutions. For all-zero outputs the equations are (M x)_r = 0.

    With a skip connection of kernel s inside the second normalization (``skip``), W = outer ∘ (M x
    + s), the equations are inhomogeneous,
    ``(M x)_r - (w_r / w_p) (M x)_p = (w_r / w_p) s_p - s_r``, and no further one is needed: n - c2
    equations. This is Burkholz 2024, Eq. (3), with its second term (erratum 2).

    ``weight`` is the target as (c2, entries), entries in the order of M's rows; ``skip`` likewise.
    """

    def __init__(self, operator: Operator, weight: torch.Tensor, skip: torch.Tensor | None = None):
        weight = weight.to(operator.device, torch.float64)
        outputs, entries = weight.shape
        self.operator = operator
        self.weight = weight
        self.skip = None if skip is None else skip.to(weight)
        self.dtype, self.device = operator.dtype, operator.device
        self.precision = operator.precision
        self.shape = (operator.shape[0] - outputs + (skip is None), operator.shape[1])
        self.pivots = weight.abs().argmax(1)
        values = weight.gather(1, self.pivots[:, None])
        ratios = torch.where(values == 0, 0, weight / torch.where(values == 0, 1, values))
        self.ratios = ratios.to(self.dtype)
        # Positions as numbers, output and entry: the host would read a mask, or a single index, in
        # every product and wait for the GPU.
        output = torch.arange(outputs, device=self.device)
        entry = torch.arange(entries - 1, device=self.device)
        entry = entry + (entry >= self.pivots[:, None])
        self.at_pivots = output, self.pivots
        self.others = output.repeat_interleave(entries - 1), entry.flatten()
        self.fixed = int(values.abs().argmax())
        self.at_fixed = self.fixed, self.pivots[self.fixed : self.fixed + 1]
        self.row_shape = (outputs, entries)

    def right_hand_side(self) -> torch.Tensor:
        """Zeros and the fixed pivot; with a skip connection, the terms of its kernel."""
        if self.skip is not None:
            at_pivots = self.skip.gather(1, self.pivots[:, None])
            return (self.ratios.double() * at_pivots - self.skip)[self.others]
        rhs = torch.zeros(self.shape[0], dtype=self.weight.dtype, device=self.device)
        rhs[-1:] = self.weight[self.at_fixed]
        return rhs

    def _eliminate(self, product: torch.Tensor) -> torch.Tensor:
        """Turn rows of M (or of M x) into rows of the pivoted system, along the first dimension."""
        table = product.reshape(*self.row_shape, *product.shape[1:])
        pivot_rows = table[self.at_pivots]
        ratios = self.ratios.reshape(*self.row_shape, *[1] * (product.ndim - 1))
        eliminated = (table - ratios * pivot_rows[:, None])[self.others]
        if self.skip is not None:
            return eliminated
        return torch.cat([eliminated, pivot_rows[self.fixed][None]])

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """Eliminate after M x."""
        return self._eliminate(self.operator.matvec(x))

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T after the transposed elimination."""
        table = torch.zeros(*self.row_shape, *y.shape[1:], dtype=self.dtype, device=self.device)
        y = y.to(self.dtype)
        table[self.others] = y if self.skip is not None else y[:-1]
        ratios = self.ratios.reshape(*self.row_shape, *[1] * (y.ndim - 1))
        table[self.at_pivots] -= (ratios * table).sum(1)
        if self.skip is None:
            table[self.at_fixed] += y[-1:]
        return self.operator.rmatvec(table.flatten(0, 1))

    def columns(self, part: slice) -> torch.Tensor:
        """Some eliminated columns, as rows (count, rows): in the order (others, fixed pivot)."""
        table = self.operator.columns(part).reshape(-1, *self.row_shape)
        pivot_rows = table[:, *self.at_pivots]
        fixed = pivot_rows[:, self.fixed, None].clone()
        table = table.addcmul_(self.ratios[None], pivot_rows[..., None], value=-1)
        others = table[:, *self.others]
        return others if self.skip is not None else torch.cat([others, fixed], 1)

    def to(self, precision: Precision) -> Eliminated:
        """The same in another precision; the elimination's ratios keep the vectors' accuracy."""
        return Eliminated(self.operator.to(precision), self.weight, self.skip)

    def column_norms(self) -> torch.Tensor:
        """Norms of M's columns, enough for scaling; eliminated columns are slightly longer."""
        return self.operator.column_norms()

    def leading(self, count: int) -> Eliminated:
        """The first ``count`` features."""
        return Eliminated(self.operator.leading(count), self.weight, self.skip)

    def second_scales(self, product: torch.Tensor) -> torch.Tensor:
        """Each output's second scale from M x: the pivot's target over its value in M x."""
        product = product.reshape(self.row_shape)
        if self.skip is not None:
            product = product + self.skip.to(product.dtype)
        reached = product.gather(1, self.pivots[:, None])[:, 0]
        target = self.weight.gather(1, self.pivots[:, None])[:, 0].to(reached.dtype)
        return torch.where(target == 0, 0, target / torch.where(reached == 0, 1, reached))
