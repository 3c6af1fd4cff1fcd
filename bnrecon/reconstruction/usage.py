"""How a network uses its weights: by calling layers, or by passing weights to functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from bnrecon.reconstruction.attention import Attention
from bnrecon.reconstruction.followed_weights import HARMLESS, FollowedWeights
from bnrecon.reconstruction.kernels import LAYERS, norm_class, output_channels
from bnrecon.runtime.errors import first_line
from bnrecon.runtime.torch_modes import callers_default_device

__all__ = ["Usage", "find_usage", "tensors_in"]


@dataclass(frozen=True)
class Usage:
    """What was seen of a network's weights.

    ``norms`` maps a layer to the BatchNorm that alone uses its output. ``outside`` maps layers
    whose weight is read outside of their own call, and parameters that a function mixes channels
    by, to the reason. ``note`` says what was not checked.
    """

    norms: dict[str, str] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)
    note: str | None = None


def find_usage(model: nn.Module, images: torch.Tensor | None = None) -> Usage:
    """Follow a network's weights through a trace (torch.fx) and, given ``images``, through a run.

    A trace alone tells which BatchNorm follows which layer. Where there is none, and no images to
    run, every matrix of parameters that belongs to no known layer counts as used outside.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> find_usage(net).norms
    {'0': '1'}
    """
    if isinstance(model, (*LAYERS, Attention)):
        return Usage()  # a bare layer: a trace would look inside it
    seen = _observe(model, images) if images is not None else None
    try:
        with callers_default_device():
            graph = _Tracer().trace(model)
    except Exception as error:  # tracing runs the user's own forward: anything can come out of it
        why = f"the network cannot be traced ({type(error).__name__}: {first_line(error)})"
        note = f"{why}; its BatchNorm layers are kept, not folded"
        if seen is None:
            note += (
                "; whether a layer's weight is read outside of the layer was not checked "
                "(images would show it)"
            )
            seen = dict.fromkeys(
                _unknown_matrices(model),
                "cannot be followed: give images, or a network that can be traced",
            )
        return Usage({}, seen, note)
    norms = _norms(graph, dict(model.named_modules()))
    return Usage(norms, _follow(graph, model) if seen is None else seen)


class _Tracer(fx.Tracer):
    """Looks into no attention, as into none of PyTorch's modules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Attention) or super().is_leaf_module(m, module_qualified_name)


def _follow(graph: fx.Graph, model: nn.Module) -> dict[str, str]:
    """What a trace shows of weights that are used outside of layers."""
    followed = FollowedWeights(model)
    parameters = {name for name, value in model.named_parameters() if value.ndim > 1}
    for node in graph.nodes:
        if node.op == "get_attr":
            followed.weights[node] = frozenset({node.target} & parameters)
        elif node.op in ("call_function", "call_method"):
            name = (
                node.target
                if isinstance(node.target, str)
                else getattr(node.target, "__name__", str(node.target))
            )
            followed.call(name, node.all_input_nodes, node)
    return followed.outside


class _Watch(TorchFunctionMode):
    """Sees every call of a torch function, and which watched module makes it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.followed = FollowedWeights(model)
        self.running: list[str] = []
        self.held: list[torch.Tensor] = []  # a freed tensor's id would be taken by another
        for name, value in model.named_parameters():
            self.followed.weights[id(value)] = frozenset({name} if value.ndim > 1 else ())
        for buffer in model.buffers():
            self.followed.weights[id(buffer)] = frozenset()

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run the function and follow the weights among its arguments."""
        output = function(*args, **(kwargs or {}))
        inputs = [id(value) for value in tensors_in((args, kwargs or {}))]
        if any(value in self.followed.weights for value in inputs):
            name = getattr(function, "__name__", str(function)).strip("_")
            result = output if isinstance(output, torch.Tensor) else None
            running = self.running[-1] if self.running else None
            self.followed.call(name, inputs, None if result is None else id(result), running)
            if result is not None:
                self.held.append(result)
        return output


def _observe(model: nn.Module, images: torch.Tensor) -> dict[str, str]:
    """What a run on one image shows of weights that are used outside of layers."""
    watch = _Watch(model)
    handles = []
    for name in watch.followed.watched:
        module = model.get_submodule(name)
        handles += [  # before a hook that computes the weight: it, too, runs in the layer
            module.register_forward_pre_hook(
                lambda *_, name=name: watch.running.append(name), prepend=True
            ),
            module.register_forward_hook(lambda *_: watch.running.pop() and None, always_call=True),
        ]
    try:
        with torch.no_grad(), _eager(model), callers_default_device(), watch:
            model(images[:1].clone())
    finally:
        for handle in handles:
            handle.remove()
    return watch.followed.outside


def _eager(model: nn.Module) -> contextlib.AbstractContextManager:
    """Run what torch.compile compiled as it is written: compiled code calls no hooks."""
    compiled = any(
        getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        value = tuple(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, part.name) for part in fields(value))
    if isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def _unknown_matrices(model: nn.Module) -> list[str]:
    """Parameters that could be weights of a function call: matrices that no known layer owns."""
    found = []
    for name, module in model.named_modules():
        if (
            isinstance(module, HARMLESS)
            or ".parametrizations" in f".{name}"
            or type(module).forward in _PLAIN
        ):
            continue
        for own, value in module.named_parameters(recurse=False):
            if sum(side > 1 for side in value.shape) > 1:
                found.append(f"{name}.{own}" if name else own)
    return found


_PLAIN = tuple(kind.forward for kind in LAYERS)


def _norms(graph: fx.Graph, modules: dict[str, nn.Module]) -> dict[str, str]:
    """The BatchNorm layers that alone use one layer's output."""
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    pairs = {}
    for node in graph.nodes:
        if node.op != "call_module" or len(node.users) != 1 or calls[node.target] != 1:
            continue
        user = next(iter(node.users))
        layer = modules.get(node.target)
        if user.op != "call_module" or calls[user.target] != 1 or not isinstance(layer, LAYERS):
            continue
        norm = modules.get(user.target)
        if not isinstance(norm, norm_class(layer)) or norm.running_mean is None:
            continue
        if norm.num_features == output_channels(layer):
            pairs[node.target] = user.target
    return pairs
