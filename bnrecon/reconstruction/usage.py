"""How a network uses its weights: by calling layers, or by passing weights to functions."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from bnrecon.reconstruction.kernels import LAYERS, Unpacked, is_plain
from bnrecon.reconstruction.substitution import NORMALIZATIONS, share_parameters, tensors_in
from bnrecon.reconstruction.tracing import METADATA, called_name, foldable, split_name, trace
from bnrecon.runtime.errors import first_line
from bnrecon.runtime.torch_modes import callers_default_device

# Functions that rebuilt layers call, and all functions that mix channels by a weight.
APPLYING = {"linear", *(f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3))}
MIXING = APPLYING | {
    *("mm", "mv", "bmm", "matmul", "addmm", "addmv", "addbmm", "baddbmm", "bilinear"),
    *("einsum", "tensordot", "multi_head_attention_forward", "scaled_dot_product_attention"),
}
SAME_NUMBERS = ("data", "T", "mT", "H", "mH", "real")  # attributes of a tensor
# Modules whose own parameters mix no channels.
HARMLESS = (Unpacked, nn.Embedding, nn.EmbeddingBag, nn.PReLU, *NORMALIZATIONS)


@dataclass(frozen=True)
class Usage:
    """How a network uses its weights.

    ``norms`` maps a layer to the BatchNorm that can be folded into it. ``outside`` maps layers
    whose weight is read outside of their own call, and parameters that a function mixes channels
    by, to the reason. ``note`` says what was not checked.
    """

    norms: dict[str, str] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)
    note: str | None = None


def find_usage(model: nn.Module, images: torch.Tensor | None = None) -> Usage:
    """Follow a network's weights through a trace (torch.fx) and, given ``images``, through a run.

    Only a trace tells which BatchNorm follows which layer. Without a trace and images to run, every
    parameter matrix that belongs to no known layer counts as used outside.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> find_usage(net).norms
    {'0': '1'}
    """
    if isinstance(model, (*LAYERS, Unpacked)):
        return Usage()  # a bare layer: a trace would look inside it
    outside, normalized = (None, None) if images is None else _follow_run(model, images)
    try:
        traced = trace(model, run_decides=normalized is not None)
    except Exception as error:  # tracing runs the user's forward, which can raise anything
        what = f"{type(error).__name__}: {first_line(error)}"
        note = f"the network cannot be traced ({what}); its BatchNorm layers are kept, not folded"
        if isinstance(error, NameError) and "submodule" in what:
            note += "; a module in a list or dict is left as it is: nn.ModuleList registers it"
        if outside is None:
            note += "; whether a layer's weight is read outside of the layer was not checked "
            note += "(images would show it)"
            reason = "cannot be followed: give images, or a network that can be traced"
            outside = dict.fromkeys(_unknown_matrices(model), reason)
        return Usage({}, outside, note)
    norms = foldable(traced, model)
    if normalized is not None:  # a run may take another path
        norms = {layer: norm for layer, norm in norms.items() if (norm, layer) in normalized}
    layers = {name for name, part in model.named_modules() if isinstance(part, LAYERS)}
    if outside is None:
        outside = _follow_graph(traced.graph, model)
        for name, parameter in map(split_name, sorted(traced.constants)):
            if name in layers:
                outside.setdefault(name, f"its {parameter} is read outside of the layer")
    changed = dict.fromkeys(traced.changed & layers, "the network's forward changes its settings")
    return Usage(norms, outside | changed)


class FollowedWeights:
    """Tracks which values depend on weights alone, and which are used outside of a layer."""

    def __init__(self, model: nn.Module):
        modules = dict(model.named_modules())
        self.layers = {name for name, module in modules.items() if isinstance(module, LAYERS)}
        harmless = {name for name, module in modules.items() if isinstance(module, HARMLESS)}
        self.watched = self.layers | harmless
        # The watched modules that hold each parameter, by its first name: several for tied weights.
        self.owners: dict[str, frozenset[str]] = {}
        first_names: dict[int, str] = {}
        for name, value in model.named_parameters(remove_duplicate=False):
            first = first_names.setdefault(id(value), name)
            owners = {split_name(name)[0]} & self.watched
            self.owners[first] = self.owners.get(first, frozenset()) | owners
        # For values that depend on parameters alone, the names of these.
        self.weights: dict[Hashable, frozenset[str]] = {}
        self.outside: dict[str, str] = {}

    def call(
        self,
        function: str,
        inputs: Sequence,
        output: Hashable,
        running: str | None = None,
        mask: Hashable = None,
    ) -> None:
        """Record a function's call by a watched module; ``output`` is ``None`` if no tensor.

        ``mask`` is the input that attention adds to its scores: it mixes no channels.
        """
        if function in METADATA or output is None:
            return
        made_of = [self.weights.get(value) for value in inputs]
        names = frozenset().union(*(names for names in made_of if names))
        mixing = [self.weights.get(value) or () for value in inputs if value != mask]
        for name in names:
            owners = self.owners.get(name, frozenset())
            if running in owners:
                continue
            if layers := owners & self.layers:
                reason = f"its {split_name(name)[1]} is read outside of the layer, by {function}"
                self.outside |= dict.fromkeys(layers, reason)
            elif function in MIXING and None in made_of and any(name in each for each in mixing):
                self.outside[name] = f"used by a call of {function}, not by a module"
        applied = running in self.layers and function in APPLYING  # perhaps to a constant
        if inputs and None not in made_of and not applied:
            self.weights[output] = names


def _attention_mask(function: str, args: Sequence, kwargs: Mapping) -> Any:
    """The additive mask of a call of attention, such as Swin's position bias."""
    if function != "scaled_dot_product_attention":
        return None
    return kwargs.get("attn_mask", args[3] if len(args) > 3 else None)


