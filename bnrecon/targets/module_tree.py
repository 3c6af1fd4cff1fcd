"""Replacing modules of a network."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

__all__ = ["replace_modules"]


def replace_modules(
    network: nn.Module,
    chosen: Callable[[nn.Module], bool],
    replacement: Callable[[nn.Module], nn.Module],
) -> nn.Module:
    """Replace the chosen modules of a network, in place.

    Args:
        network: its modules, and what they hold, are looked at from the outside in.
        chosen: whether a module is to be replaced; what it holds is not looked at then.
        replacement: of a chosen module.

    Returns:
        The network, or its replacement where it is itself chosen.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> is_relu = lambda module: isinstance(module, nn.ReLU)
    >>> replace_modules(network, is_relu, lambda _relu: nn.Tanh())[1]
    Tanh()
    """
    if chosen(network):
        return replacement(network)
    for name, child in network.named_children():
        setattr(network, name, replace_modules(child, chosen, replacement))
    return network
