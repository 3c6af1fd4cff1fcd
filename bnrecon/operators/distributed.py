"""M with its features divided among processes, each of which multiplies by its share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.integers import IntegerGradients, IntegerProducts
from bnrecon.operators.signs import GROUP
from bnrecon.runtime.distributed import (
    any_rank,
    gather_from_ranks,
    rank_and_world_size,
    sum_over_ranks,
)
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.precision import Precision

Part = Operator | IntegerProducts | IntegerGradients


def shares(features: int) -> tuple[list[int], slice]:
    """Return how many features each process has, and which are this process's.

    Raises:
        UserError: there are more processes than groups of 16, in which bits of signs are drawn.

    >>> shares(54)  # in a process alone
    ([54], slice(0, 54, None))
    """
    rank, count = rank_and_world_size()
    groups = -(-features // GROUP)
    if groups < count:
        raise UserError(f"{features} features are too few for {count} processes: each takes 16")
    sizes = [GROUP * (groups // count + (each < groups % count)) for each in range(count)]
    sizes[-1] -= GROUP * groups - features
    return sizes, slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


class Distributed(Operator):
    """M = [M_0 ... M_(R-1)], divided by columns: process r of R has M_r (n, c1_r).

    ``M x = Σ_r M_r x_r`` is summed over the processes, n numbers, and ``M^T y`` concatenated from
    the ``M_r^T y``, c1 numbers: each iteration exchanges these. Every process has whole vectors. A
    solver that only multiplies by M runs as in one process, and takes the same steps in all, which
    must therefore run on machines of the same model with as many threads.

    Args:
        part: M_r, of the features that ``shares`` gives.
        columns: c1, the features of all processes.

    >>> from bnrecon.operators.khatri_rao import KhatriRao
    >>> M = Distributed(KhatriRao(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])), columns=1)
    >>> M.matvec(torch.tensor([1.0])), M.rmatvec(torch.tensor([1.0, 1.0]))  # in a process alone
    (tensor([3., 6.]), tensor([9.]))
    """

    def __init__(self, part: Part, columns: int):
        self.part, self.shape = part, (part.shape[0], columns)
        self.dtype, self.device, self.precision = part.dtype, part.device, part.precision
        self.sizes, self.share = shares(columns)

    @property
    def local(self) -> Operator:
        """This process's part."""
        assert isinstance(self.part, Operator)
        return self.part

    def mapped(self, make: Callable[[Operator], Part]) -> Distributed:
        """Apply ``make`` to this process's part of the matrix."""
        return Distributed(make(self.local), self.shape[1])

    def agreed(self, flag: bool) -> bool:
        """Whether a flag is set in all processes."""
        return not any_rank(not flag, self.device)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x, the sum over the processes."""
        return sum_over_ranks(self.part.matvec(x[self.share]))

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y, concatenated."""
        return self._join(self.part.rmatvec(y))

    def to(self, precision: Precision) -> Distributed:
        """The same matrix in another precision."""
        return self.mapped(lambda part: part.to(precision))

    def column_norms(self) -> torch.Tensor:
        """Of all columns."""
        return self._join(self.local.column_norms())

    def nearest(self, vector: torch.Tensor) -> torch.Tensor:
        """The nearest vector (c1,) with exact integer products: each share has a scale."""
        assert isinstance(self.part, IntegerProducts)
        return torch.cat([self.part.nearest(each) for each in vector.split(self.sizes)])

    def _join(self, share: torch.Tensor) -> torch.Tensor:
        """Gather the entries (c1,) or (c1, k) of all processes from each one's share."""
        more = share.new_zeros(max(self.sizes) - len(share), *share.shape[1:])
        gathered = gather_from_ranks(torch.cat([share, more]))
        return torch.cat([each[:size] for each, size in zip(gathered, self.sizes, strict=True)])
