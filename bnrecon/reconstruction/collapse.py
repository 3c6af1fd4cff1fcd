"""The one layer that a source layer computes, and how far it is from the target's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from bnrecon.construction.two_layer import composed_weight, relative_error
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales
from bnrecon.reconstruction.affine_map import AffineMap
from bnrecon.reconstruction.geometry import pad

if TYPE_CHECKING:
    from bnrecon.reconstruction.source_layer import SourceLayer

__all__ = ["collapse_layer", "fold_inner_shift", "layer_errors", "shift_at_output"]


def shift_at_output(features: Features, shift: torch.Tensor) -> torch.Tensor:
    """What a shift t (c1,) of the intermediate channels adds: Σ_l Σ_tap B[i, l, tap] t_l, (c2,)."""
    if not bool(shift.any()):
        return torch.zeros(features.shape.outputs, dtype=torch.float64, device=shift.device)
    if features.identity:
        return shift.reshape(features.shape.outputs, -1).sum(1)
    taps = features.weights()[1].to(shift.device).sum((2, 3), dtype=torch.float64)
    return taps @ shift


def fold_inner_shift(
    features: Features, first: AffineMap, second: AffineMap
) -> tuple[AffineMap, AffineMap]:
    """The same layer with a first BatchNorm whose β is 0, nothing nonlinear being in between.

    All padding comes before A, so that a shift t of the intermediate channels reaches every place
    of the output as the constant B t, the kernel's taps summed. The first map x -> s ∘ x + t
    becomes s ∘ (x - μ), μ being its running mean; what the output loses, B (t + s ∘ μ), the second
    map adds. A pair then has c1 + 2 c2 trainable parameters (Burkholz 2024, Sect. 3.2) instead of
    2 (c1 + c2).

    Args:
        features: the frozen pair.
        first: s and t (c1,).
        second: the map (c2,) of B's output; its running mean moves with that output.
    """
    shift = -first.scale * first.mean.double()  # with which β = t + s ∘ μ is 0
    added = shift_at_output(features, shift - first.shift)
    return dataclasses.replace(first, shift=shift), dataclasses.replace(
        second, shift=second.shift - second.scale * added, mean=second.mean.double() + added
    )


def collapse_layer(layer: SourceLayer) -> nn.Linear | _PaddedConvolution:
    """The one layer that a source layer computes, from its float64 maps and its features.

    Its weight is W' = outer ∘ (B diag(inner) A): nothing of the target enters. With an activation
    that is only nearly linear, this is the layer it would be if it were.
    """
    first, second = layer.present_maps()
    slope, offset = layer.linearized.slope, layer.linearized.offset
    matrix = feature_operator(layer.features, torch.float64, first.scale.device)
    weight = composed_weight(matrix, Scales(slope * first.scale, second.scale), layer.features)
    bias = (
        second.scale * shift_at_output(layer.features, slope * first.shift + offset) + second.shift
    )
    parameter = layer.second_norm.weight
    collapsed: nn.Linear | _PaddedConvolution
    if layer.geometry.linear:
        outputs, inputs = weight.shape[:2]
        collapsed = nn.Linear(inputs, outputs, dtype=parameter.dtype, device=parameter.device)
        weight = weight[:, :, 0, 0]
    else:
        collapsed = _PaddedConvolution(layer, parameter)
    with torch.no_grad():
        collapsed.weight.copy_(weight)
        collapsed.bias.copy_(bias)
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
        return cast(torch.Tensor, self.convolution.bias)  # it was made with one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad, then convolve."""
        return self.convolution(pad(x, self.geometry))


def layer_errors(layer: SourceLayer, weight: torch.Tensor) -> tuple[float, float]:
    """The relative errors of a layer's weight in float64 and in the network's precision.

    The first from its float64 maps and its features; the second from the rounded parameters that
    its BatchNorm layers hold, in the precision the network runs in.
    """
    exact = [wanted.scale for wanted in layer.present_maps()]
    rounded = [layer.rounded_scale(norm) for norm in (layer.first_norm, layer.second_norm)]
    errors = []
    for inner, outer in (exact, rounded):
        matrix = feature_operator(layer.features, inner.dtype, inner.device)
        scales = Scales(layer.linearized.slope * inner, outer)
        errors.append(relative_error(composed_weight(matrix, scales, layer.features), weight))
        del matrix  # before the next is formed
    return errors[0], errors[1]
