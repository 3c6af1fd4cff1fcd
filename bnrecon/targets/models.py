"""Target networks and the register of their families."""

from __future__ import annotations

from collections.abc import Callable

import torchvision
from torch import nn

from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.own_code import Registered, blamed

__all__ = [
    "ACTIVATIONS",
    "FAMILIES",
    "Builder",
    "activation",
    "build",
    "minimum_width_count",
    "mlp",
    "parameter_count",
    "register_target",
    "resnet",
    "target_code",
    "vgg",
]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.01),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}

# A builder takes the image shape (C, H, W), the number of classes and the target's configuration.
Builder = Callable[..., nn.Module]
FAMILIES: dict[str, Registered] = {}


def register_target(name: str, version: str | None = None) -> Callable[[Builder], Builder]:
    """Register a family of target networks under a name that ``target.family`` accepts.

    The builder is called as ``builder(shape, classes, width, **options)`` with the width and options of the target's yaml. A
    trained target belongs to the source files of the module that registers and of your modules that it imports (a changed comment is
    a rerun), and to the values bound to the builder; with a ``version`` to that instead: change it when the network changes.

    >>> @register_target("two_linear")
    ... def two_linear(shape, classes, width):
    ...     inputs = shape[0] * shape[1] * shape[2]
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes))
    >>> build("two_linear", (1, 8, 8), 10, width=5)[3].out_features
    10
    """

    def add(builder: Builder) -> Builder:
        FAMILIES[name] = Registered(f"target family {name}", builder, version)
        return builder

    return add


def target_code(family: str) -> str | None:
    """A fingerprint of a user's family of networks, ``None`` for bnrecon's own."""
    return FAMILIES[family].fingerprint


def build(family: str, shape: tuple[int, int, int], classes: int, **options) -> nn.Module:
    """Build a network of a registered family; raise ``UserError`` for an unknown one or for options it does not take."""
    check_options(family, **options)
    with blamed(FAMILIES[family]):
        try:
            network = FAMILIES[family].function(shape, classes, **options)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:  # raised inside, not by the call
                raise
            raise UserError(
                f"target family {family} does not take these options ({error})"
            ) from None
    if not isinstance(network, nn.Module):
        raise UserError(
            f"target family {family}: it returned {type(network).__name__}; it must return a torch.nn.Module"
        )
    return network


def check_options(family: str, **options) -> None:
    """Raise ``UserError`` for a family, activation, depth or stem that there is not, before any data are read."""
    if family not in FAMILIES:
        raise UserError(f"target.family={family}: {nearest(family, FAMILIES)}")
    if "activation" in options:
        _activation(options["activation"])
    if family == "resnet":
        _check_resnet(options["depth"], options["stem"])


