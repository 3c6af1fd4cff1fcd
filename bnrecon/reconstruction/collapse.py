"""The one layer that a source layer amounts to, and how far it is from the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from bnrecon.construction.two_layer import composed_weight, relative_error
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales
from bnrecon.reconstruction.geometry import pad

if TYPE_CHECKING:
    from bnrecon.reconstruction.source_layer import SourceLayer

__all__ = ["collapse_layer", "layer_errors", "shift_at_output"]


def shift_at_output(features: Features, shift: torch.Tensor) -> torch.Tensor:
    """What a shift t (c1,) of the intermediate channels adds to each output: Σ_l Σ_tap B[i, l, tap] t_l, in float64."""
    if not bool(shift.any()):
        return torch.zeros(features.shape.outputs, dtype=torch.float64, device=shift.device)
    if features.identity:
        return shift.reshape(features.shape.outputs, -1).sum(1)
    return features.weights()[1].to(shift.device).double().sum((2, 3)) @ shift


def collapse_layer(layer: SourceLayer) -> nn.Module:
    """The one layer that a source layer amounts to, from its float64 maps and its features (identity, or its linear region).

    Its weight is W' = outer ∘ (B diag(inner) A): nothing of the target enters. With an activation that is only nearly linear,
    this is the layer it would be if it were.
    """
    first, second = layer.present_maps()
    slope, offset = layer.linearized.slope, layer.linearized.offset
    matrix = feature_operator(layer.features, torch.float64, first.scale.device)
    weight = composed_weight(matrix, Scales(slope * first.scale, second.scale), layer.features)
    bias = (
        second.scale * shift_at_output(layer.features, slope * first.shift + offset) + second.shift
    )
    parameter = layer.second_norm.weight
    if layer.geometry.linear:
        collapsed = nn.Linear(
            weight.shape[1], weight.shape[0], dtype=parameter.dtype, device=parameter.device
        )
        weight = weight[:, :, 0, 0]
    else:
        collapsed = _PaddedConvolution(layer, parameter)
    with torch.no_grad():
        target = collapsed if layer.geometry.linear else collapsed.convolution
        target.weight.copy_(weight)
        target.bias.copy_(bias)
    return collapsed.eval()


class _PaddedConvolution(nn.Module):
    """A convolution after its explicit padding."""

    def __init__(self, layer: SourceLayer, like: torch.Tensor):
        super().__init__()
        shape, self.geometry = layer.features.shape, layer.geometry
        self.convolution = nn.Conv2d(
            shape.inputs,
            shape.outputs,
            shape.kernel,
            self.geometry.stride,
            dilation=self.geometry.dilation,
            dtype=like.dtype,
            device=like.device,
        )
        for name in nn.Conv2d.__constants__:  # the target's, as the source layer has them
            setattr(self, name, getattr(layer, name))

    @property
    def weight(self) -> torch.Tensor:
        """The convolution's weight."""
        return self.convolution.weight

    @property
    def bias(self) -> torch.Tensor:
        """The convolution's bias."""
        return self.convolution.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad, then convolve."""
        return self.convolution(pad(x, self.geometry))


def layer_errors(layer: SourceLayer, weight: torch.Tensor) -> tuple[float, float]:
    """How far the layer is from a target's ``weight`` (c2, c0, kh, kw), relative, in two arithmetics.

    The first from its float64 maps and its features; the second from the rounded parameters that its BatchNorm layers hold,
    in the arithmetic the network runs in.
    """
    exact = [wanted.scale for wanted in layer.present_maps()]
    norms = (layer.first_norm, layer.second_norm)
    rounded = [norm.weight.detach() * torch.rsqrt(norm.running_var + norm.eps) for norm in norms]
    errors = []
    for inner, outer in (exact, rounded):
        matrix = feature_operator(layer.features, inner.dtype, inner.device)
        scales = Scales(layer.linearized.slope * inner, outer)
        errors.append(relative_error(composed_weight(matrix, scales, layer.features), weight))
        del matrix  # before the next is formed
    return errors[0], errors[1]