def _follow_graph(graph: fx.Graph, model: nn.Module) -> dict[str, str]:
    """Find weights that a trace shows to be used outside of layers."""
    followed = FollowedWeights(model)
    parameters = {name for name, value in model.named_parameters() if value.ndim > 1}
    for node in graph.nodes:
        if node.op == "get_attr":
            followed.weights[node] = frozenset({node.target} & parameters)
        elif node.op in ("call_function", "call_method"):
            function = called_name(node) or str(node.target)
            if function == "getattr" and node.args[1] in SAME_NUMBERS:
                function = str(node.args[1])
            mask = _attention_mask(function, node.args, node.kwargs)
            followed.call(function, node.all_input_nodes, node, mask=mask)
    return followed.outside


class _WatchedRun(TorchFunctionMode):
    """Records which module calls which torch function in a run, and on which layer's output."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.followed = FollowedWeights(model)
        for name, value in model.named_parameters():
            self.followed.weights[id(value)] = frozenset({name} if value.ndim > 1 else ())
        for buffer in model.buffers():
            self.followed.weights[id(buffer)] = frozenset()
        self.results: list[object] = []  # another tensor may take a freed one's id
        self.running: list[str] = []
        self.calls: Counter[str] = Counter()
        self.outputs: dict[str, weakref.ref[torch.Tensor]] = {}
        self.sources: dict[str, str] = {}
        for name in self.followed.watched:
            module = model.get_submodule(name)
            # First, since a hook that computes the weight runs in the layer, too.
            enter, leave = partial(self._enter, name), partial(self._leave, name)
            module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            module.register_forward_hook(leave, always_call=True)

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        inputs = [id(value) for value in tensors_in((args, kwargs or {}))]
        if any(value in self.followed.weights for value in inputs):
            name = getattr(function, "__name__", str(function)).strip("_")
            running = self.running[-1] if self.running else None
            result = output if isinstance(output, torch.Tensor) else None
            mask = id(_attention_mask(name, args, kwargs or {}))
            self.followed.call(name, inputs, None if result is None else id(result), running, mask)
            self.results.append(result)
        return output

    def _enter(self, name: str, _: nn.Module, args: tuple, kwargs: dict) -> None:
        self.running.append(name)
        first = next(tensors_in((args, kwargs)), None)
        for layer, output in self.outputs.items():
            if output() is first is not None:
                self.sources[name] = layer

    def _leave(self, name: str, module: nn.Module, _: tuple, output: object) -> None:
        self.running.pop()
        self.calls[name] += 1
        # BatchNorm normalizes dimension 1, a linear layer's output only for matrices.
        if not isinstance(module, LAYERS) or not isinstance(output, torch.Tensor):
            return
        if not isinstance(module, nn.Linear) or output.ndim == 2:
            self.outputs[name] = weakref.ref(output)

    def pairs(self) -> set[tuple[str, str]]:
        """Pairs of a module and a layer that ran once, the module on the layer's output."""
        pairs = self.sources.items()
        return {pair for pair in pairs if all(self.calls[name] == 1 for name in pair)}


def _follow_run(
    model: nn.Module, images: torch.Tensor
) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """What a run on two images shows: weights used outside of layers, layers that are normalized.

    Of one image a normalization without running statistics may have a single value.
    """
    model = share_parameters(model)
    run = _WatchedRun(model)
    compiled = any(
        getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    # Compiled modules run in eager mode, as compiled code calls no hooks.
    eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    with torch.no_grad(), eager, callers_default_device(), run:
        model(images[:2].clone())
    return run.followed.outside, run.pairs()


def _unknown_matrices(model: nn.Module) -> list[str]:
    """Parameters that could be weights of a function call: matrices that no known layer owns."""
    return [
        name
        for prefix, module in model.named_modules()
        if not isinstance(module, HARMLESS)
        and ".parametrizations" not in f".{prefix}"
        and not (isinstance(module, LAYERS) and is_plain(module))
        for name, value in module.named_parameters(prefix, recurse=False)
        if sum(side > 1 for side in value.shape) > 1
    ]
