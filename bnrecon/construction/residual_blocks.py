"""A target layer from residual blocks of frozen layers (Burkholz 2024, Sect. 2.4)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bnrecon.construction.two_layer import linear_system
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape


@dataclass(frozen=True)
class ResidualBlock:
    """s -> s + diag(γ2) B diag(γ1) A s: two frozen layers, their scales, and a skip connection."""

    first: torch.Tensor  # A (c1, c), a 1x1 convolution of the c channels of the state
    second: torch.Tensor  # B (c, c1, kh, kw), padded with zeros to the size of its input
    inner: torch.Tensor  # γ1 (c1,)
    outer: torch.Tensor  # γ2 (c,); 0 for channels that the block does not change

    @property
    def scales(self) -> int:
        """How many normalization scales it trains, including those that end at 0."""
        return len(self.inner) + len(self.outer)

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        """(batch, c, height, width) -> the same."""
        hidden = F.conv2d(state, (self.inner[:, None] * self.first)[:, :, None, None])
        weight = self.outer[:, None, None, None] * self.second
        return state + F.conv2d(hidden, weight, padding="same")


def residual_blocks(
    target: torch.Tensor, blocks: int, seed: int = 0, *, overwrite: bool = False
) -> list[ResidualBlock]:
    """Blocks of c0 + c2 channels that take (x, r) to (x, W x).

    Each block writes g of the c2 outputs; its other second scales are 0, so that x stays. Its pair
    matches the entries from nonempty channels to the g outputs: the rows of W, and zeros from
    outputs that are already written. Theorem 2.2 needs g - 1 fewer first scales than entries. L
    blocks of g = c2 / L outputs have, with k kernel positions,

        c2 c0 k + c2² k (L - 1) / (2 L)

    entries. With ``overwrite`` r may be anything, such as a previous layer's output: each block
    subtracts r from the channels that it writes, and zeros stand for the others, c2 (c0 + c2) k
    entries in all. The (c0 + c2)² k entries from every channel to every other, 4 times those of W
    if c0 = c2, are never needed: channels that are not written need no second scale. A 1x1 kernel
    would need still fewer, since written outputs are a known linear map of x.

    Args:
        target: W (c2, c0, kh, kw), float64, with a kernel of odd sides.
        blocks: L, from 1 to c2.
        seed: of the frozen weights, He normal.
        overwrite: whether r may be anything; otherwise it is 0.

    Raises:
        ValueError: ``blocks`` is out of range, or the kernel has no centre.

    >>> _ = torch.manual_seed(0)
    >>> target, x = torch.randn(4, 3, 3, 3).double(), torch.randn(1, 3, 8, 8).double()
    >>> state = torch.cat([x, torch.zeros(1, 4, 8, 8).double()], 1)
    >>> for block in residual_blocks(target, 2):
    ...     state = block(state)
    >>> torch.allclose(state, torch.cat([x, F.conv2d(x, target, padding="same")], 1))
    True
    """
    outputs, inputs, *kernel = target.shape
    if not 1 <= blocks <= outputs:
        raise ValueError(f"{blocks} blocks cannot write {outputs} outputs, at least one each")
    if any(side % 2 == 0 for side in kernel):
        raise ValueError(f"a kernel of {kernel[0]}x{kernel[1]} has no centre")
    parts = torch.arange(outputs).tensor_split(blocks)
    return [_block(target, part, number, seed, overwrite) for number, part in enumerate(parts)]


def _block(
    target: torch.Tensor, part: torch.Tensor, number: int, seed: int, overwrite: bool
) -> ResidualBlock:
    """The block that writes the outputs ``part``."""
    outputs, inputs, *kernel = target.shape
    channels, written = inputs + outputs, inputs + part
    read = channels if overwrite else inputs + int(part[0])  # nonempty channels
    required = target.new_zeros(len(part), read, *kernel, dtype=torch.float64)
    required[:, :inputs] = target[part]
    if overwrite:
        required[torch.arange(len(part)), written, kernel[0] // 2, kernel[1] // 2] = -1
    seen = LayerShape(len(part), read, tuple(kernel))
    whole = LayerShape(channels, channels, tuple(kernel))
    drawn = draw("he_normal", whole, seen.minimum_width, seed, number)
    first, second = drawn.weights()
    features = dataclasses.replace(
        drawn, shape=seen, first=first[:, :read], second=second[written], draws=None
    )
    matrix = feature_operator(features, torch.float64, target.device)
    system = linear_system(matrix, required.movedim(1, -1).flatten(1))
    dense = system.operator.dense()
    solution = torch.linalg.lstsq(dense, system.rhs[:, None], driver="gels").solution[:, 0]
    scales = system.scales(solution)
    outer = target.new_zeros(channels, dtype=torch.float64)
    outer[written] = scales.outer
    return ResidualBlock(first.to(outer), second.to(outer), scales.inner, outer)
