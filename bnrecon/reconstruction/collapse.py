"""The one layer that a source layer computes, and how far it is from the target's."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from bnrecon.construction.two_layer import channel_errors, composed_weight, relative_error
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales
from bnrecon.reconstruction.affine_map import AffineMap, rounded_scale
from bnrecon.reconstruction.kernels import Layer, make_layer, weight_of
from bnrecon.reconstruction.replaced_layer import refuse_sequences
from bnrecon.runtime.precision import Precision
from bnrecon.runtime.torch_modes import outside_torch_modes

if TYPE_CHECKING:
    from bnrecon.reconstruction.source_layer import SourceLayer

__all__ = [
    "LayerErrors",
    "collapse_layer",
    "collapsed_bias",
    "fold_inner_shift",
    "layer_errors",
    "present_layer",
    "shift_at_output",
]


def shift_at_output(features: Features, shift: torch.Tensor) -> torch.Tensor:
    """What a shift t (c1,) of the intermediate channels adds: Σ_l Σ_tap B[i, l, tap] t_l, (c2,)."""
    if not bool(shift.any()):
        return torch.zeros(features.shape.outputs, dtype=torch.float64, device=shift.device)
    if features.identity:
        return shift.reshape(features.shape.outputs, -1).sum(1)
    added = torch.zeros(features.shape.outputs, dtype=torch.float64, device=shift.device)
    for part, second in features.second_parts(shift.device):
        added += second.flatten(2).sum(2, dtype=torch.float64) @ shift[part]
    return added


def _shifts_at_output(pairs: Sequence[Features], shift: torch.Tensor) -> torch.Tensor:
    """The same for the intermediate channels and outputs of all groups."""
    parts = shift.chunk(len(pairs))
    return torch.cat([shift_at_output(*each) for each in zip(pairs, parts, strict=True)])


def fold_inner_shift(
    pairs: Sequence[Features], first: AffineMap, second: AffineMap
) -> tuple[AffineMap, AffineMap]:
    """The same layer with a first BatchNorm whose β is 0, nothing nonlinear being in between.

    All padding comes before A, so that a shift t of the intermediate channels reaches every place
    of the output as the constant B t, the kernel's taps summed. The first map x -> s ∘ x + t
    becomes s ∘ (x - μ), μ being its running mean; what the output loses, B (t + s ∘ μ), the second
    map adds. A pair then has c1 + 2 c2 trainable parameters (Burkholz 2024, Sect. 3.2) instead of
    2 (c1 + c2).

    Args:
        pairs: the frozen pair of each group.
        first: s and t (groups c1,).
        second: the map (c2,) of B's output; its running mean moves with that output.
    """
    shift = -first.scale * first.mean.double()  # with which β = t + s ∘ μ is 0
    added = _shifts_at_output(pairs, shift - first.shift)
    return dataclasses.replace(first, shift=shift), dataclasses.replace(
        second, shift=second.shift - second.scale * added, mean=second.mean.double() + added
    )


def _composed(
    layer: SourceLayer, *maps: tuple[torch.Tensor, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """For each pair of scales the kernels outer ∘ (B diag(inner) A) of all groups.

    In the precision of the scales; the features of a group are formed once.
    """
    kernels: list[list[torch.Tensor]] = [[] for _ in maps]
    count = len(layer.pairs)
    for group, features in enumerate(layer.pairs):
        matrix = feature_operator(features, torch.float64, maps[0][0].device)
        for (inner, outer), found in zip(maps, kernels, strict=True):
            own = layer.linearized.slope * inner.chunk(count)[group]
            scales = Scales(own, outer.chunk(count)[group])
            rounded = matrix.to(Precision.of(inner.dtype))
            found.append(composed_weight(rounded, scales, features))
        del matrix, rounded  # before the next is formed
    return kernels


@outside_torch_modes
def collapse_layer(layer: SourceLayer) -> Layer:
    """The one layer that a source layer computes, from its float64 maps and its features.

    Its weight is W' = outer ∘ (B diag(inner) A): nothing of the target enters. With an activation
    that is only nearly linear, this is the layer it would be if it were.
    """
    kind, dtype = layer.kind, layer.second_norm.weight.dtype
    first, second = layer.present_maps()
    (kernels,) = _composed(layer, (first.scale, second.scale))
    kernel = torch.cat(kernels).to(dtype)
    weight = weight_of(kernel, kind, len(layer.pairs)).contiguous()
    names = set(inspect.signature(kind).parameters) & set(kind.__constants__)
    made = make_layer(
        kind,
        nn.Parameter(weight),
        nn.Parameter(collapsed_bias(layer).to(dtype)),
        **{name: getattr(layer, name) for name in names},
    )
    if layer.folded and kind is nn.Linear:
        made.register_forward_pre_hook(refuse_sequences)
    return made


def collapsed_bias(layer: SourceLayer) -> torch.Tensor:
    """The bias of that layer, (c2,) in float64."""
    first, second = layer.present_maps()
    slope, offset = layer.linearized.slope, layer.linearized.offset
    shift = _shifts_at_output(layer.pairs, slope * first.shift + offset)
    return second.scale * shift + second.shift


def present_layer(layer: SourceLayer) -> Layer:
    """The same, made again only when a normalization has changed since."""
    held, known = layer.held(), layer.__dict__.get("_present")
    if known is None or not _same(held, known[1]):
        known = collapse_layer(layer), [value.clone() for value in held]
        layer.__dict__["_present"] = known  # not as a part of the network
    return known[0]


def _same(now: Sequence[torch.Tensor], then: Sequence[torch.Tensor]) -> bool:
    """Whether tensors hold the same numbers, in the same type and on the same device.

    Versions would not count writes to ``.data``.
    """
    return all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(now, then, strict=True)
    )


class LayerErrors(NamedTuple):
    """How far a layer's kernel is from the target's.

    Args:
        exact: the relative error in float64.
        assembled: the same in the network's precision.
        exact_channel: the largest relative error of one output's weights, in float64.
        assembled_channel: the same in the network's precision.
        channel: the output of which that is.
    """

    exact: float
    assembled: float
    exact_channel: float
    assembled_channel: float
    channel: int


def layer_errors(
    layer: SourceLayer, kernel: torch.Tensor, inputs: torch.Tensor | None = None
) -> LayerErrors:
    """The relative errors of a layer's kernel in float64 and in the network's precision.

    The first from its float64 maps and its features; the second from the rounded parameters that
    its BatchNorm layers hold, in the precision the network runs in. Of several groups it is the
    largest error of one.

    Args:
        layer: the source layer.
        kernel: the target's (c2, c0 / groups, *kernel).
        inputs: (c0,), sizes of the layer's inputs, by which the weights of one output are weighed.
    """
    first, second = layer.present_maps()
    exact = first.scale, second.scale
    rounded = rounded_scale(layer.first_norm), rounded_scale(layer.second_norm)
    count = len(layer.pairs)
    targets, sizes = kernel.chunk(count), [None] * count if inputs is None else inputs.chunk(count)
    whole, channels = [], []
    for kernels in _composed(layer, exact, rounded):
        whole.append(max(map(relative_error, kernels, targets)))
        channels.append(torch.cat(list(map(channel_errors, kernels, targets, sizes))))
    largest, worst = [float(errors.max()) for errors in channels], int(channels[1].argmax())
    return LayerErrors(whole[0], whole[1], largest[0], largest[1], worst)
