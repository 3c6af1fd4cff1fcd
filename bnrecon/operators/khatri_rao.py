"""The feature matrix M as a column-wise Khatri-Rao product, never formed unless small."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bnrecon.operators.base import CHUNK_BYTES, form
from bnrecon.runtime.precision import Precision

__all__ = ["KhatriRao"]


# Of a product that is summed up at once: it stays in a core's second-level cache
CACHE_BYTES = 512 * 2**10


class KhatriRao:
    """M (m c0, c1) with columns vec(B[:, l] A[l, :]), B (m, c1), A (c1, c0), m = c2 kh kw.

    With the target's weight as a matrix W (m, c0), row (i, p) and column j standing for output, tap
    and input, ``M x = vec(B diag(x) A)`` and ``M^T y = rowsum((B^T Y) ∘ A)``: 2 · n · c1 flops each
    on c1 · (m + c0) numbers, where dense M has n · c1 (Burkholz 2024, Eq. 2, for a first kernel of
    1x1). ``M^T M = (B^T B) ∘ (A A^T)``.

    Args:
        transposed: B^T (c1, m), so that a run of features is one contiguous block.
        first: A (c1, c0).
        precision: what ``transposed`` and ``first`` are stored and multiplied in; vectors go in and
            out as ``precision.vectors``.
        chunk_bytes: products work through blocks of features whose temporaries stay below this
            size.

    >>> first = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    >>> M = KhatriRao(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), first)
    >>> M.matvec(torch.tensor([1.0, 1.0]))  # vec of [[1, 0], [2, 1]] @ [[1, 3], [5, 7]]
    tensor([ 1.,  3.,  7., 13.])
    """

    def __init__(
        self,
        transposed: torch.Tensor,
        first: torch.Tensor,
        precision: Precision | None = None,
        chunk_bytes: int | None = None,
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
        self.chunk_bytes = chunk_bytes or CHUNK_BYTES[self.device.type]
        # On the CPU bf16 products want their long dimension contiguous: B (m, c1) is kept too, at
        # half of float32's size.
        twice = first.dtype == torch.bfloat16 and self.device.type == "cpu"
        self.second = transposed.T.contiguous() if twice else transposed.T

    @classmethod
    def of(
        cls,
        first: torch.Tensor,
        second: torch.Tensor,
        dtype: torch.dtype,
        device: torch.device,
        chunk_bytes: int | None = None,
    ) -> KhatriRao:
        """Build the operator of a pair of weights.

        Args:
            first: A (c1, c0).
            second: B (c2, c1, kh, kw).
            dtype: of the operator's factors.
            device: where the operator is.
            chunk_bytes: see the class.
        """
        transposed = second.to(device).transpose(0, 1).flatten(1).to(dtype).contiguous()
        return cls(transposed, first.to(device, dtype).contiguous(), chunk_bytes=chunk_bytes)

    def _chunks(self, numbers: int, size: int) -> Iterator[slice]:
        """Runs of features for which ``numbers`` numbers a feature take at most ``size`` bytes."""
        block = max(1, size // (numbers * self.first.element_size()))
        for start in range(0, len(self.first), block):
            yield slice(start, start + block)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """M x = vec(B diag(x) A)."""
        many = x.reshape(len(x), -1)
        m, c0, k = len(self.second), self.first.shape[1], many.shape[1]
        product = torch.zeros(m, k * c0, dtype=self.dtype, device=self.device)
        with self.precision.products():
            for part in self._chunks(k * c0, self.chunk_bytes):
                scaled = (
                    many[part, :, None].to(self.first.dtype) * self.first[part, None]
                ).flatten(1)
                if product.dtype == scaled.dtype:
                    product.addmm_(self.second[:, part], scaled)
                else:
                    product += self.second[:, part] @ scaled
        return product.reshape(m, k, c0).transpose(1, 2).reshape(self.shape[0], *x.shape[1:])

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y = rowsum((B^T Y) ∘ A)."""
        m, c0, k = len(self.second), self.first.shape[1], y.numel() // max(1, len(y))
        table = y.reshape(m, c0, k).transpose(1, 2).reshape(m, k * c0).to(self.first.dtype)
        product = torch.empty(len(self.first), k, dtype=self.dtype, device=self.device)
        size = min(self.chunk_bytes, CACHE_BYTES) if self.device.type == "cpu" else self.chunk_bytes
        with self.precision.products():
            for part in self._chunks(k * c0, size):
                reached = (
                    (self.transposed[part] @ table).reshape(-1, k, c0).mul_(self.first[part, None])
                )
                torch.sum(reached, 2, dtype=self.dtype, out=product[part])
        return product.reshape(self.shape[1], *y.shape[1:])

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows: (count, m c0)."""
        return (self.transposed[part, :, None] * self.first[part, None]).flatten(1)

    def dense(self) -> torch.Tensor:
        """M (m c0, c1)."""
        return form(self)

    def gram(self) -> torch.Tensor:
        """M^T M = (B^T B) ∘ (A A^T), (c1, c1)."""
        return (self.transposed @ self.transposed.T).mul_(self.first @ self.first.T)

    def to(self, precision: Precision) -> KhatriRao:
        """The same features in another precision."""
        return KhatriRao(
            self.transposed.to(precision.factors),
            self.first.to(precision.factors),
            precision,
            self.chunk_bytes,
        )

    def column_norms(self) -> torch.Tensor:
        """|B[:, l]| · |A[l, :]|."""
        return self.transposed.norm(dim=1) * self.first.norm(dim=1)

    def row_norms(self) -> torch.Tensor:
        """The square root of (B ∘ B) (A ∘ A), in chunks."""
        total = torch.zeros(
            len(self.second), self.first.shape[1], dtype=self.dtype, device=self.device
        )
        for part in self._chunks(len(self.second), self.chunk_bytes):
            total += self.transposed[part].square().T @ self.first[part].square()
        return total.sqrt().reshape(-1)

    def leading(self, count: int) -> KhatriRao:
        """The first ``count`` features."""
        return KhatriRao(
            self.transposed[:count], self.first[:count], self.precision, self.chunk_bytes
        )
