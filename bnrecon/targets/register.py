"""The register of target families: bnrecon's, listed here, and a user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch import nn

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.user_code import Registered, attribute_errors, require_name, unregistered
from bnrecon.targets.dropout_networks import dropout_cnn, dropout_resnet
from bnrecon.targets.models import mlp, resnet, vgg
from bnrecon.targets.normalization_vgg import normalization_vgg
from bnrecon.targets.resnet9 import resnet9

# A builder takes the image shape (C, H, W), the number of classes, and the target's options.
Builder = Callable[..., nn.Module]


def _built_in(name: str, builder: Builder) -> Registered:
    return Registered(f"target family {name}", builder)


BUILT_IN: dict[str, Builder] = {
    "vgg": vgg,
    "vgg_normalization": normalization_vgg,
    "resnet": resnet,
    "resnet9": resnet9,
    "dropout_resnet": dropout_resnet,
    "dropout_cnn": dropout_cnn,
    "mlp": mlp,
}
_BUILT: WeakSet[nn.Module] = WeakSet()  # layers with weights of all networks
FAMILIES = {name: _built_in(name, builder) for name, builder in BUILT_IN.items()}


def register_target(name: str, version: str | None = None) -> Callable[[Builder], Builder]:
    """Register a family of target networks under a name that ``target.family`` accepts.

    The builder is called as ``builder(shape, classes, width=width, **options)`` with
    ``target.width``, which it may ignore, and the options of the target's yaml file.

    Args:
        name: the family's name.
        version: identifies the network: change it when the network changes. Without it the source
            file of the registering module does (a changed comment means a new training).

    >>> @register_target("two_linear")
    ... def two_linear(shape, classes, width):
    ...     inputs = shape[0] * shape[1] * shape[2]
    ...     layers = nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes)
    ...     return nn.Sequential(nn.Flatten(), *layers)
    >>> build("two_linear", (1, 8, 8), 10, width=5)[3].out_features
    10
    >>> del FAMILIES["two_linear"]
    """
    require_name("register_target", name)

    def add(builder: Builder) -> Builder:
        registered = Registered(f"target family {name}", builder, version)
        registered.warn_of_replacing(FAMILIES.get(name))
        FAMILIES[name] = registered
        return builder

    return add


def check_family(family: str) -> None:
    """Raise ``UserError`` for a family that is not registered."""
    if family not in FAMILIES:
        raise unregistered("family", family, FAMILIES)


def build(family: str, shape: tuple[int, int, int], classes: int, **options: Any) -> nn.Module:
    """Build a network of a registered family from its options, including ``width``.

    Raises:
        UserError: the family is unknown, does not take these options, or its builder fails.
    """
    check_family(family)
    with attribute_errors(FAMILIES[family]):
        try:
            network = FAMILIES[family].function(shape, classes, **options)
        except TypeError as error:
            traceback = error.__traceback__
            if traceback is None or traceback.tb_next is not None:  # raised inside the builder
                raise
            raise UserError(
                f"target family {family} does not take these options ({error})"
            ) from None
    if not isinstance(network, nn.Module):
        raise UserError(
            f"target family {family}: it returned {type(network).__name__}; "
            "it must return a torch.nn.Module"
        )
    trained = {
        module
        for module in network.modules()
        if any(weight.requires_grad for weight in module.parameters(recurse=False))
    }
    if not trained.isdisjoint(_BUILT):  # it may have been trained since
        raise UserError(
            f"target family {family}: it returned layers of a network that it returned before; "
            "make new ones in every call"
        )
    _BUILT.update(trained)
    return network
