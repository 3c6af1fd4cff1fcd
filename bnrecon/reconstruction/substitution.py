"""Copy a network with some of its modules replaced; freeze what is no normalization."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import nn

__all__ = ["freeze", "substitute"]


NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def freeze(network: nn.Module) -> list[str]:
    """Leave normalizations alone trainable; return the names of the parameters that were trainable besides."""
    found = []
    for prefix, module in network.named_modules():
        if isinstance(module, NORMALIZATIONS):
            continue
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                found.append(name)
    return found


def substitute(model: nn.Module, replaced: Mapping[int, object]) -> nn.Module:
    """Copy a network with some of its modules, by ``id``, replaced on the way; the replaced ones are never copied."""
    if id(model) in replaced:
        return replaced[id(model)]
    return copy.deepcopy(model, dict(replaced)).eval()
