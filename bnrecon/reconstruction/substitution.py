"""Copy a network with some of its modules replaced; freeze what is no normalization."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from bnrecon.reconstruction.folding import layer_label
from bnrecon.reconstruction.images import first_line
from bnrecon.runtime.errors import UserError

__all__ = ["freeze", "substitute", "uncompiled"]


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


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wrapped, or the model itself where it was not compiled."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def substitute(model: nn.Module, replaced: Mapping[int, object]) -> nn.Module:
    """Copy a network with some of its modules, by ``id``, replaced on the way; the replaced ones are never copied.

    Raises ``UserError`` where something in the network cannot be copied.
    """
    if id(model) in replaced:
        return replaced[id(model)]
    try:
        return copy.deepcopy(model, dict(replaced)).eval()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's own objects say
        what, hint = _uncopied(model, replaced)
        raise UserError(f"{what} cannot be copied ({first_line(error)}); {hint}") from error


def _uncopied(model: nn.Module, replaced: Mapping[int, object]) -> tuple[str, str]:
    """What in a network cannot be copied, and what to do."""
    modules = {id(module): module for module in model.modules()} | dict(replaced)
    for name, module in model.named_modules():
        if id(module) in replaced:
            continue
        for key, value in vars(module).items():
            try:
                copy.deepcopy(value, dict(modules))
            except Exception:
                what = f"{layer_label(name)}: its {key.lstrip('_')}"
                if isinstance(value, torch.Tensor):
                    return (
                        what,
                        "run the model once under torch.no_grad() before, so that it holds no gradient's history",
                    )
                return what, "take it off the model while it is rebuilt"
    return "the model", "copy.deepcopy(model) has to work"
