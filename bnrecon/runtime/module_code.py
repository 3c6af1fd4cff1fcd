"""Code that a module runs and PyTorch's class does not."""

from __future__ import annotations

from torch import nn

METHODS = ("forward", "_conv_forward", "__call__")


def added_code(module: nn.Module, kind: type[nn.Module]) -> str | None:
    """What a module runs instead of ``kind``'s forward pass or in addition; ``None`` if nothing.

    A subclass that keeps the forward pass adds nothing.

    >>> layer = nn.Linear(2, 3)
    >>> added_code(layer, nn.Linear)
    >>> _ = layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
    >>> added_code(layer, nn.Linear)
    "forward hooks, such as a pruning mask's or a weight normalization's"
    """
    replaced = any(
        getattr(type(module), name, None) is not getattr(kind, name, None) or name in vars(module)
        for name in METHODS
    )
    if replaced:
        return "a forward pass of its own"
    if module._forward_hooks or module._forward_pre_hooks:
        return "forward hooks, such as a pruning mask's or a weight normalization's"
    return None
