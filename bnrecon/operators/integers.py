"""Products in 8-bit integers, faster than bf16: of random signs, and M^T y of others."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bnrecon.operators.base import Operator, Products
from bnrecon.operators.generated import TILE_BYTES, TILE_ROWS, Generated
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.rows import HeldRows, Rows
from bnrecon.operators.signs import SignMatrix
from bnrecon.runtime.precision import BFLOAT16, INT8, Precision

LEVELS = 127  # the largest multiple of a rounded vector's entries; -128 is not used
SUM_LIMIT = 2**31  # bound of sums in 32 bits
EXPANDED_BYTES = 2**26  # up to which signs take one byte each instead of a bit
NARROW = 128  # length of the shorter rows up to which transposing the longer ones pays
Signs = tuple[Rows, Rows, float]  # B^T and A in 1, -1 and 0, and the factor of products
LOOKED_AT = 1000  # numbers, or rows, that identify nearly every matrix
OFFSET = 0.1  # norm of the mean row, relative to rows' RMS norm, that counts as 0


def round_to_levels(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each column of (length, k) to whole multiples of 1/127 of its largest entry.

    Returns:
        The multiples as int8 (length, k), and their steps (k,); both are 0 for a column of zeros.

    >>> round_to_levels(torch.tensor([[127.0], [-63.7], [0.2]], dtype=torch.float64))
    (tensor([[127],
            [-64],
            [  0]], dtype=torch.int8), tensor([1.], dtype=torch.float64))
    """
    steps = vectors.abs().amax(0) / LEVELS
    levels = vectors / torch.where(steps > 0, steps, 1.0)
    return levels.round_().clamp_(-LEVELS, LEVELS).to(torch.int8), steps


def find_signs(operator: Operator) -> Signs | None:
    """Return B^T and A as rows of 1, -1 and 0, and the factor of their products.

    Returns:
        ``None`` if they have other entries, or the first rows are all 0.

    >>> signs, normal = torch.tensor([[2.0, -2.0], [0.0, 2.0]]), torch.randn(2, 3)
    >>> second, first, size = find_signs(KhatriRao(signs, signs))
    >>> second.values(slice(None), torch.int8, torch.device("cpu")), size
    (tensor([[ 1, -1],
            [ 0,  1]], dtype=torch.int8), 4.0)
    >>> find_signs(KhatriRao(signs, normal))
    """
    if isinstance(operator, Generated):
        rows = operator.transposed, operator.first
        signs = all(isinstance(each, SignMatrix) for each in rows)
        return (*rows, operator.size) if signs else None
    if not isinstance(operator, KhatriRao):
        return None
    factors = [_signs(table) for table in (operator.transposed, operator.first)]
    (second, a), (first, b) = factors
    return None if second is None or first is None else (second, first, a * b)


