"""Change a target's BatchNorms: without scales and shifts, noisy, frozen or removed.

The comparisons of "Batch Normalization Explained", for any family of networks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.partition import adapt_layers, set_statistics
from bnrecon.runtime.errors import Interrupted, UserError
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.interruption import StopRequest
from bnrecon.runtime.module_code import added_code
from bnrecon.targets.accuracy import image_bar
from bnrecon.targets.initialization import NORMS, fold_statistics, freeze, initialize_biases
from bnrecon.targets.module_tree import replace_modules
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm
from bnrecon.targets.spec import INITIALIZED_FROM_DATA, TargetSpec


def change_normalization(network: nn.Module, target: TargetSpec, seed: int) -> nn.Module:
    """Change a network's BatchNorms, in place, by the options of ``target``, if set.

    - ``affine=False``: no BatchNorm learns a scale or a shift.
    - ``virtual_batch``: every BatchNorm is a ``NoisyBatchNorm``.
    - ``initialization``: BatchNorms are removed, or do not train, and every linear layer and
      convolution has a bias (Eq. 1), zero except for ``random_bias``. ``initialize_statistics``
      sets the statistics of those that remain before training. All networks learn the same
      parameters, and no scale.

    Raises:
        UserError: the network has no BatchNorm to change.
    """
    changes = target.initialization != "batchnorm"
    if not changes and target.affine and target.virtual_batch is None:
        return network
    norms = _norms(network)
    if not norms:
        raise UserError(
            f"family={target.family}: has no BatchNorm; "
            "leave out affine, virtual_batch and initialization"
        )
    chosen = set(norms).__contains__
    network = replace_modules(network, chosen, lambda norm: _replacement(norm, target))
    if target.virtual_batch is not None:
        return NoisyBatchNorm.convert(network, target.virtual_batch)
    if changes:
        kind = "random" if target.initialization == "random_bias" else "zero"
        initialize_biases(network, kind, seed)
    return network


def _norms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, NORMS)]


def _replacement(norm: nn.Module, target: TargetSpec) -> nn.Module:
    assert isinstance(norm, NORMS)
    if target.initialization in ("zero_bias", "random_bias"):
        if code := added_code(norm, nn.BatchNorm1d):
            raise UserError(
                f"initialization={target.initialization}: {type(norm).__name__} has {code}, which "
                "would be removed with it; give initialization=batchnorm"
            )
        return nn.Identity()
    if target.initialization in INITIALIZED_FROM_DATA:
        freeze(norm)
    if target.initialization in INITIALIZED_FROM_DATA or not target.affine:
        norm.affine = False
        norm.register_parameter("weight", None)
        norm.register_parameter("bias", None)
    return norm


def initialize_statistics(
    network: nn.Module,
    target: TargetSpec,
    data: Images,
    device: torch.device,
    stop: StopRequest | None = None,
) -> None:
    """Set the initial statistics of a training without BatchNorm, in place.

    Layer by layer, over all training images, neither cropped nor mirrored, with μ and σ of Eq. 3:

    - ``frozen_statistics``: (h - μ) / σ during all of training ("Batch Normalization Explained",
      Section 4).
    - ``frozen_scale``: h / sqrt(μ² + σ²). The pre-activations have the same mean square, 1, and
      their zero sets are not translated.
    - ``folded_statistics``: the function of ``frozen_statistics``, with σ and μ in the weights and
      biases of the preceding layers, where training changes them.

    Other targets are not changed. The images run once for every BatchNorm, in float32.

    Raises:
        UserError: a BatchNorm to fold does not follow a linear layer or convolution.
        Interrupted: ``stop`` requests it.
    """
    if target.initialization not in INITIALIZED_FROM_DATA:
        return
    norms = _norms(network)
    title = "statistics of the training images"
    with image_bar(len(norms) * data.sizes[0], title) as bar, exact_float32():
        images = _PlainImages(data, device, bar, stop)
        if target.initialization == "frozen_scale":
            adapt_layers(network, norms, images, lambda _norm, x: x, _set_scale)
            return
        set_statistics(network, images)
        if target.initialization == "folded_statistics":
            for norm, layer in _layers_before(network, next(iter(images))[:1]).items():
                _fold(norm, layer)


def _set_scale(norm: nn.Module, mean: torch.Tensor, variance: torch.Tensor) -> None:
    norm.running_mean.zero_()  # type: ignore[operator]  # a BatchNorm's buffers
    norm.running_var.copy_(variance + mean**2)  # type: ignore[operator]


def _fold(norm: nn.Module, layer: nn.Module) -> None:
    """Move the statistics into the layer; the norm becomes the identity."""
    assert isinstance(norm, NORMS)
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    fold_statistics(layer, mean, variance, norm.eps)
    mean.zero_()
    variance.fill_(1 - norm.eps)


def _layers_before(network: nn.Module, inputs: torch.Tensor) -> dict[nn.Module, nn.Module]:
    """The linear layer or convolution before each BatchNorm, recorded in a forward pass."""
    made: list[tuple[torch.Tensor, nn.Module]] = []  # keeps outputs alive: their ids stay unique
    preceding: dict[nn.Module, nn.Module] = {}

    def note(layer: nn.Module, _args: tuple, output: torch.Tensor) -> None:
        made.append((output, layer))

    def find(norm: nn.Module, args: tuple) -> None:
        before = [layer for output, layer in made if output is args[0]]
        if not before or before[0] in preceding.values():
            raise UserError(
                "initialization=folded_statistics: a BatchNorm does not follow a linear layer or "
                "convolution of its own; give initialization=frozen_statistics"
            )
        preceding[norm] = before[0]

    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad(), contextlib.ExitStack() as after:
        for layer in layers:
            after.enter_context(layer.register_forward_hook(note))
        for norm in _norms(network):
            after.enter_context(norm.register_forward_pre_hook(find))
        after.callback(network.train, network.training)
        network.eval()(inputs)
    return preceding


class _PlainImages:
    """All training images in batches; can be iterated repeatedly."""

    def __init__(
        self, data: Images, device: torch.device, bar: tqdm, stop: StopRequest | None
    ) -> None:
        self.data, self.device, self.bar, self.stop = data, device, bar, stop
        pixels = data.shape[1] * data.shape[2]
        # As many pixels as 500 images of CIFAR: a ResNet's first layers then take 1 GB.
        self.batch = max(1, min(500, 500 * 32 * 32 // pixels))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for images in self.data.plain_train_batches(self.batch, self.device, self.data.sizes[0]):
            if self.stop is not None and self.stop.reason is not None:
                raise Interrupted(
                    f"stopped because {self.stop.reason}, while statistics were computed; "
                    "nothing is saved yet; rerun the command to start again"
                )
            yield images
            self.bar.update(len(images))
