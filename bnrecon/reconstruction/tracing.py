"""A symbolic trace (torch.fx) of a network, and which BatchNorm can be folded into which layer."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, signature
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from bnrecon.reconstruction.kernels import LAYERS, Unpacked, is_plain, kernel_of, norm_class
from bnrecon.reconstruction.substitution import share_parameters, tensors_in
from bnrecon.runtime.torch_modes import callers_default_device

# Functions that take type, device or shape from a tensor, but not its values.
METADATA = {
    *("to", "type_as", "expand_as", "view_as", "reshape_as", "getattr", "size", "dim"),
    *(f"new_{value}" for value in ("zeros", "ones", "empty", "full", "tensor")),
    *(f"{value}_like" for value in ("zeros", "ones", "empty", "rand", "randn", "full")),
}
PROPERTIES = {  # of a tensor, other than its values
    getattr(torch.Tensor, name).__get__
    for name in ("dtype", "device", "shape", "ndim", "layout", "is_cuda", "requires_grad")
}
ANY_NUMBER = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)  # of arguments


class Trace(NamedTuple):
    """What a plain call of the network computes.

    ``read`` names the parameters and buffers that it reads outside of leaf modules, ``constants``
    those that went into a constant of the graph, and ``changed`` the modules whose settings or
    buffers it changes or that it runs in training mode.
    """

    graph: fx.Graph
    read: frozenset[str]
    constants: frozenset[str]
    changed: frozenset[str]


def trace(model: nn.Module, run_decides: bool = False) -> Trace:
    """Trace a call with the network's required arguments; others have their defaults.

    This traces a copy that shares the parameters, since a ``forward`` may keep its inputs. Where it
    asks ``isinstance(x, torch.Tensor)`` of a symbol, the trace takes the path of other objects:
    refused, unless a run is to decide what is traced rightly.

    Raises ``fx.proxy.TraceError`` for that, and whatever the network's ``forward`` raises.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> [node.op for node in trace(net).graph.nodes]
    ['placeholder', 'call_module', 'call_module', 'output']
    """
    twin = share_parameters(model)
    reads, tracer = _Reads(twin), _Tracer()
    checks = contextlib.nullcontext() if run_decides else _refuse_type_checks(tracer)
    with torch.no_grad(), callers_default_device(), checks, reads:
        graph = tracer.trace(twin)
    before = dict(model.named_modules())
    changed = {
        name
        for name, part in twin.named_modules()
        if name in before and not _is_as_before(part, before[name])
    }
    read = reads.read | _read_in(graph, twin, reads.names)
    sets = map(frozenset, (read, reads.read, changed | tracer.training))
    return Trace(graph, *sets)


class _Tracer(fx.Tracer):
    """Treats attentions and layers as leaves, also subclasses, as fx does PyTorch's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.training: set[str] = set()

    def call_module(self, m: nn.Module, forward: Callable, args: tuple, kwargs: dict) -> Any:
        if m.training:
            self.training.add(self.path_of_module(m))
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m is self.root:
            return False
        leaf = isinstance(m, Unpacked) or is_plain(m)
        return leaf or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, *_: Any, **__: Any) -> tuple[Callable, list[Any]]:
        """Call the root itself, with its hooks; torch.fx would replace defaults by symbols, too."""
        assert isinstance(self.root, nn.Module)
        every = signature(self.root.forward).parameters.values()
        required = [one for one in every if one.default is one.empty and one.kind not in ANY_NUMBER]
        symbols = {one.name: self.create_proxy("placeholder", one.name, (), {}) for one in required}
        named = {
            one.name: symbols.pop(one.name)
            for one in required
            if one.kind is Parameter.KEYWORD_ONLY
        }
        first = list(symbols.values())
        if not first and not named:
            first = [self.create_proxy("placeholder", "images", (), {})]
        return (lambda root: root(*first, **named)), [self.root]


@contextlib.contextmanager
def _refuse_type_checks(tracer: fx.Tracer) -> Iterator[None]:
    """Refuse the network's ``isinstance`` and ``torch.is_tensor`` where a tensor's answer differs.

    A symbol may stand for a size or a tuple, too, so neither answer is safe.
    """
    plain, tensor = builtins.isinstance, nn.Parameter(torch.empty(0, device="cpu"))

    def is_instance(value: Any, classes: Any, /) -> bool:
        answer = plain(value, classes)
        ours = not answer and issubclass(type(value), fx.Proxy) and value.tracer is tracer
        if ours and plain(tensor, classes):
            caller = sys._getframe(1)
            library = str(caller.f_globals.get("__name__")).partition(".")[0]
            if library not in ("torch", "bnrecon") or caller.f_code is torch.is_tensor.__code__:
                raise fx.proxy.TraceError("its forward asks whether a value is a tensor")
        return answer

    with mock.patch.object(builtins, "isinstance", is_instance):
        yield


