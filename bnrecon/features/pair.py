"""The frozen pair of weights of one target layer, stored or formed from a pattern."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.digests import tensor_digest

__all__ = ["SKIPS", "Features", "identity_weights", "shared_feature_rows"]


SKIPS = (
    "none",
    "inner",
    "outer",
)  # where the second normalization stands relative to a skip connection


@dataclass(frozen=True)
class Features:
    """The frozen pair for one target layer.

    ``first`` is A (c1, c0), ``second`` is B (c2, c1, kh, kw), both float32; ``redrawn`` counts features that came out wholly
    zero and were drawn anew. Features that follow a ``pattern`` store neither; ``weights`` forms them when asked:
    ``"identity"`` (id_cond of maximum width, M = I), ``"shared"`` (id_cond of minimum width), ``"kronecker"`` (ortho_cond, from its
    ``factors`` U2 and U1).

    With ``skip="inner"`` or ``"outer"`` a frozen skip connection S (c2, c0), ``skip_weight``, runs beside the pair, at the kernel's
    centre: the identity where c2 = c0, a random 1x1 convolution elsewhere.
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
        if self.pattern is None:
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
        """SHA-256 of the weights, or of what their pattern is made of, by which a reload knows that it drew the same ones."""
        skip = {} if self.skip_weight is None else {"skip": self.skip_weight}
        if self.pattern is None:
            return tensor_digest({"first": self.first, "second": self.second} | skip)
        size = f"{self.shape.outputs}x{self.shape.inputs}x{self.shape.kernel[0]}x{self.shape.kernel[1]}"
        factors = {f"factor {number}": factor for number, factor in enumerate(self.factors)} | skip
        return f"{self.pattern} {size}{f' {tensor_digest(factors)}' if factors else ''}"


def shared_feature_rows(shape: LayerShape) -> torch.Tensor:
    """Which of M's n rows have a feature of their own at id_cond's minimum width (Eq. 3); the others share feature 0.

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
    """Feature number l = (i, p, j) reads input j and writes output i at tap p; all n of them, or those ``kept``."""
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
    """Feature number (q, d) reads the inputs by column d of U1 and writes the outputs and taps by column q of U2."""
    first = u1.T.repeat(len(u2), 1)
    second = u2.repeat_interleave(shape.inputs, dim=1).reshape(
        shape.outputs, shape.taps, len(first)
    )
    return first, second.transpose(1, 2).reshape(
        shape.outputs, len(first), *shape.kernel
    ).contiguous()
