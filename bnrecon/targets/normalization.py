"""What a target's BatchNorms become: without scales and shifts, noisy, frozen or removed.

The comparisons of "Batch Normalization Explained", for any family of networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.partition import adapt_layers, set_statistics
from bnrecon.runtime.errors import UserError
from bnrecon.targets.initialization import (
    FrozenBatchNorm1d,
    FrozenBatchNorm2d,
    initialize_biases,
)
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm2d
from bnrecon.targets.spec import INITIALIZED_FROM_DATA, TargetSpec

__all__ = ["change_normalization", "initialize_statistics"]

Norm = nn.BatchNorm1d | nn.BatchNorm2d
STATISTICS_BATCH = 500  # images that run through the network at once


def change_normalization(network: nn.Module, target: TargetSpec, seed: int) -> nn.Module:
    """Change a network's BatchNorms as ``target`` says; one that says nothing is returned as it is.

    - ``affine=False``: no BatchNorm learns a scale or a shift.
    - ``virtual_batch``: every BatchNorm2d is a ``NoisyBatchNorm2d``.
    - ``initialization``: BatchNorms are removed, or do not train, and every linear layer and
      convolution has a bias (Eq. 1), all zero but with ``random_bias``. The statistics of the
      others are set by ``initialize_statistics`` before the training. All learn the same
      parameters, and none learns a scale.

    Args:
        network: changed in place.
        target: its options.
        seed: of the random biases.

    Raises:
        UserError: where the network has no BatchNorm to change.
    """
    removed = target.initialization != "batchnorm"
    if not removed and target.affine and target.virtual_batch is None:
        return network
    if not any(isinstance(module, Norm) for module in network.modules()):
        raise UserError(
            f"family={target.family}: has no BatchNorm; "
            "leave out affine, virtual_batch and initialization"
        )
    if target.virtual_batch is not None:
        return NoisyBatchNorm2d.convert(_each_norm(network, target), target.virtual_batch)
    network = _each_norm(network, target)
    if removed:
        kind = "random" if target.initialization == "random_bias" else "zero"
        initialize_biases(network, kind, seed)
    return network


def _each_norm(network: nn.Module, target: TargetSpec) -> nn.Module:
    """Replace every BatchNorm by what ``target`` wants."""
    if isinstance(network, Norm):
        return _replacement(network, target)
    for name, child in network.named_children():
        setattr(network, name, _each_norm(child, target))
    return network


def _replacement(norm: Norm, target: TargetSpec) -> nn.Module:
    kind: type[nn.Module] = type(norm)
    if target.initialization in ("zero_bias", "random_bias"):
        return nn.Identity()
    if target.initialization in INITIALIZED_FROM_DATA:
        kind = FrozenBatchNorm2d if isinstance(norm, nn.BatchNorm2d) else FrozenBatchNorm1d
    elif target.affine:
        return norm
    return kind(norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=False)


def initialize_statistics(
    network: nn.Module, target: TargetSpec, data: Images, device: torch.device
) -> None:
    """Set the statistics with which a training without BatchNorm starts, in place.

    Layer by layer, over all training images, neither cropped nor mirrored, with μ and σ of Eq. 3:

    - ``frozen_statistics``: (h - μ) / σ in the whole training ("Batch Normalization Explained",
      Section 4).
    - ``frozen_scale``: h / sqrt(μ² + σ²). The pre-activations have the same mean square, 1, and
      their zero sets are not translated.
    - ``folded_statistics``: the function of ``frozen_statistics``, with σ and μ in the weights and
      biases of the layers before, where the training changes them.

    Other targets are left as they are. The images run once for every BatchNorm.

    Raises:
        UserError: where a BatchNorm to fold does not follow a linear layer or convolution.
    """
    if target.initialization not in INITIALIZED_FROM_DATA:
        return
    images = _PlainImages(data, device)
    if target.initialization == "frozen_scale":
        adapt_layers(network, _norms(network), images, lambda _norm, given: given, _set_scale)
        return
    set_statistics(network, images)
    if target.initialization == "folded_statistics":
        for norm, layer in _layers_before(network, next(iter(images))[:1]).items():
            _fold(norm, layer)


def _norms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, Norm)]


def _set_scale(norm: nn.Module, mean: torch.Tensor, variance: torch.Tensor) -> None:
    norm.running_mean.zero_()  # type: ignore[operator]  # a BatchNorm's buffers
    norm.running_var.copy_(variance + mean**2)  # type: ignore[operator]


@torch.no_grad()
def _fold(norm: nn.Module, layer: nn.Module) -> None:
    """Move the statistics into the layer; the norm is the identity from then on."""
    weight, bias, mean, variance, eps = (
        cast(Any, value)
        for value in (layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps)
    )
    scale = (variance.double() + eps).rsqrt()
    weight.mul_(scale.to(weight).reshape(-1, *[1] * (weight.dim() - 1)))
    bias.copy_((bias.double() - mean.double()) * scale)
    mean.zero_()
    variance.fill_(1 - eps)


def _layers_before(network: nn.Module, inputs: torch.Tensor) -> dict[nn.Module, nn.Module]:
    """The linear layer or convolution whose output each BatchNorm is given, found in a run."""
    made: list[tuple[torch.Tensor, nn.Module]] = []  # holds the outputs: an id is used once
    found: dict[nn.Module, nn.Module] = {}

    def note(layer: nn.Module, _given: tuple, output: torch.Tensor) -> None:
        made.append((output, layer))

    def find(norm: nn.Module, given: tuple) -> None:
        before = [layer for output, layer in made if output is given[0]]
        if not before or before[0] in found.values():
            raise UserError(
                "initialization=folded_statistics: a BatchNorm does not follow a linear layer or "
                "convolution of its own; give initialization=frozen_statistics"
            )
        found[norm] = before[0]

    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    handles += [norm.register_forward_pre_hook(find) for norm in _norms(network)]
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(inputs)
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()
    return found


class _PlainImages:
    """All training images in batches, as often as they are asked for."""

    def __init__(self, data: Images, device: torch.device) -> None:
        self.data, self.device = data, device

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.data.plain_train_batches(STATISTICS_BATCH, self.device, self.data.sizes[0])
