"""Replacing modules of a network, and what they are."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replace_modules(
    network: nn.Module,
    chosen: Callable[[nn.Module], bool],
    replacement: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """Replace the chosen modules of a network, in place, each once and wherever it is used.

    Returns the network, or its replacement where it is itself chosen.

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
    """Make a module an instance of ``base``, in place; what else it is and has, it keeps.

    Its parameters, buffers, hooks and uses stay, and a forward pass of its own becomes what
    ``super().forward`` is to ``base``. The class made for a subclass cannot be pickled by name:
    such a network is saved by its ``state_dict``.

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