def activation(name: str) -> nn.Module:
    """Build an activation by name: relu, leaky_relu (slope 0.01), tanh or sigmoid."""
    if name not in ACTIVATIONS:
        raise UserError(f"target.activation={name}: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


@register_target("vgg")
def vgg(
    shape: tuple[int, int, int], classes: int, width: int, groups: list[int], activation: str
) -> nn.Module:
    """Build a VGG: groups of 3x3 convolutions, each with BatchNorm, a 2x2 max-pool after each group, one linear layer.

    The 18 layers of Burkholz 2024, Sect. 3.2 are 17 convolutions in groups (2, 3, 4, 4, 4) and the linear layer; at width
    64 on RGB images they have 594,378 parameters, BatchNorm's included. A pooling that would go below side 1 is skipped;
    ``network.skipped_poolings`` counts them. What side is left is averaged.

    >>> network = vgg((3, 32, 32), 10, width=64, groups=[2, 3, 4, 4, 4], activation="relu")
    >>> sum(p.numel() for p in network.parameters())
    594378
    """
    channels, *sides = shape
    features, skipped = nn.Sequential(), 0
    for group, size in enumerate(groups):
        for number in range(size):
            name = f"{group + 1}_{number + 1}"
            features.add_module(f"conv{name}", nn.Conv2d(channels, width, 3, padding=1, bias=False))
            features.add_module(f"norm{name}", nn.BatchNorm2d(width))
            features.add_module(f"act{name}", _activation(activation))
            channels = width
        if min(sides) < 2:
            skipped += 1
            continue
        features.add_module(f"pool{group + 1}", nn.MaxPool2d(2))
        sides = [side // 2 for side in sides]
    if max(sides) > 1:
        features.add_module("average", nn.AdaptiveAvgPool2d(1))
    network = nn.Sequential()
    network.add_module("features", features)
    network.add_module("flatten", nn.Flatten())
    network.add_module("classifier", nn.Linear(width, classes))
    network.skipped_poolings = skipped
    return network


_activation = activation  # the families below have a parameter of that name


@register_target("mlp")
def mlp(
    shape: tuple[int, int, int], classes: int, width: int, depth: int, activation: str
) -> nn.Module:
    """Build a fully connected network of ``depth`` hidden layers, each with BatchNorm, and a linear layer."""
    inputs = shape[0] * shape[1] * shape[2]
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    for number in range(1, depth + 1):
        network.add_module(f"linear{number}", nn.Linear(inputs, width, bias=False))
        network.add_module(f"norm{number}", nn.BatchNorm1d(width))
        network.add_module(f"act{number}", _activation(activation))
        inputs = width
    network.add_module("classifier", nn.Linear(inputs, classes))
    return network


class _ScaledResNet(torchvision.models.ResNet):
    """torchvision's ResNet with all widths multiplied by ``width / 64``, which its own arguments do not offer."""

    def __init__(self, block, layers: list[int], width: int, **options):
        self._width = width
        super().__init__(block, layers, **options)

    def _make_layer(
        self, block, planes: int, blocks: int, stride: int = 1, dilate: bool = False
    ) -> nn.Sequential:
        if planes == 64:  # the first stage: what the stem hands on
            self.inplanes = self._width
        return super()._make_layer(block, planes * self._width // 64, blocks, stride, dilate)


_RESNETS = {
    18: (torchvision.models.resnet.BasicBlock, [2, 2, 2, 2]),
    50: (torchvision.models.resnet.Bottleneck, [3, 4, 6, 3]),
}


def _check_resnet(depth: int, stem: str) -> None:
    if depth not in _RESNETS:
        raise UserError(f"target.depth={depth}: a resnet is built with depth 18 or 50")
    if stem not in ("auto", "cifar", "imagenet"):
        raise UserError(f"target.stem={stem}: {nearest(stem, ('auto', 'cifar', 'imagenet'))}")


@register_target("resnet")
def resnet(
    shape: tuple[int, int, int], classes: int, depth: int, width: int, stem: str
) -> nn.Module:
    """Build torchvision's ResNet-18 or ResNet-50 (``depth``), first stage of ``width`` channels (64 in the original).

    ``stem="imagenet"`` is the 7x7 convolution of stride 2 and the max-pool; ``"cifar"`` a 3x3 convolution of stride 1 and
    no pooling, as is usual for 32x32 images; ``"auto"`` takes the one for the image's side.
    """
    _check_resnet(depth, stem)
    block, layers = _RESNETS[depth]
    network = _ScaledResNet(block, layers, width, num_classes=classes)
    small = stem == "cifar" or (stem == "auto" and min(shape[1:]) < 64)
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    network.conv1 = nn.Conv2d(shape[0], width, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.bn1 = nn.BatchNorm2d(width)
    if small:
        network.maxpool = nn.Identity()
    network.fc = nn.Linear(8 * width * block.expansion, classes)
    return network


def parameter_count(network: nn.Module) -> int:
    """Number of a network's parameters."""
    return sum(p.numel() for p in network.parameters())


def minimum_width_count(network: nn.Module) -> int:
    """Count what is trained in a source network of minimum width: sum over convolutions of (n - c2 + 1) + 2 c2.

    ``n = c2 c0 kh kw`` equations a layer, ``n - c2 + 1`` inner scales (Burkholz 2024, Thm 2.2), a scale and a shift for
    each of the c2 outputs. For the VGG18 of width 64 this is the 592,657 of Sect. 3.2.

    >>> minimum_width_count(vgg((3, 32, 32), 10, 64, [2, 3, 4, 4, 4], "relu"))
    592657
    """
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    return sum(m.weight.numel() - m.out_channels + 1 + 2 * m.out_channels for m in convolutions)
