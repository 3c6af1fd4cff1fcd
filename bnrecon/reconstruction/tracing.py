"""A symbolic trace (torch.fx) of a network, and which BatchNorm can be folded into which layer."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from bnrecon.reconstruction.attention import Attention
from bnrecon.reconstruction.kernels import LAYERS, is_plain, norm_class, output_channels
from bnrecon.reconstruction.tensors import tensors_in
from bnrecon.runtime.torch_modes import callers_default_device

__all__ = ["Trace", "foldable", "trace"]

SIMPLE = (bool, int, float, str, type(None))  # defaults that a trace can take as they are


class Trace(NamedTuple):
    """What the network computes, and the ``id`` of each tensor of its own that was read for it.

    What leaf modules read of their own is not among these.
    """

    graph: fx.Graph
    read: frozenset[int]


def trace(model: nn.Module) -> Trace:
    """Trace a call of the network with one argument; the others have their defaults.

    Raises whatever the network's own ``forward`` raises when it is given a symbol.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> [node.op for node in trace(net).graph.nodes]
    ['placeholder', 'call_module', 'call_module', 'output']
    """
    watch = _Reads(model)
    with torch.no_grad(), callers_default_device(), _as_before(model), watch:
        graph = _Tracer().trace(model, _defaults(model))
    for node in graph.nodes:
        if node.op == "get_attr" and (owner := _holder(model, node.target)) is not None:
            watch.read.add(id(owner))
    return Trace(graph, frozenset(watch.read))


class _Tracer(fx.Tracer):
    """Looks into no attention and no layer, a subclass's either, as into none of PyTorch's own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(m, Attention) or is_plain(m)
        return own or super().is_leaf_module(m, module_qualified_name)


class _Reads(TorchFunctionMode):
    """Sees which of the network's tensors functions are given, constants' operands too."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.own = {id(value) for value in (*model.parameters(), *model.buffers())}
        self.read: set[int] = set()

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        given = tensors_in((args, kwargs or {}))
        self.read.update(self.own.intersection(id(value) for value in given))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Take symbols off the model that its ``forward`` keeps, and constants that a trace adds."""
    kept = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, values in kept:
            vars(module).clear()
            vars(module).update(values)


def _defaults(model: nn.Module) -> dict[str, Any] | None:
    """The arguments after the first that a plain call leaves out: a symbol would be a value."""
    arguments = list(inspect.signature(type(model).forward).parameters.values())[2:]
    found = {
        one.name: one.default
        for one in arguments
        if one.default is not one.empty and isinstance(one.default, SIMPLE)
    }
    return found or None


def _holder(model: nn.Module, name: str) -> object | None:
    """The tensor of that name; a trace's own constants are not the network's."""
    value: object | None = model
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def foldable(traced: Trace, model: nn.Module) -> dict[str, str]:
    """The BatchNorm layers that alone use one layer's output, by the name of that layer.

    Each is called once. None is there whose numbers, or the layer's bias, are read by others: they
    would find those of the folded layer, or none.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> foldable(trace(net), net)
    {'0': '1'}
    """
    modules = dict(model.named_modules())
    calls: dict[str, int] = {}
    for node in traced.graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    pairs = {}
    for node in traced.graph.nodes:
        if node.op != "call_module" or len(node.users) != 1 or calls[node.target] != 1:
            continue
        user = next(iter(node.users))
        layer = modules.get(node.target)
        if user.op != "call_module" or calls[user.target] != 1 or not isinstance(layer, LAYERS):
            continue
        norm = modules.get(user.target)
        if not isinstance(norm, norm_class(layer)) or norm.running_mean is None:
            continue
        changed = [*norm.parameters(recurse=False), *norm.buffers(recurse=False), layer.bias]
        if traced.read.intersection(map(id, changed)):
            continue
        if norm.num_features == output_channels(layer):
            pairs[node.target] = user.target
    return pairs