def _signs(table: torch.Tensor) -> tuple[HeldRows | None, float]:
    """The signs of a table with entries ± one size or 0, and the size."""
    rows = max(1, LOOKED_AT // max(1, table.shape[1]))
    size = float(table[:rows].abs().max()) if table.numel() else 0.0
    if size == 0:  # unknown size: other products are used
        return None, size
    signs = torch.empty(table.shape, dtype=torch.int8, device=table.device)
    start = 0
    while start < len(table):  # the first rows identify nearly all other tables
        part = slice(start, start + rows)
        block = table[part].sign()
        signs[part] = block
        if not torch.equal(block * size, table[part]):
            return None, size
        start, rows = start + rows, TILE_ROWS
    return HeldRows(signs), size


class IntegerProducts(Products):
    """M and M^T times vectors rounded to 255 levels, in sums of 8-bit integers.

    The entries of A and B are 1, -1 or 0 times a size, so entries of the products are sums of
    integers: only the vector is rounded. ``nearest`` rounds one beforehand; products with the
    result are exact to float64.

    The factor with the longer rows is multiplied as it is; the other is scaled by x, or multiplied
    by the result and summed.

    Args:
        operator: with features that are random signs.
        signs: the result of ``find_signs`` for it, if already computed.

    Raises:
        ValueError: its features are not random signs.

    >>> first = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    >>> M = IntegerProducts(KhatriRao(0.5 * first, 2 * first))
    >>> M.nearest(torch.tensor([127.0, 2.2, 0.0], dtype=torch.float64))
    tensor([127.,   2.,   0.], dtype=torch.float64)
    >>> M.matvec(torch.tensor([127.0, 2.2, 0.0], dtype=torch.float64))
    tensor([ 129., -125., -125.,  129.], dtype=torch.float64)
    """

    def __init__(self, operator: Operator, signs: Signs | None = None):
        if (signs := signs or find_signs(operator)) is None:
            raise ValueError("products in integers need features that are random signs")
        second, first, self.size = signs
        self.shape, self.dtype, self.device = operator.shape, INT8.vectors, operator.device
        self.precision = INT8
        self.outputs, self.inputs = second.columns, first.columns
        few = (self.outputs + self.inputs) * self.shape[1] <= EXPANDED_BYTES
        second, first = (
            _expanded(each, self.device) if few else each.hold(torch.int8, self.device)
            for each in (second, first)
        )
        swapped = self.inputs > self.outputs
        self.long, self.short = (first, second) if swapped else (second, first)
        # The transpose is kept too if it makes M x faster: by a third at 64 short columns.
        self.across: torch.Tensor | None = None
        if isinstance(self.long, HeldRows) and self.short.columns <= NARROW:
            self.across = self.long.table.T.contiguous()
        # From (m, c0, k) to the rows of ``long`` times k times those of ``short``, and back.
        self.entering = (1, 2, 0) if swapped else (0, 2, 1)
        self.leaving = (1, 2, 0) if swapped else (2, 1, 0)

    @staticmethod
    def pair_bytes(numbers: int, device: torch.device) -> int:
        """Bytes of A and B at one byte per sign, plus a transpose, if they are expanded."""
        return 2 * numbers if device.type == "cpu" and numbers <= EXPANDED_BYTES else 0

    def nearest(self, vector: torch.Tensor) -> torch.Tensor:
        """The nearest vector (length,) with exact products, in float64."""
        levels, steps = round_to_levels(vector[:, None])
        return levels[:, 0] * steps

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x, for x (c1,) or (c1, k)."""
        levels, steps = round_to_levels(x.reshape(len(x), -1))
        columns = levels.shape[1] * self.short.columns
        kind = torch.int32 if LEVELS * self.shape[1] < SUM_LIMIT else torch.int64
        sums = torch.zeros(columns, self.long.columns, dtype=kind, device=self.device)
        for part, long, short in self._tiles(columns):
            scaled = (levels[part, :, None] * short[:, None]).flatten(1)
            if self.across is None:
                sums += torch._int_mm(scaled.T, long)
            else:
                sums += torch._int_mm(self.across[:, part], scaled).T
        product = sums.reshape(-1, self.short.columns, self.long.columns)
        product = product * (self.size * steps[:, None, None])
        return product.permute(self.leaving).reshape(self.shape[0], *x.shape[1:])

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y, for y (m c0,) or (m c0, k)."""
        levels, steps = round_to_levels(y.reshape(len(y), -1))
        table = levels.reshape(self.outputs, self.inputs, -1).permute(self.entering).flatten(1)
        kind = torch.int32 if LEVELS * self.shape[0] < SUM_LIMIT else torch.int64
        product = torch.empty(self.shape[1], len(steps), dtype=self.dtype, device=self.device)
        for part, long, short in self._tiles(len(steps) * self.short.columns):
            reached = torch._int_mm(long, table)
            reached = reached.unflatten(1, (len(steps), -1)).mul_(short[:, None])
            product[part] = reached.sum(2, dtype=kind)
        product *= self.size * steps
        return product.reshape(self.shape[1], *y.shape[1:])

    def _tiles(self, columns: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield runs of features, with rows of both factors; each makes ``columns`` 32-bit sums."""
        rows = max(TILE_ROWS, TILE_BYTES // max(self.long.columns, 4 * columns))
        pairs = (each.tiles(rows, torch.int8, self.device) for each in (self.long, self.short))
        for (part, long), (_, short) in zip(*pairs, strict=True):
            yield part, long, short


class IntegerGradients(Products):
    """M x in bf16 or float32, and M^T y in sums of 8-bit integers, for features of mean 0.

    The factor (A or B) with the longer rows is rounded to 255 levels per row, and y to 255 levels;
    the other factor is exact. M^T y is then off by about a hundredth, which a Krylov method sees as
    a slightly different next direction: its iterate and residual stay consistent as far as M x
    allows.

    Args:
        exact: M, with factors stored in float32 or float64.
        precision: of M x.

    >>> M = KhatriRao(torch.tensor([[1.0, 0.5], [0.0, 2.0]]), torch.tensor([[3.0], [5.0]]))
    >>> IntegerGradients(M, Precision.of(torch.float32)).rmatvec(torch.tensor([127.0, 2.0]))
    tensor([384.0236,  20.0000])
    """

    def __init__(self, exact: KhatriRao, precision: Precision):
        self.shape, self.dtype, self.device = exact.shape, precision.vectors, exact.device
        second, first = exact.transposed, exact.first
        self.outputs, self.inputs = second.shape[1], first.shape[1]
        self.precision = precision
        if precision.factors == torch.bfloat16:  # M x does not read B^T, which is not rounded
            across = second.to(torch.bfloat16).T.contiguous()
            self.operator = KhatriRao(across.T, first.to(torch.bfloat16), BFLOAT16)
        else:
            self.operator = exact.to(precision)
        self.swapped = self.inputs > self.outputs
        long, short = (first, second) if self.swapped else (second, first)
        if precision.factors == torch.float32:  # the copy that M x reads
            short = self.operator.transposed if self.swapped else self.operator.first
        self.short = short.to(torch.float32)
        self.long = torch.empty(long.shape, dtype=torch.int8, device=exact.device)
        self.steps = torch.empty(len(long), dtype=torch.float32, device=exact.device)
        for start in range(0, len(long), TILE_ROWS):
            part = slice(start, start + TILE_ROWS)
            levels, self.steps[part] = round_to_levels(long[part].to(torch.float32).T)
            self.long[part] = levels.T

    @staticmethod
    def suit(exact: KhatriRao) -> bool:
        """Whether 32-bit sums hold the products, and entries have mean 0, by the first rows.

        Other features give M a few large singular values, where gradient errors cost iterations.
        """
        factors = exact.transposed, exact.first
        if max(factor.shape[1] for factor in factors) * LEVELS**2 >= SUM_LIMIT:
            return False
        few = min(LOOKED_AT, exact.shape[1])
        limit = (few * OFFSET**2 + 4) ** 0.5  # without an offset the sum has norm about 1
        seen = [factor[:few].double() for factor in factors]
        return all(rows.sum(0).norm() <= limit * rows.norm() for rows in seen)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x, for x (c1,)."""
        return self.operator.matvec(x)

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y up to about a hundredth, for y (m c0,)."""
        levels, step = round_to_levels(y[:, None])
        table = levels.reshape(self.outputs, self.inputs)
        table = table.T.contiguous() if self.swapped else table
        product = torch.empty(self.shape[1], dtype=self.dtype, device=y.device)
        rows = max(TILE_ROWS, TILE_BYTES // max(self.long.shape[1], 4 * table.shape[1]))
        for start in range(0, len(product), rows):
            part = slice(start, start + rows)
            reached = torch._int_mm(self.long[part], table) * self.short[part]
            torch.sum(reached, 1, out=product[part])
        return product.mul_(self.steps).mul_(step)


def _expanded(rows: Rows, device: torch.device) -> HeldRows:
    """All rows at one byte per number."""
    if isinstance(rows, HeldRows):
        return rows
    assert isinstance(rows, SignMatrix)
    return HeldRows(rows.signs(slice(None), torch.int8, device))
