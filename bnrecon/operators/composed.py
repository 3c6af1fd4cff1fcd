"""M of two kernels larger than 1x1 as an operator (Burkholz 2024, Eq. 2)."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import Precision


class Convolved(Operator):
    """M for two kernels larger than 1x1 (Burkholz 2024, Eq. 2).

    Column l is the full convolution of B[:, l] with A[l, :].

    For A (c1, c0, k1h, k1w) and B (c2, c1, k2h, k2w) two successive convolutions of stride 1 have
    the kernel ``W'[i, j, k] = Σ_l x_l Σ_{p + q = k} B[i, l, p] A[l, j, q]`` of size dim(k2, k1) =
    k1 + k2 - 1 per side. M x is the product of the Khatri-Rao operator of A' (c1, k1h k1w c0) and
    B' (c2 k2h k2w, c1), its n' = c2 c0 |k1| |k2| rows summed by p + q; M^T y first copies y_{p+q}
    to all (p, q). Rows are in the order (i, k, j). The Hadamard form of the Gram matrix holds for
    the rows before the sum, not for M.

    >>> pair = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2)
    >>> M = Convolved.of(*pair, torch.float64, torch.device("cpu"))
    >>> M.matvec(torch.tensor([1.0], dtype=torch.float64))  # [1, 1] * [1, 1]
    tensor([1., 2., 1.], dtype=torch.float64)
    """

    def __init__(self, product: KhatriRao, destination: torch.Tensor, rows: int):
        self.product, self.destination = product, destination
        self.shape = (rows, product.shape[1])
        self.dtype, self.device, self.precision = product.dtype, product.device, product.precision

    @classmethod
    def of(
        cls, first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype, device: torch.device
    ) -> Convolved:
        """Build the operator of two kernels, A (c1, c0, k1h, k1w) and B (c2, c1, k2h, k2w)."""
        (c1, c0, k1h, k1w), (c2, _, k2h, k2w) = first.shape, second.shape
        rows = first.permute(0, 2, 3, 1).reshape(c1, -1)
        product = KhatriRao.of(rows, second, dtype, device)
        ranges = map(torch.arange, (c2, k2h, k2w, k1h, k1w, c0))
        i, ph, pw, qh, qw, j = torch.meshgrid(*ranges, indexing="ij")
        height, width = k1h + k2h - 1, k1w + k2w - 1
        destination = ((i * height + ph + qh) * width + pw + qw) * c0 + j
        return cls(product, destination.reshape(-1).to(device), c2 * height * width * c0)

    def _sum(self, products: torch.Tensor) -> torch.Tensor:
        """Sum rows (i, p, q, j) to (i, p + q, j) along the first dimension."""
        total = products.new_zeros(self.shape[0], *products.shape[1:])
        return total.index_add_(0, self.destination, products)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """Sum B' diag(x) A' over p + q = k."""
        return self._sum(self.product.matvec(x))

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y."""
        return self.product.rmatvec(y[self.destination])

    def columns(self, part: slice) -> torch.Tensor:
        """Some columns of M, as rows."""
        return self._sum(self.product.columns(part).T).T

    def to(self, precision: Precision) -> Convolved:
        """The same features in another precision."""
        return Convolved(self.product.to(precision), self.destination, self.shape[0])

    def column_norms(self) -> torch.Tensor:
        """Of columns formed in chunks."""
        parts = self.product._chunks(self.product.shape[0], self.product.chunk_bytes)
        return torch.cat([self.columns(part).norm(dim=1) for part in parts])

    def leading(self, count: int) -> Convolved:
        """The first ``count`` features."""
        return Convolved(self.product.leading(count), self.destination, self.shape[0])
