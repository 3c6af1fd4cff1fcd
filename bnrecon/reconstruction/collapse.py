"""The one layer that a source layer computes, and how far it is from the target's."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from bnrecon.construction.two_layer import channel_errors, composed_weight, relative_error
from bnrecon.features.matrix import feature_operator
from bnrecon.operators.system import Scales
from bnrecon.reconstruction.affine_map import norm_values, shifts_at_output
from bnrecon.reconstruction.kernels import Layer, make_layer, weight_of
from bnrecon.reconstruction.replaced_layer import refuse_sequences, refuse_unbatched
from bnrecon.runtime.precision import Precision
from bnrecon.runtime.torch_modes import outside_torch_modes

if TYPE_CHECKING:
    from bnrecon.reconstruction.source_layer import SourceLayer


def _composed(
    layer: SourceLayer, *maps: tuple[torch.Tensor, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """For each pair of scales, the kernels outer ∘ (B diag(inner) A) of all groups."""
    kernels: list[list[torch.Tensor]] = [[] for _ in maps]
    count = len(layer.pairs)
    for group, features in enumerate(layer.pairs):
        matrix = feature_operator(features, torch.float64, maps[0][0].device)
        for (inner, outer), composed in zip(maps, kernels, strict=True):
            linear = layer.linearized.slope * inner.chunk(count)[group]
            scales = Scales(linear, outer.chunk(count)[group])
            rounded = matrix.to(Precision.of(inner.dtype))
            composed.append(composed_weight(rounded, scales, features))
        del matrix, rounded  # before the next is formed
    return kernels


@outside_torch_modes
def collapse_layer(layer: SourceLayer) -> Layer:
    """Build the one layer that a source layer computes, from its float64 maps and its features.

    Its weight is W' = outer ∘ (B diag(inner) A); the target is not used. An activation that is only
    nearly linear is taken to be linear.
    """
    kind, dtype = layer.kind, layer.second_norm.weight.dtype
    first, second = layer.present_maps()
    (kernels,) = _composed(layer, (first.scale, second.scale))
    kernel = torch.cat(kernels).to(dtype)
    weight = weight_of(kernel, kind, len(layer.pairs)).contiguous()
    names = set(inspect.signature(kind).parameters) & set(kind.__constants__)
    options = {name: getattr(layer, name) for name in names}
    bias = nn.Parameter(collapsed_bias(layer).to(dtype))
    made = make_layer(kind, nn.Parameter(weight), bias, **options)
    if layer.folded and layer.geometry.dims < 2:
        refuse = refuse_unbatched if layer.geometry.dims else refuse_sequences
        made.register_forward_pre_hook(refuse)
    if getattr(made, "padding_mode", "zeros") != "zeros":  # where ``padding`` may not tell
        made._reversed_padding_repeated_twice = list(layer.geometry.pads)
    return made


def collapsed_bias(layer: SourceLayer) -> torch.Tensor:
    """The bias of the collapsed layer, (c2,) in float64."""
    first, second = layer.present_maps()
    slope, offset = layer.linearized.slope, layer.linearized.offset
    shift = shifts_at_output(layer.pairs, slope * first.shift + offset)
    return second.scale * shift + second.shift


def present_layer(layer: SourceLayer) -> Layer:
    """Return the collapsed layer, built again only if a normalization has changed."""
    held, cached = layer.held(), layer.__dict__.get("_present")
    # Compares numbers: version counters would miss writes to ``.data``.
    if cached is None or not all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(held, cached[1], strict=True)
    ):
        cached = collapse_layer(layer), [value.clone() for value in held]
        layer.__dict__["_present"] = cached  # not as a submodule
    return cached[0]


class LayerErrors(NamedTuple):
    """How far a layer's kernel is from the target's.

    ``exact`` is the relative error in float64, ``exact_channel`` the largest of one output's
    weights; ``assembled`` and ``assembled_channel`` are the same in the network's precision, and
    ``channel`` is the output of the latter.
    """

    exact: float
    assembled: float
    exact_channel: float
    assembled_channel: float
    channel: int


def layer_errors(
    layer: SourceLayer,
    kernel: torch.Tensor,
    inputs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> LayerErrors:
    """The relative errors of a layer's kernel in float64 and in the network's precision.

    The first uses the float64 maps and the features; the second uses the rounded parameters of the
    BatchNorm layers, in the network's precision. Each is the largest error of any group.

    Args:
        layer: the source layer.
        kernel: the target's (c2, c0 / groups, *kernel).
        inputs: (c0,), sizes of the layer's inputs, by which each output's weights are multiplied.
        bias: (c2,), the target's, which adds to the size of an output.
    """
    first, second = layer.present_maps()
    exact = first.scale, second.scale
    norms = [(norm, norm_values(norm)) for norm in (layer.first_norm, layer.second_norm)]
    inner, outer = (gamma * torch.rsqrt(var + norm.eps) for norm, (gamma, _, _, var) in norms)
    count = len(layer.pairs)
    targets, sizes = kernel.chunk(count), [None] * count if inputs is None else inputs.chunk(count)
    biases = [None] * count if bias is None else bias.chunk(count)
    whole, channels = [], []
    for kernels in _composed(layer, exact, (inner, outer)):
        whole.append(max(map(relative_error, kernels, targets)))
        channels.append(torch.cat(list(map(channel_errors, kernels, targets, sizes, biases))))
    largest, worst = [float(errors.max()) for errors in channels], int(channels[1].argmax())
    return LayerErrors(whole[0], whole[1], largest[0], largest[1], worst)
