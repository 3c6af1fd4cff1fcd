"""The frozen pair of weights of one target layer, stored or formed from a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.features.sign import sign_digest, sign_factors
from bnrecon.operators.signs import GROUP, SignMatrix
from bnrecon.runtime.digests import tensor_digest

__all__ = ["Features", "identity_weights", "shared_feature_rows"]

RUN_BYTES = 2**22  # of regenerated features that are made at once


@dataclass(frozen=True)
class Features:
    """The frozen pair for one target layer.

    Features that follow a ``pattern`` store neither A nor B; ``weights`` forms them on demand:
    ``"identity"`` (id_cond of maximum width, M = I), ``"shared"`` (id_cond of minimum width),
    ``"kronecker"`` (ortho_cond, from its ``factors`` U2 and U1) and ``"sign"`` (from ``stream``).
    Those that are ``regenerated`` are never formed whole: ``first_parts``, ``second_parts`` and
    ``part`` give a run of features at a time.

    Args:
        shape: of the target layer.
        width: c1.
        first: A (c1, c0), float32.
        second: B (c2, c1, kh, kw), float32.
        redrawn: how many features came out all-zero and were drawn again.
        pattern: see above; ``None`` for stored weights.
        factors: U2 (c2 kh kw, c2 kh kw) and U1 (c0, c0).
        skip: ``inner`` or ``outer`` for a frozen skip connection beside the pair.
        skip_weight: S (c2, c0), at the kernel's centre: the identity where c2 = c0, else random.
        stream: what the bits of ``"sign"`` are drawn from.
        regenerated: made from their bits wherever they are used, instead of being stored.
    """

    shape: LayerShape
    width: int
    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    redrawn: int = 0
    pattern: str | None = None
    factors: tuple[torch.Tensor, ...] = ()
    skip: str = "none"
    skip_weight: torch.Tensor | None = None
    stream: Stream | None = None
    regenerated: bool = False

    @property
    def identity(self) -> bool:
        """Whether M is the identity."""
        return self.pattern == "identity"

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A (c1, c0) and B (c2, c1, kh, kw), formed from the pattern where they are not stored."""
        if self.first is not None and self.second is not None:
            return self.first, self.second
        if self.pattern == "kronecker":
            return _kronecker_weights(self.shape, *self.factors)
        if self.pattern == "sign":
            return self.part(slice(None), torch.float32, torch.device("cpu"))
        first, second = identity_weights(self.shape)
        if self.pattern == "shared":
            private = shared_feature_rows(self.shape)
            first, second = first[private], second[:, private].contiguous()
            second[:, 0].flatten(1)[:, 0] = 1  # the first tap
        return first, second

    def sign_factors(self) -> tuple[SignMatrix, SignMatrix]:
        """A (c1, c0) and B^T (c1, c2 taps) of ``"sign"``, of which any rows can be made alone."""
        if self.stream is None:
            raise ValueError(f"features of pattern {self.pattern} are not made of signs")
        return sign_factors(self.shape, self.width, self.stream)

    def part(
        self, part: slice, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A (count, c0) and B (c2, count, kh, kw) of some features of ``"sign"``."""
        first, second = (factor.values(part, dtype, device) for factor in self.sign_factors())
        return first, self._kernels(second)

    def first_parts(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """A by runs of features (count, c0), and which they are; all at once where it is stored."""
        if not self.regenerated:
            yield slice(0, self.width), self.weights()[0]
            return
        factor = self.sign_factors()[0]
        for part in self._runs(factor):
            yield part, factor.values(part, torch.float32, torch.device("cpu"))

    def second_parts(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """B by runs of features (c2, count, kh, kw), likewise."""
        if not self.regenerated:
            yield slice(0, self.width), self.weights()[1]
            return
        factor = self.sign_factors()[1]
        for part in self._runs(factor):
            yield part, self._kernels(factor.values(part, torch.float32, torch.device("cpu")))

    def _runs(self, factor: SignMatrix) -> Iterator[slice]:
        """Runs of features of some ``RUN_BYTES`` in float32."""
        count = GROUP * max(1, RUN_BYTES // (4 * GROUP * factor.columns))
        for start in range(0, self.width, count):
            yield slice(start, min(start + count, self.width))

    def _kernels(self, second: torch.Tensor) -> torch.Tensor:
        """Rows of B^T (count, c2 taps) as kernels (c2, count, kh, kw)."""
        kernels = second.reshape(len(second), self.shape.outputs, *self.shape.kernel)
        return kernels.transpose(0, 1).contiguous()

    def digest(self) -> str:
        """SHA-256 of the weights, or of what their pattern is made of: equal for equal draws."""
        skip = {} if self.skip_weight is None else {"skip": self.skip_weight}
        if self.first is not None and self.second is not None:
            return tensor_digest({"first": self.first, "second": self.second} | skip)
        sides = (self.shape.outputs, self.shape.inputs, *self.shape.kernel)
        size = "x".join(map(str, sides))
        if self.stream is not None:
            beside = tensor_digest(skip) if skip else ""
            return sign_digest(self.shape, self.width, self.stream, beside)
        factors = {f"factor {number}": factor for number, factor in enumerate(self.factors)} | skip
        return f"{self.pattern} {size}{f' {tensor_digest(factors)}' if factors else ''}"


def shared_feature_rows(shape: LayerShape) -> torch.Tensor:
    """Which of M's n rows have a feature of their own at id_cond's minimum width (Eq. 3).

    The first entries of all outputs share feature 0, which the first of them counts as its own.
    """
    private = torch.ones(shape.equations, dtype=torch.bool)
    private[torch.arange(1, shape.outputs) * shape.inputs * shape.taps] = (
        False  # entry (i, first tap, first input), i > 1
    )
    return private


def identity_weights(
    shape: LayerShape, kept: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature l = (i, p, j) reads input j and writes output i at tap p; all n, or ``kept`` ones."""
    l = torch.arange(shape.equations) if kept is None else kept  # noqa: E741 (the papers' index)
    number = torch.arange(len(l))
    first = torch.zeros(len(l), shape.inputs)
    first[number, l % shape.inputs] = 1
    second = torch.zeros(shape.outputs, len(l), shape.taps)
    second[l // (shape.inputs * shape.taps), number, l // shape.inputs % shape.taps] = 1
    return first, second.reshape(shape.outputs, len(l), *shape.kernel)


def _kronecker_weights(
    shape: LayerShape, u2: torch.Tensor, u1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature (q, d) reads the inputs by column d of U1 and writes outputs and taps by q of U2."""
    first = u1.T.repeat(len(u2), 1)
    second = u2.repeat_interleave(shape.inputs, dim=1).reshape(
        shape.outputs, shape.taps, len(first)
    )
    return first, second.transpose(1, 2).reshape(
        shape.outputs, len(first), *shape.kernel
    ).contiguous()
