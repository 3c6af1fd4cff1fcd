"""How a layer moves over its input: stride, dilation, padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Geometry", "centre", "geometry_of", "pad"]


@dataclass(frozen=True)
class Geometry:
    """How a layer moves over its input: ``pads`` as (left, right, top, bottom), all put before the first source layer."""

    linear: bool
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_mode: str = "constant"


def geometry_of(module: nn.Conv2d | nn.Linear) -> Geometry:
    """Read a module's stride, dilation and padding; ``same`` and asymmetric padding included."""
    if isinstance(module, nn.Linear):
        return Geometry(linear=True)
    pads: list[int] = []
    for side in (1, 0):  # width first, as F.pad counts
        if module.padding == "same":
            total = module.dilation[side] * (module.kernel_size[side] - 1)
            pads += [total // 2, total - total // 2]
        else:
            pads += [0, 0] if module.padding == "valid" else [module.padding[side]] * 2
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return Geometry(False, module.stride, module.dilation, tuple(pads), mode)


def pad(x: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Pad a layer's input as the target does."""
    return F.pad(x, geometry.pads, geometry.pad_mode) if any(geometry.pads) else x


def centre(
    x: torch.Tensor, kernel: tuple[int, int], geometry: Geometry, sides: torch.Size
) -> torch.Tensor:
    """The part of a padded input that a kernel's centre passes over, ``sides`` the output's; strides are left to the caller."""
    starts = [side // 2 * step for side, step in zip(kernel, geometry.dilation, strict=True)]
    rows, columns = (
        slice(start, start + (side - 1) * step + 1)
        for start, side, step in zip(starts, sides, geometry.stride, strict=True)
    )
    return x[:, :, rows, columns]
