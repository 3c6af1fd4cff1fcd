"""Replace modules of a network, or their classes."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replace_modules(
    network: nn.Module,
    chosen: Callable[[nn.Module], bool],
    replacement: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """Replace the chosen modules of a network, in place, each once and wherever it is used.

    Returns the network, or its replacement if it is chosen itself.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> is_relu = lambda module: isinstance(module, nn.ReLU)
    >>> replace_modules(network, is_relu, lambda _relu: nn.Tanh())[1]
    Tanh()
    """
    replaced = {module: replacement(module) for module in network.modules() if chosen(module)}
    for module in list(network.modules()):
        for name, child in module._modules.items():
            if child in replaced:
                setattr(module, name, replaced[child])
    return replaced.get(network, network)


def change_class(module: nn.Module, base: type[nn.Module]) -> None:
    """Make a module an instance of ``base``, in place, in addition to its class.

    It keeps its parameters, buffers, hooks and uses; the forward pass of a subclass becomes
    ``super().forward`` of ``base``. The class made for a subclass cannot be pickled by name: save
    such a network by its ``state_dict``.

    >>> class Loud(nn.Dropout):
    ...     def train(self, mode=True):
    ...         print("mode", mode)
    ...         return super().train(mode)
    >>> layer = nn.Dropout()
    >>> change_class(layer, Loud)
    >>> _ = layer.eval()
    mode False
    """
    kind = type(module)
    if not issubclass(kind, base):
        derived = type(f"{base.__name__}_{kind.__name__}", (base, kind), {})
        module.__class__ = base if issubclass(base, kind) else derived
