"""A target layer's shape, and the widths that are named by it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerShape:
    """The shape of a target layer or of one of its groups; a linear layer's kernel is 1x1.

    Args:
        outputs: c2.
        inputs: c0.
        kernel: its sides, such as (kh, kw).
    """

    outputs: int
    inputs: int
    kernel: tuple[int, ...] = (1, 1)

    @property
    def taps(self) -> int:
        """Positions in the kernel, such as kh · kw."""
        return math.prod(self.kernel)

    @property
    def equations(self) -> int:
        """The number n = c2 · c0 · taps of the weight's entries (first source kernel 1x1)."""
        return self.outputs * self.inputs * self.taps

    @property
    def minimum_width(self) -> int:
        """The smallest sufficient width, n - c2 + 1 (Burkholz 2024, Theorem 2.2)."""
        return self.equations - self.outputs + 1

    @property
    def feature_size(self) -> int:
        """How many weights of A and B a feature has, c0 + c2 · taps."""
        return self.inputs + self.outputs * self.taps

    def feature_bytes(self, width: int) -> int:
        """Size of the two float32 weights of ``width`` features."""
        return 4 * width * self.feature_size


def named_width(shape: LayerShape, word: str) -> int | None:
    """The width named ``minimum`` (n - c2 + 1) or ``maximum`` (n), ``None`` for other words."""
    return {"minimum": shape.minimum_width, "maximum": shape.equations}.get(word)
