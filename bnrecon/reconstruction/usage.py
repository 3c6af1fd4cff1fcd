"""How a network uses its weights: by calling layers, or by passing weights to functions."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from bnrecon.reconstruction.followed_weights import HARMLESS, FollowedWeights
from bnrecon.reconstruction.kernels import LAYERS, is_plain
from bnrecon.reconstruction.substitution import share_parameters
from bnrecon.reconstruction.tensors import tensors_in
from bnrecon.reconstruction.tracing import foldable, trace
from bnrecon.reconstruction.unpacked import Unpacked
from bnrecon.runtime.errors import first_line
from bnrecon.runtime.torch_modes import callers_default_device

__all__ = ["Usage", "find_usage"]


@dataclass(frozen=True)
class Usage:
    """What was seen of a network's weights.

    ``norms`` maps a layer to the BatchNorm that can be folded into it. ``outside`` maps layers
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
    if isinstance(model, (*LAYERS, Unpacked)):
        return Usage()  # a bare layer: a trace would look inside it
    seen, flow = (None, None) if images is None else _observe(model, images)
    try:
        traced = trace(model)
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
    norms = foldable(traced, model)
    if flow is not None:  # a run may take another path than a trace does
        norms = {layer: norm for layer, norm in norms.items() if flow.normalizes(norm, layer)}
    if seen is None:
        seen = _follow(traced.graph, model)
    layers = {name for name, part in model.named_modules() if isinstance(part, LAYERS)}
    changed = dict.fromkeys(traced.changed & layers, "the network's forward changes its settings")
    return Usage(norms, seen | changed)


SAME_NUMBERS = ("data", "T", "mT", "H", "mH", "real")  # attributes of a tensor


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
            if name == "getattr" and node.args[1] in SAME_NUMBERS:
                name = str(node.args[1])
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


class _Flow:
    """Which layer's output each normalization is given in a run."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.outputs: dict[str, weakref.ref[torch.Tensor]] = {}
        self.given: dict[str, str] = {}

    def left(self, name: str, module: nn.Module, output: object) -> None:
        """A module has run."""
        self.calls[name] += 1
        # A BatchNorm normalizes dimension 1, which is a linear layer's output for matrices alone.
        if not isinstance(module, LAYERS) or not isinstance(output, torch.Tensor):
            return
        if not isinstance(module, nn.Linear) or output.ndim == 2:
            self.outputs[name] = weakref.ref(output)

    def entered(self, name: str, inputs: object) -> None:
        """A module runs."""
        first = next(tensors_in(inputs), None)
        for layer, output in self.outputs.items():
            if output() is first is not None:
                self.given[name] = layer

    def normalizes(self, norm: str, layer: str) -> bool:
        """Whether both ran once, and the normalization on the layer's output."""
        return self.calls[norm] == self.calls[layer] == 1 and self.given.get(norm) == layer


def _observe(model: nn.Module, images: torch.Tensor) -> tuple[dict[str, str], _Flow]:
    """What a run on one image shows of weights that are used outside of layers."""
    model = share_parameters(model)
    watch, flow = _Watch(model), _Flow()

    def enter(name: str, *given: object) -> None:
        watch.running.append(name)
        flow.entered(name, given)

    def leave(name: str, module: nn.Module, output: object) -> None:
        watch.running.pop()
        flow.left(name, module, output)

    for name in watch.followed.watched:
        module = model.get_submodule(name)
        # Before a hook that computes the weight: it, too, runs in the layer.
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: enter(name, args, kwargs),
            prepend=True,
            with_kwargs=True,
        )
        module.register_forward_hook(
            lambda module, _, output, name=name: leave(name, module, output), always_call=True
        )
    with torch.no_grad(), _eager(model), callers_default_device(), watch:
        model(images[:1].clone())
    return watch.followed.outside, flow


def _eager(model: nn.Module) -> contextlib.AbstractContextManager:
    """Run what torch.compile compiled as it is written: compiled code calls no hooks."""
    compiled = any(
        getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


def _unknown_matrices(model: nn.Module) -> list[str]:
    """Parameters that could be weights of a function call: matrices that no known layer owns."""
    found = []
    for name, module in model.named_modules():
        if (
            isinstance(module, HARMLESS)
            or ".parametrizations" in f".{name}"
            or (isinstance(module, LAYERS) and is_plain(module))
        ):
            continue
        for own, value in module.named_parameters(recurse=False):
            if sum(side > 1 for side in value.shape) > 1:
                found.append(f"{name}.{own}" if name else own)
    return found
