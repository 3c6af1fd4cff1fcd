"""The normalized layers of a network as matrices: their inputs, weights and statistics."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class NormalizedLayer:
    """A linear layer or convolution in front of a BatchNorm, on one batch, float64."""

    name: str  # of the linear layer
    points: np.ndarray  # its inputs (B, D); of a convolution the patches, each position a point
    weight: np.ndarray  # (K, D)
    batch_mean: np.ndarray  # mu (K,), as the BatchNorm module computes it
    batch_deviation: np.ndarray  # sigma (K,), with 1/B and without the module's epsilon
    stored_mean: np.ndarray  # the running mean that the network was trained to (K,)
    # Where a stored pre-activation is zero: running mean - beta sigma / gamma (K,)
    stored_threshold: np.ndarray


Linear = nn.Linear | nn.Conv2d
Norm = nn.BatchNorm1d | nn.BatchNorm2d


@torch.no_grad()
def find_normalized_layers(network: nn.Module, images: torch.Tensor) -> list[NormalizedLayer]:
    """The layers that a BatchNorm follows, in order, on this batch in training mode.

    The network itself is left as it is.

    Raises:
        ValueError: such a layer has a bias, or more than one group.
    """
    network = copy.deepcopy(network).double().train()
    names = {id(module): name for name, module in network.named_modules()}
    produced: list[tuple[Linear, torch.Tensor, torch.Tensor]] = []
    layers: list[NormalizedLayer] = []

    def remember(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        assert isinstance(module, Linear)
        produced.append((module, inputs[0], output))

    def collect(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(norm, Norm)
        for layer, before, output in produced:
            if output is inputs[0]:
                layers.append(_as_matrices(names[id(layer)], layer, before, output, norm))

    for module in network.modules():
        if isinstance(module, Linear):
            module.register_forward_hook(remember)
        elif isinstance(module, Norm):
            module.register_forward_pre_hook(collect)
    network(images.double())
    return layers


def _as_matrices(
    name: str, layer: Linear, inputs: torch.Tensor, output: torch.Tensor, norm: Norm
) -> NormalizedLayer:
    """One layer; mean and deviation of the batch are computed by a BatchNorm without a past."""
    if layer.bias is not None or getattr(layer, "groups", 1) > 1:
        raise ValueError(f"{name}: must have no bias and one group")
    stored_mean, variance = _statistics(norm)
    threshold = stored_mean - norm.bias * (variance + norm.eps).sqrt() / norm.weight
    fresh = type(norm)(norm.num_features, momentum=1.0, affine=False, dtype=torch.float64).train()
    fresh(output)
    mean, unbiased = _statistics(fresh)
    count = output.numel() // norm.num_features
    deviation = (unbiased * ((count - 1) / count)).sqrt()
    return NormalizedLayer(
        name,
        _patches(layer, inputs).numpy(),
        layer.weight.flatten(1).numpy(),
        *(array.numpy() for array in (mean, deviation, stored_mean, threshold)),
    )


def _statistics(norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the running mean and of the running, unbiased variance."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean.clone(), norm.running_var.clone()


def _patches(layer: Linear, inputs: torch.Tensor) -> torch.Tensor:
    """The vectors that a layer's weight is multiplied by (B, D)."""
    if isinstance(layer, nn.Linear):
        return inputs
    assert not isinstance(layer.padding, str)
    columns = nn.functional.unfold(
        inputs,
        kernel_size=layer.kernel_size,
        dilation=layer.dilation,
        padding=layer.padding,
        stride=layer.stride,
    )
    return columns.transpose(1, 2).flatten(0, 1)
