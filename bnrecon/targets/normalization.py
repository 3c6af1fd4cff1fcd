"""What a target's BatchNorms become: without scales and shifts, noisy, frozen or removed.

The comparisons of "Batch Normalization Explained", for any family of networks.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from bnrecon.targets.spec import TargetSpec

__all__ = ["change_normalization", "freeze_statistics"]

Norm = nn.BatchNorm1d | nn.BatchNorm2d
STATISTICS_BATCH = 500  # images that run through the network at once


def change_normalization(network: nn.Module, target: TargetSpec, seed: int) -> nn.Module:
    """Change a network's BatchNorms as ``target`` says; one that says nothing is returned as it is.

    - ``affine=False``: no BatchNorm learns a scale or a shift.
    - ``virtual_batch``: every BatchNorm2d is a ``NoisyBatchNorm2d``.
    - ``initialization``: ``zero_bias`` and ``random_bias`` have no BatchNorm and a bias in every
      linear layer and convolution (Eq. 1). ``frozen_statistics`` and ``frozen_deviations`` have
      frozen BatchNorms without scale and shift, and biases that start at zero; their statistics
      are set by ``freeze_statistics`` before the training. All four learn the same parameters.

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
    if target.initialization != "batchnorm":
        kind = FrozenBatchNorm2d if isinstance(norm, nn.BatchNorm2d) else FrozenBatchNorm1d
    elif target.affine:
        return norm
    return kind(norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=False)


def freeze_statistics(
    network: nn.Module, target: TargetSpec, data: Images, device: torch.device
) -> None:
    """Set the statistics that are frozen in the training, over all training images, in place.

    "Batch Normalization Explained", Section 4: layer by layer μ and σ of Eq. 3 over the training
    set, its images neither cropped nor mirrored. With ``frozen_deviations`` σ alone, and μ = 0:
    the pre-activations' scale without the translation of their zero sets. Other targets are left
    as they are. The images run once for every BatchNorm.
    """
    images = _PlainImages(data, device)
    if target.initialization == "frozen_statistics":
        set_statistics(network, images)
    elif target.initialization == "frozen_deviations":
        norms = [module for module in network.modules() if isinstance(module, Norm)]
        adapt_layers(network, norms, images, lambda _norm, given: given, _set_deviation)


def _set_deviation(norm: nn.Module, _mean: torch.Tensor, variance: torch.Tensor) -> None:
    norm.running_mean.zero_()  # type: ignore[operator]  # a BatchNorm's buffers
    norm.running_var.copy_(variance)  # type: ignore[operator]


class _PlainImages:
    """All training images in batches, as often as they are asked for."""

    def __init__(self, data: Images, device: torch.device) -> None:
        self.data, self.device = data, device

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.data.plain_train_batches(STATISTICS_BATCH, self.device, self.data.sizes[0])
