"""How far the outputs of a source layer are off, tried on random inputs."""

from __future__ import annotations

import copy

import torch

from bnrecon.reconstruction.folding import FoundLayer
from bnrecon.reconstruction.geometry import geometry_of
from bnrecon.reconstruction.source_layer import SourceLayer

__all__ = ["output_error"]

PROBES = 64  # random inputs, each as large as the layer's kernel


@torch.no_grad()
def output_error(layer: SourceLayer, found: FoundLayer, largest: torch.Tensor) -> float:
    """The largest difference of an output to the target layer's in float64.

    Args:
        layer: the source layer, in the precision in which it computes.
        found: the target layer, and the BatchNorm that is folded into it.
        largest: (c0,), the bound of the inputs by channel; they are uniform within it.
    """
    weight, geometry = found.module.weight, geometry_of(found.module)
    cropped = -min(0, *geometry.pads) if geometry.pads else 0
    sides = [
        step * (side - 1) + 1 + 2 * cropped
        for step, side in zip(geometry.dilation, geometry.kernel, strict=True)
    ]
    shape = (PROBES, len(largest), *sides)
    numbers = 2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1
    probes = numbers.to(weight) * largest.to(weight).reshape(-1, *(1 for _ in sides))
    wanted = copy.deepcopy(found.module).double()(probes.double())
    if found.norm is not None:
        wanted = copy.deepcopy(found.norm).double()(wanted)
    return float((layer(probes).double() - wanted).abs().max())
