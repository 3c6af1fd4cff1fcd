"""The frozen pair of weights of one target layer, stored or formed from a pattern."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.digests import tensor_digest

__all__ = ["Features", "identity_weights", "shared_feature_rows"]


@dataclass(frozen=True)
class Features:
    """The frozen pair for one target layer.

    Features that follow a ``pattern`` store neither A nor B; ``weights`` forms them on demand:
    ``"identity"`` (id_cond of maximum width, M = I), ``"shared"`` (id_cond of minimum width) and
    ``"kronecker"`` (ortho_cond, from its ``factors`` U2 and U1).

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
        first, second = identity_weights(self.shape)
        if self.pattern == "shared":
            private = shared_feature_rows(self.shape)
            first, second = first[private], second[:, private].contiguous()
            second[:, 0, 0, 0] = 1
        return first, second

    def digest(self) -> str:
        """SHA-256 of the weights, or of what their pattern is made of: equal for equal draws."""
        skip = {} if self.skip_weight is None else {"skip": self.skip_weight}
        if self.first is not None and self.second is not None:
            return tensor_digest({"first": self.first, "second": self.second} | skip)
        sides = (self.shape.outputs, self.shape.inputs, *self.shape.kernel)
        size = "x".join(map(str, sides))
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
