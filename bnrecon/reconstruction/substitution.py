"""Copy a network with some of its objects replaced, freeze it, and go through its tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from bnrecon.reconstruction.refusal import layer_label
from bnrecon.runtime.errors import UserError, first_line, lacks_memory

NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def freeze(network: nn.Module) -> list[str]:
    """Freeze all but normalizations; return the names of other parameters that were trainable."""
    frozen = []
    for prefix, module in network.named_modules():
        if isinstance(module, NORMALIZATIONS):
            continue
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                frozen.append(name)
    return frozen


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wrapped, or the model itself."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def substitute(model: nn.Module, replaced: Mapping[int, object]) -> nn.Module:
    """Copy a network, replacing some objects by ``id``; replacements are never copied.

    Tensors with an autograd history, such as an output that a module keeps, lose it.

    Raises ``UserError`` if something in the network cannot be copied.
    """
    if isinstance(module := replaced.get(id(model)), nn.Module):
        return module
    try:
        tensors = (value for module in model.modules() for value in tensors_in(vars(module)))
        # ``deepcopy`` refuses tensors with a history.
        copied = {id(t): t.detach().clone() for t in tensors if t.grad_fn is not None}
        return copy.deepcopy(model, copied | dict(replaced)).eval()
    except Exception as error:  # the user's objects can raise anything
        if lacks_memory(error):
            raise
        what, hint = _uncopied(model, replaced)
        raise UserError(f"{what} cannot be copied ({first_line(error)}); {hint}") from error


def share_parameters(model: nn.Module, others: Iterable[object] = ()) -> nn.Module:
    """Copy a model in eval mode; the copy shares the parameters.

    It runs instead of the model: a ``forward`` changes only its buffers and settings, and hooks are
    its own. ``others`` are modules or buffers to share as well.
    """
    return substitute(model, {id(value): value for value in (*model.parameters(), *others)})


def _uncopied(model: nn.Module, replaced: Mapping[int, object]) -> tuple[str, str]:
    """Say what in a network cannot be copied, and what to do."""
    modules: dict[int, object] = {id(module): module for module in model.modules()}
    modules |= replaced
    for name, module in model.named_modules():
        for key, value in vars(module).items() if id(module) not in replaced else ():
            try:
                copy.deepcopy(value, dict(modules))
            except Exception:
                # Whatever it raises, this object cannot be copied.
                what = f"{layer_label(name)}: its {key.lstrip('_')}"
                return what, "take it off the model while it is rebuilt"
    return "the model", "copy.deepcopy(model) has to work"


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, in order.

    >>> [tensor.item() for tensor in tensors_in(({"a": torch.tensor(1)}, [torch.tensor(2)]))]
    [1, 2]
    """
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def leaves(value: Any) -> Iterator[Any]:
    """All leaves of nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, part.name) for part in fields(value))
    if not isinstance(value, tuple | list):
        yield value
        return
    for part in value:
        yield from leaves(part)
