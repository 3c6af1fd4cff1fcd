"""Target networks: VGG, ResNet and MLP, and the number of a network's parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from bnrecon.runtime.errors import UserError, require_choice

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.01),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "centred_sigmoid": lambda: CentredSigmoid(),
}


class CentredSigmoid(nn.Module):
    """sigmoid(x) - 1/2 = tanh(x / 2) / 2, which maps zero padding to zero.

    >>> CentredSigmoid()(torch.zeros(1))
    tensor([0.])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply elementwise to any shape."""
        return torch.sigmoid(x) - 0.5


def make_activation(name: str) -> nn.Module:
    """Make an activation by name: relu, leaky_relu (slope 0.01), tanh, sigmoid, centred_sigmoid."""
    require_choice("activation=", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def vgg(
    shape: tuple[int, int, int],
    classes: int,
    width: int,
    groups: list[int],
    activation: str,
    poolings: int | None = None,
    norm_position: str = "before",
    padding: str = "zeros",
) -> nn.Module:
    """Build a VGG: groups of 3x3 convolutions with BatchNorm, max-pooling, one linear layer.

    The 18 layers of Burkholz 2024, Sect. 3.2 are 17 convolutions in groups (2, 3, 4, 4, 4) and the
    linear layer; at width 64 on RGB images they have 594,378 parameters, BatchNorm's included.

    For images of a shape (C, H, W); the options are those of ``VggTarget``. A group's 2x2
    max-pooling is skipped if the side is already 1 (``skipped_poolings``).

    >>> network = vgg((3, 32, 32), 10, width=64, groups=[2, 3, 4, 4, 4], activation="relu")
    >>> parameter_count(network)
    594378
    """
    channels, *sides = shape
    features, mode = nn.Sequential(), cast(Any, padding)
    for group, size in enumerate(groups, 1):
        for number in range(1, size + 1):
            name = f"{group}_{number}"
            if padding == "reflect" and min(sides) < 2:
                raise UserError(f"padding=reflect: conv{name} has inputs of one pixel a side")
            conv = nn.Conv2d(channels, width, 3, padding=1, bias=False, padding_mode=mode)
            features.add_module(f"conv{name}", conv)
            if norm_position == "before":
                features.add_module(f"norm{name}", nn.BatchNorm2d(width))
            features.add_module(f"act{name}", make_activation(activation))
            if norm_position == "after":
                features.add_module(f"norm{name}", nn.BatchNorm2d(width))
            channels = width
        if min(sides) > 1 and (poolings is None or group <= poolings):
            features.add_module(f"pool{group}", nn.MaxPool2d(2))
            sides = [side // 2 for side in sides]
    if max(sides) > 1:
        features.add_module("average", nn.AdaptiveAvgPool2d(1))
    linear = nn.Linear(width, classes)
    return nn.Sequential(OrderedDict(features=features, flatten=nn.Flatten(), classifier=linear))


def skipped_poolings(shape: tuple[int, int, int], groups: list[int]) -> int:
    """How many of a VGG's poolings are skipped for images of this shape (C, H, W).

    >>> skipped_poolings((1, 8, 8), [1, 1, 1, 1, 1]), skipped_poolings((3, 32, 32), [2, 3, 4, 4, 4])
    (2, 0)
    """
    halvings = min(shape[1:]).bit_length() - 1
    return max(0, len(groups) - halvings)


def mlp(
    shape: tuple[int, int, int], classes: int, width: int, depth: int, activation: str
) -> nn.Module:
    """Build ``depth`` hidden linear layers of ``width`` with BatchNorm, and a linear layer."""
    inputs = shape[0] * shape[1] * shape[2]
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    for number in range(1, depth + 1):
        network.add_module(f"linear{number}", nn.Linear(inputs, width, bias=False))
        network.add_module(f"norm{number}", nn.BatchNorm1d(width))
        network.add_module(f"act{number}", make_activation(activation))
        inputs = width
    network.add_module("classifier", nn.Linear(inputs, classes))
    return network


def resnet(
    shape: tuple[int, int, int], classes: int, depth: int, width: int, stem: str
) -> nn.Module:
    """Build torchvision's ResNet-18, ResNet-34 or ResNet-50, with ``width`` channels in stage 1.

    The stem ``imagenet`` is the 7x7 convolution of stride 2 and the max-pooling; ``cifar`` is a 3x3
    convolution of stride 1 without pooling, as is usual for 32x32 images; ``auto`` chooses by the
    image's side.
    """
    network = _scaled_resnet(depth, width, classes)
    small = stem == "cifar" or (stem == "auto" and min(shape[1:]) < 64)
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    network.conv1 = nn.Conv2d(shape[0], width, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.bn1 = nn.BatchNorm2d(width)
    if small:
        network.maxpool = nn.Identity()
    expansion = network.fc.in_features // 512  # 1 in basic blocks, 4 in bottlenecks
    network.fc = nn.Linear(8 * width * expansion, classes)
    return network


def _scaled_resnet(depth: int, width: int, classes: int) -> Any:
    """A ResNet with stages scaled by ``width`` / 64, and the original stem and head."""
    from torchvision.models import resnet as original  # takes two seconds to load

    class Scaled(original.ResNet):
        def _make_layer(self, block: Any, planes: int, *rest: Any, **options: Any) -> nn.Sequential:
            if planes == 64:  # the first stage: its input is the stem's output
                self.inplanes = width
            return super()._make_layer(block, planes * width // 64, *rest, **options)

    block = original.Bottleneck if depth == 50 else original.BasicBlock
    network = Scaled(block, [2, 2, 2, 2] if depth == 18 else [3, 4, 6, 3], num_classes=classes)
    network.__class__ = original.ResNet  # equivalent once built, and can be pickled
    return network


def require_side(family: str, shape: tuple[int, int, int], least: int) -> None:
    """Raise ``UserError`` for images whose shorter side is below ``least`` pixels.

    >>> require_side("resnet9", (3, 6, 20), 8)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: resnet9: images of 20x6 pixels are too small; ...
    """
    height, width = shape[1:]
    if min(height, width) < least:
        raise UserError(
            f"{family}: images of {width}x{height} pixels are too small; "
            f"give {least}x{least} or larger ones, as with data.side={least}"
        )


def parameter_count(network: nn.Module) -> int:
    """Number of a network's parameters."""
    return sum(p.numel() for p in network.parameters())


def minimum_width_count(network: nn.Module) -> int:
    """Trained parameters of a source of minimum width: sum over layers of (n - c2 + 1) + 2 c2.

    A convolution has n = c2 c0 kh kw equations, n - c2 + 1 inner scales (Burkholz 2024, Theorem
    2.2), and a scale and a shift for each of the c2 outputs. For the VGG18 of width 64 this is the
    592,657 of Sect. 3.2.

    >>> minimum_width_count(vgg((3, 32, 32), 10, 64, [2, 3, 4, 4, 4], "relu"))
    592657
    """
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    return sum(m.weight.numel() - m.out_channels + 1 + 2 * m.out_channels for m in convolutions)
