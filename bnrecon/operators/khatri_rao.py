"""The feature matrix M as a column-wise Khatri-Rao product, never formed unless small."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bnrecon.operators.base import CHUNK_BYTES, Operator
from bnrecon.runtime.precision import Precision

# Of a product that is summed at once: it stays in a core's second-level cache
CACHE_BYTES = 512 * 2**10
# Of factors that are widened to float64 at once, on a CPU
WIDENED_BYTES = 4 * 2**20


class KhatriRao(Operator):
    """M (m c0, c1) with columns vec(B[:, l] A[l, :]), B (m, c1), A (c1, c0), m = c2 kh kw.

    With the target's weight as a matrix W (m, c0), row (i, p) and column j standing for output, tap
    and input, ``M x = vec(B diag(x) A)`` and ``M^T y = rowsum((B^T Y) ∘ A)``: 2 · n · c1 flops each
    on c1 · (m + c0) numbers, where dense M has n · c1 (Burkholz 2024, Eq. 2, for a first kernel of
    1x1). ``M^T M = (B^T B) ∘ (A A^T)``.

    Args:
        transposed: B^T (c1, m), so that a run of features is one contiguous block.
        first: A (c1, c0).
        precision: of products; vectors go in and out as ``precision.vectors``. Factors stored in
            float32 are widened to float64 in its products, a block at a time.

    Products process blocks of features whose temporaries stay below ``CHUNK_BYTES``.

    >>> first = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    >>> M = KhatriRao(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), first)
    >>> M.matvec(torch.tensor([1.0, 1.0]))  # vec of [[1, 0], [2, 1]] @ [[1, 3], [5, 7]]
    tensor([ 1.,  3.,  7., 13.])
    """

    def __init__(
        self, transposed: torch.Tensor, first: torch.Tensor, precision: Precision | None = None
    ):
        if len(transposed) != len(first) or transposed.ndim != 2 or first.ndim != 2:
            raise ValueError(
                f"B^T {tuple(transposed.shape)} and A {tuple(first.shape)} must both be "
                "matrices of c1 rows"
            )
        self.precision = precision or Precision.of(first.dtype)
        self.transposed, self.first = transposed, first
        self.shape = (transposed.shape[1] * first.shape[1], len(first))
        self.dtype, self.device = self.precision.vectors, first.device
        self.chunk_bytes = CHUNK_BYTES[self.device.type]
        # bf16 products on the CPU need their long dimension contiguous: B (m, c1) is kept too, at
        # half of float32's size.
        twice = first.dtype == torch.bfloat16 and self.device.type == "cpu"
        self.second = transposed.T.contiguous() if twice else transposed.T
        self._norms: torch.Tensor | None = None

    @classmethod
    def of(
        cls, first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype, device: torch.device
    ) -> KhatriRao:
        """Build the operator of A (c1, c0) and B (c2, c1, kh, kw) with products in ``dtype``.

        Weights in float32 are stored unchanged.
        """
        stored = torch.float32 if first.dtype == second.dtype == torch.float32 else dtype
        transposed = second.to(device).transpose(0, 1).flatten(1).to(stored).contiguous()
        first = first.to(device, stored).contiguous()
        return cls(transposed, first, Precision.of(dtype))

    @property
    def _widened(self) -> bool:
        """Whether factors are stored in float32 and multiplied in float64."""
        return self.precision.factors != self.first.dtype

    def _chunks(self, numbers: int, size: int) -> Iterator[slice]:
        """Yield runs of features that take ``size`` bytes at most with ``numbers`` numbers each."""
        if self._widened:
            numbers = max(numbers, self.transposed.shape[1])
            size = min(size, WIDENED_BYTES) if self.device.type == "cpu" else size
        block = max(1, size // (numbers * self.precision.factors.itemsize))
        for start in range(0, len(self.first), block):
            yield slice(start, start + block)

    def _run(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """B^T and A of some features, in the form for products."""
        factors = self.precision.factors
        return self.transposed[part].to(factors), self.first[part].to(factors)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x = vec(B diag(x) A)."""
        many = x.reshape(len(x), -1)
        m, c0, k = len(self.second), self.first.shape[1], many.shape[1]
        # In float64 a CPU takes three quarters of the time with the longer rows on the right.
        swapped = self._widened and k == 1 and m >= c0 and self.device.type == "cpu"
        size = (c0, m) if swapped else (m, k * c0)
        product = torch.zeros(size, dtype=self.dtype, device=self.device)
        with self.precision.products():
            for part in self._chunks(k * c0, self.chunk_bytes):
                transposed, first = self._run(part)
                second = transposed.T if self._widened else self.second[:, part]
                scaled = (many[part, :, None].to(first.dtype) * first[:, None]).flatten(1)
                if swapped:
                    product.addmm_(scaled.T, transposed)
                elif product.dtype == scaled.dtype:
                    product.addmm_(second, scaled)
                else:
                    product += second @ scaled
        product = product.T if swapped else product
        return product.reshape(m, k, c0).transpose(1, 2).reshape(self.shape[0], *x.shape[1:])

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y = rowsum((B^T Y) ∘ A)."""
        m, c0, k = len(self.second), self.first.shape[1], y.numel() // max(1, len(y))
        table = y.reshape(m, c0, k).transpose(1, 2).reshape(m, k * c0).to(self.precision.factors)
        product = torch.empty(len(self.first), k, dtype=self.dtype, device=self.device)
        size = min(self.chunk_bytes, CACHE_BYTES) if self.device.type == "cpu" else self.chunk_bytes
        with self.precision.products():
            for part in self._chunks(k * c0, size):
                transposed, first = self._run(part)
                reached = (transposed @ table).reshape(-1, k, c0).mul_(first[:, None])
                torch.sum(reached, 2, dtype=self.dtype, out=product[part])
        return product.reshape(self.shape[1], *y.shape[1:])

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows: (count, m c0)."""
        transposed, first = self._run(part)
        return (transposed[:, :, None] * first[:, None]).flatten(1)

    def to(self, precision: Precision) -> KhatriRao:
        """The same features in another precision; factors are rounded to it, never widened."""
        stored = min(precision.factors, self.first.dtype, key=lambda dtype: dtype.itemsize)
        return KhatriRao(self.transposed.to(stored), self.first.to(stored), precision)

    def column_norms(self) -> torch.Tensor:
        """|B[:, l]| · |A[l, :]|; computed once, in a pass over all rows."""
        if self._norms is None:
            runs = map(self._run, self._chunks(self.transposed.shape[1], self.chunk_bytes))
            norms = [second.norm(dim=1) * first.norm(dim=1) for second, first in runs]
            self._norms = torch.cat(norms)
        return self._norms

    def leading(self, count: int) -> KhatriRao:
        """The first ``count`` features."""
        return KhatriRao(self.transposed[:count], self.first[:count], self.precision)
