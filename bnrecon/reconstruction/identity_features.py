"""What id_cond's features compute, M = I, without forming any weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction.geometry import Geometry

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
        x: the padded input (N, c0, H, W).
        scale: s (n,), of the first normalization.
        shift: t (n,), of the same.
        shape: of the target layer.
        geometry: its stride and dilation.
        activation: φ; without it the sum is one convolution.

    Returns:
        The output of B, (N, c2, H', W').
    """
    table = (shape.outputs, shape.taps, shape.inputs)
    scale, shift = scale.reshape(table), shift.reshape(table)
    stride, dilation = geometry.stride, geometry.dilation
    if activation is None:
        kernel = scale.transpose(1, 2).reshape(shape.outputs, shape.inputs, *shape.kernel)
        return F.conv2d(x, kernel, shift.sum((1, 2)), stride=stride, dilation=dilation)
    patches = F.unfold(x, shape.kernel, dilation=dilation, stride=stride)
    patches = patches.reshape(len(x), shape.inputs, shape.taps, -1).transpose(1, 2)
    outputs = [
        activation(s[..., None] * patches + t[..., None]).sum((1, 2))
        for s, t in zip(scale, shift, strict=True)
    ]
    sides = [
        (x.shape[2 + d] - dilation[d] * (shape.kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1)
    ]
    return torch.stack(outputs, 1).reshape(len(x), shape.outputs, *sides)