class _Reads(TorchFunctionMode):
    """Records which of the network's tensors functions read, also for constants."""

    def __init__(self, model: nn.Module):
        super().__init__()
        # By ``id``, the names of each parameter and buffer: several for tied ones.
        self.names: dict[int, set[str]] = {}
        for tensors in (model.named_parameters, model.named_buffers):
            for name, value in tensors(remove_duplicate=False):
                self.names.setdefault(id(value), set()).add(name)
        self.read: set[str] = set()

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        asks = function in PROPERTIES or getattr(function, "__name__", "") in METADATA
        for value in tensors_in((args, kwargs or {})):
            if not asks or not isinstance(value, nn.Parameter):  # as one of all parameters
                self.read.update(self.names.get(id(value), ()))
        return function(*args, **(kwargs or {}))


def _read_in(graph: fx.Graph, model: nn.Module, names: Mapping[int, set[str]]) -> set[str]:
    """The parameters and buffers that a graph reads, but no bias read for its type alone."""
    read = set[str]()
    for node in graph.nodes:
        if node.op == "get_attr":
            value: object = model
            for part in node.target.split("."):
                value = getattr(value, part, None)
            asks = all(called_name(user) in METADATA for user in node.users)
            for name in names.get(id(value), ()):
                module, _, attribute = name.rpartition(".")
                of_layer = isinstance(model.get_submodule(module), LAYERS)
                if not (asks and attribute == "bias" and of_layer):  # a source layer has one, too
                    read.add(name)
        elif node.op == "call_module" and ".parametrizations." in f".{node.target}":
            owner = node.target.partition(".parametrizations.")[0]
            every = set[str]().union(*names.values())
            read |= {name for name in every if name.startswith(f"{owner}.")}
    return read


def called_name(node: fx.Node) -> str:
    """The name of the function or method that a node calls; empty if it has none."""
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def split_name(parameter: str) -> tuple[str, str]:
    """Split a parameter's name into module and attribute, also if it is parametrized.

    >>> split_name("body.0.weight"), split_name("body.0.parametrizations.weight.original")
    (('body.0', 'weight'), ('body.0', 'weight'))
    """
    module, parametrized, rest = parameter.partition(".parametrizations.")
    if parametrized:
        return module, rest.partition(".")[0]
    module, _, name = parameter.rpartition(".")
    return module, name


def _is_as_before(module: nn.Module, before: nn.Module) -> bool:
    """Whether a module's constants, such as stride or eps, mode and buffers are unchanged."""
    names = (*getattr(module, "__constants__", ()), "training")
    if any(getattr(module, name, None) != getattr(before, name, None) for name in names):
        return False
    buffers, others = (dict(one.named_buffers(recurse=False)) for one in (module, before))
    return buffers.keys() == others.keys() and all(
        isinstance(value, torch.Tensor)
        and value.shape == others[name].shape
        and torch.allclose(value, others[name], 0, 0, equal_nan=value.is_floating_point())
        for name, value in buffers.items()
    )


def foldable(traced: Trace, model: nn.Module) -> dict[str, str]:
    """Map each layer to the BatchNorm that alone uses its output.

    Both are called once. Pairs are left out if other code reads the BatchNorm's numbers or the
    layer's bias, which folding changes or removes, and if this call does not use another BatchNorm
    of the same module: the network seems to choose one at run time.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    >>> foldable(trace(net), net)
    {'0': '1'}
    """
    modules = dict(model.named_modules())
    calls = _calls(traced.graph, modules)
    unused = {
        name.rpartition(".")[0]
        for name, module in modules.items()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not calls[name]
    }
    pairs = {}
    for node in traced.graph.nodes:
        if node.op != "call_module" or len(node.users) != 1 or calls[node.target] != 1:
            continue
        user = next(iter(node.users))
        layer, norm = node.target, user.target
        if user.op != "call_module" or calls[norm] != 1:
            continue
        if (
            _fits(modules.get(layer), modules.get(norm))
            and not {layer, norm} & traced.changed
            and not any(name.startswith(f"{norm}.") for name in traced.read)
            and (layer, "bias") not in map(split_name, traced.read)
            and norm.rpartition(".")[0] not in unused
        ):
            pairs[layer] = norm
    return pairs


def _fits(layer: nn.Module | None, norm: nn.Module | None) -> bool:
    """Whether a module is a BatchNorm with running statistics for a layer's outputs."""
    return (
        isinstance(layer, LAYERS)
        and isinstance(norm, norm_class(layer))
        and norm.running_mean is not None
        and len(norm.running_mean) == len(kernel_of(layer))
    )


def _calls(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> Counter[str]:
    """Count calls of each module; parts of a called module may be called there again."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    names = {id(module): name for name, module in modules.items()}
    for target in list(calls):
        for part in modules[target].modules() if target in modules else ():
            if (name := names.get(id(part))) not in (None, target):
                calls[name] += 2
    return calls
