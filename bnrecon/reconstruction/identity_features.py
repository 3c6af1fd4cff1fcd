"""What id_cond's features compute, M = I, without forming any weight."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction.geometry import Geometry, take, windows
from bnrecon.reconstruction.kernels import apply_kernel

__all__ = ["identity_output"]


def identity_output(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    shape: LayerShape,
    geometry: Geometry,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
) -> torch.Tensor:
    """Sum φ(s_l x_j + t_l) over the features l = (i, tap, j) of each output i.

    Args:
        x: the padded input (N, c0, *sides).
        scale: s (groups n,), of the first normalization.
        shift: t (groups n,), of the same.
        shape: of one group of the target layer.
        geometry: its stride, dilation and groups.
        activation: φ; without it the sum is one convolution.

    Returns:
        The output of B, (N, c2, *sides).
    """
    table = (-1, shape.taps, shape.inputs)
    scale, shift = scale.reshape(table), shift.reshape(table)
    if activation is None:
        kernel = scale.transpose(1, 2).reshape(len(scale), shape.inputs, *geometry.kernel)
        return apply_kernel(x, kernel, shift.sum((1, 2)), geometry.groups, **geometry.movement)
    patches = _patches(x, geometry)
    groups = patches.unflatten(2, (geometry.groups, shape.inputs))
    outputs = [
        activation(s[..., None] * groups[:, :, output // shape.outputs] + t[..., None]).sum((1, 2))
        for output, (s, t) in enumerate(zip(scale, shift, strict=True))
    ]
    return torch.stack(outputs, 1).reshape(len(x), len(scale), *_sides(x, geometry))


def _patches(x: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """What each tap of the kernel passes over: (N, taps, c0, places)."""
    sides = _sides(x, geometry)
    taps = itertools.product(*map(range, geometry.kernel))
    seen = [take(x, windows(tap, geometry, sides, strided=True)) for tap in taps]
    return torch.stack(seen, 1).reshape(len(x), len(seen), x.shape[1], -1)


def _sides(x: torch.Tensor, geometry: Geometry) -> list[int]:
    """Sides of the output for a padded input."""
    return [
        (side - dilation * (kernel - 1) - 1) // step + 1
        for side, kernel, step, dilation in zip(
            x.shape[2:], geometry.kernel, geometry.stride, geometry.dilation, strict=True
        )
    ]
