"""Rough estimates of a run's duration: operations over a measured rate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from bnrecon.reconstruction.attention import unpack
from bnrecon.reconstruction.geometry import geometry_of, pad
from bnrecon.reconstruction.kernels import LAYERS, Layer
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.substitution import share_parameters, uncompiled


class Positions(NamedTuple):
    """The number of a layer's positions for one image."""

    inside: int  # in its padded input, where the pair's first convolution is applied
    out: int  # in its output, where the pair's second convolution is applied
    # Where each of the target layer's weights is applied once: in the output or, for a transposed
    # convolution, in the input
    applied: int


def pixels(network: nn.Module, shape: tuple[int, int, int]) -> dict[str, Positions]:
    """The positions of each layer that can be rebuilt, for one image, by its name in the source.

    The positions of a layer that is called several times are added; a layer that is not called has
    0.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1))
    >>> pixels(network, (3, 8, 8))
    {'0': Positions(inside=100, out=16, applied=16)}
    """
    running = unpack(share_parameters(uncompiled(network)))
    layers = {name: part for name, part in running.named_modules() if isinstance(part, LAYERS)}
    positions = dict.fromkeys(layers, Positions(0, 0, 0))

    def add(name: str, module: Layer, inputs: tuple, named: dict, output: torch.Tensor) -> None:
        seen = _positions(module, inputs[0] if inputs else named["input"], output)
        positions[name] = Positions(*map(sum, zip(positions[name], seen, strict=True)))

    for name, module in layers.items():
        module.register_forward_hook(partial(add, name), with_kwargs=True)
    first = next(running.parameters())
    with torch.inference_mode():
        running(torch.zeros(1, *shape, device=first.device, dtype=first.dtype))
    return positions


def _positions(module: Layer, x: torch.Tensor, output: torch.Tensor) -> Positions:
    """The positions of one call."""
    geometry = geometry_of(module)
    dims = geometry.dims
    if not dims:
        rows = x.shape[:-1].numel()
        return Positions(rows, rows, rows)
    images = len(x) if x.ndim == dims + 2 else 1
    single = x.reshape(images, *x.shape[-dims - 1 :])
    padded = pad(single[:1, :1], geometry, output.shape[-dims:])
    out = output.shape[-dims:].numel()
    taken = x.shape[-dims:].numel() if geometry.spread else out
    return Positions(images * padded.numel(), images * out, images * taken)


def multiply_adds(network: nn.Module, positions: Mapping[str, Positions]) -> int:
    """Multiply-adds of one image's forward pass through the convolutions and linear layers."""
    modules = dict(unpack(uncompiled(network)).named_modules())
    return sum(modules[name].weight.numel() * each.applied for name, each in positions.items())


def source_flops(plan: Plan, positions: Mapping[str, Positions]) -> int:
    """Operations of one image's forward pass through the source network.

    Implicit id_cond layers cost as much as the target's. A transposed convolution's pair is also
    applied to the inserted zeros.
    """
    total = 0
    for layer in plan.layers:
        inside, out, _ = positions[layer.name]
        shape = layer.shape
        if layer.implicit:
            each = shape.equations * out
        else:
            each = layer.width * (inside * shape.inputs + out * shape.outputs * shape.taps)
        total += 2 * layer.groups * each
    return total
