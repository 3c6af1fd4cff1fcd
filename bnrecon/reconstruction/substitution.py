"""Copy a network with some of its modules replaced; freeze what is no normalization."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from bnrecon.reconstruction.folding import FoundLayer, layer_label
from bnrecon.runtime.errors import UserError, first_line

__all__ = ["check_copy", "freeze", "replacements", "substitute", "uncompiled"]

NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def freeze(network: nn.Module) -> list[str]:
    """Freeze all but normalizations; return the names of other parameters that were trainable."""
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
    """Copy a network with some of its objects, by ``id``, replaced; those are never copied.

    Raises ``UserError`` where something in the network cannot be copied.
    """
    if isinstance(module := replaced.get(id(model)), nn.Module):
        return module
    try:
        return copy.deepcopy(model, dict(replaced)).eval()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the user's own objects say
        what, hint = _uncopied(model, replaced)
        raise UserError(f"{what} cannot be copied ({first_line(error)}); {hint}") from error


def replacements(
    layers: Sequence[FoundLayer], modules: Iterable[nn.Module]
) -> dict[int, nn.Module]:
    """By ``id``, the module for each layer; a BatchNorm that was folded in is left out."""
    replaced: dict[int, nn.Module] = {}
    for found, module in zip(layers, modules, strict=True):
        replaced[id(found.module)] = module
        if found.norm is not None:
            replaced[id(found.norm)] = nn.Identity()
    return replaced


def check_copy(model: nn.Module, layers: Sequence[FoundLayer]) -> None:
    """Raise ``UserError`` for what is kept beside these layers and cannot be copied."""
    substitute(model, replacements(layers, (nn.Identity() for _ in layers)))


def _uncopied(model: nn.Module, replaced: Mapping[int, object]) -> tuple[str, str]:
    """What in a network cannot be copied, and what to do."""
    modules: dict[int, object] = {id(module): module for module in model.modules()}
    modules |= replaced
    for name, module in model.named_modules():
        if id(module) in replaced:
            continue
        for key, value in vars(module).items():
            try:
                copy.deepcopy(value, dict(modules))
            except Exception:
                # Whatever a user's object raises: it is this one that cannot be copied.
                what = f"{layer_label(name)}: its {key.lstrip('_')}"
                if isinstance(value, torch.Tensor):
                    return (
                        what,
                        "run the model once under torch.no_grad() before, "
                        "so that it holds no gradient's history",
                    )
                return what, "take it off the model while it is rebuilt"
    return "the model", "copy.deepcopy(model) has to work"
