"""How a layer moves over its input: stride, dilation, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Geometry", "centre", "geometry_of", "pad"]


@dataclass(frozen=True)
class Geometry:
    """How a layer moves over its input.

    ``pads`` is (left, right, top, bottom); all padding comes before the first source layer.
    """

    linear: bool
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_mode: str = "constant"


def geometry_of(module: nn.Conv2d | nn.Linear) -> Geometry:
    """Read a module's stride, dilation and padding; ``same`` and asymmetric padding included."""
    if isinstance(module, nn.Linear):
        return Geometry(linear=True)
    (top, bottom), (left, right) = (_pads(module, side) for side in (0, 1))
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    stride, dilation = pair(module.stride), pair(module.dilation)
    return Geometry(False, stride, dilation, (left, right, top, bottom), mode)


def pair(values: Sequence[int]) -> tuple[int, int]:
    """Two numbers, height and width, as a tuple.

    >>> pair(torch.Size([3, 5]))
    (3, 5)
    """
    height, width = values
    return height, width


def _pads(module: nn.Conv2d, side: int) -> tuple[int, int]:
    """Padding before and after the image, along height (0) or width (1)."""
    if module.padding == "valid":
        return 0, 0
    if isinstance(module.padding, str):  # same
        total = module.dilation[side] * (module.kernel_size[side] - 1)
        return total // 2, total - total // 2
    return module.padding[side], module.padding[side]


def pad(x: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Pad a layer's input as the target does."""
    return F.pad(x, geometry.pads, geometry.pad_mode) if any(geometry.pads) else x


def centre(
    x: torch.Tensor, kernel: tuple[int, int], geometry: Geometry, sides: torch.Size
) -> torch.Tensor:
    """The part of a padded input that a kernel's centre passes over, strides not applied.

    Args:
        x: (N, c0, H, W), padded.
        kernel: (kh, kw).
        geometry: of the layer.
        sides: height and width of the layer's output.
    """
    starts = [side // 2 * step for side, step in zip(kernel, geometry.dilation, strict=True)]
    rows, columns = (
        slice(start, start + (side - 1) * step + 1)
        for start, side, step in zip(starts, sides, geometry.stride, strict=True)
    )
    return x[:, :, rows, columns]
