"""The functions that a network calls, from a torch.fx trace: none in place, modules inlined."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import ParametrizationList

from bnrecon.partition.convolution import conv2d
from bnrecon.runtime.errors import UserError, first_line

# What a step computes, by its function or its method's name. All except sums and products have one
# argument that depends on the network's input, the first.
OPERATIONS: dict[Any, str] = {
    target: kind
    for kind, targets in {
        "identity": (
            *("contiguous", F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
            *(F.alpha_dropout, F.feature_alpha_dropout),
        ),
        "affine": (
            *(F.linear, F.conv1d, F.conv2d, F.batch_norm, F.pad, F.avg_pool1d, F.avg_pool2d),
            *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, operator.neg, operator.truediv),
            *("clone", "mean", torch.mean),
        ),
        "flatten": (torch.flatten, "flatten"),
        "reshape": ("view", "reshape"),
        "sum": (operator.add, operator.sub, torch.add, torch.sub, torch.cat, "add", "sub"),
        "product": (operator.mul, torch.mul, "mul"),
        "relu": (torch.relu, F.relu, "relu"),
        "leaky_relu": (F.leaky_relu,),
        "prelu": (F.prelu,),
        "abs": (torch.abs, operator.abs, "abs"),
        "clamp": (torch.clamp, "clamp", F.hardtanh, F.relu6),
        "pooling": (F.max_pool1d, F.max_pool2d),
    }.items()
    for target in targets
}
SHARING = {None, "flatten", "reshape"}  # may return its input's memory
OUT_OF_PLACE: dict[Any, Callable] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    torch.relu_: torch.relu,
    torch.abs_: torch.abs,
    torch.clamp_: torch.clamp,
}


class _Tracer(fx.Tracer):
    """Traces through every module with its hooks, down to the functions that they call."""

    proxy_buffer_attributes = True  # a pruned weight is computed from a mask

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return isinstance(m, ParametrizationList)  # computes a weight, by any function

    def call_module(
        self, m: nn.Module, forward: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(m, nn.modules.batchnorm._NormBase):
            vars(m)["_check_input_dim"] = lambda _: None  # asks for a shape, which a trace lacks
        try:
            return super().call_module(m, forward, args, kwargs)
        except UserError:
            raise
        except Exception as error:  # tracing runs the user's forward, which can raise anything
            label = f"{self.path_of_module(m).partition('.')[2]} ({type(m).__name__})".strip()
            raise UserError(f"{label}: cannot be traced by torch.fx: {first_line(error)}") from None
        finally:
            vars(m).pop("_check_input_dim", None)


def copy_network(network: nn.Module) -> nn.Module:
    """Copy the network, also weights that a hook computed with their gradient."""
    computed = [
        value
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    ]
    return copy.deepcopy(network, {id(value): value.detach() for value in computed})


def trace(root: nn.Module) -> fx.Graph:
    """Trace the functions that a network calls, none in place, only those its output needs."""
    graph = _Tracer().trace(root)
    memory: dict[fx.Node, fx.Node] = {}  # by value, the step that owns its memory
    for node in list(graph.nodes):
        source: Any = node.kwargs.get("out", node.args[0] if node.args else None)
        calls = node.op in ("call_function", "call_method") and not is_size(node)
        if not calls or not isinstance(source, fx.Node):
            memory[node] = node
            continue
        name = str(getattr(node.target, "__name__", node.target))
        options = bool(node.kwargs.get("inplace")) or "out" in node.kwargs
        in_place = options or node.target in OUT_OF_PLACE or name.endswith("_")
        if in_place:
            _read_later_values(node, source, memory)
        if node.op == "call_method":
            node.target = name.rstrip("_") if in_place else name
        node.target = OUT_OF_PLACE.get(node.target, node.target)
        kind = OPERATIONS.get(node.target)
        memory[node] = memory[source] if in_place or kind in SHARING else node
        if kind == "identity" and not node.kwargs.get("training"):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif kind == "clamp":
            clamped = _split_clamp(graph, node)
            memory[clamped] = clamped
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return graph


def _read_later_values(node: fx.Node, source: fx.Node, memory: dict[fx.Node, fx.Node]) -> None:
    """Let later readers of a value that a step changes in place read the step's value."""
    source.replace_all_uses_with(node, lambda user: user > node)
    views = [step for step, first in memory.items() if first is memory[source]]
    if any(user > node for step in views for user in step.users):
        raise UserError(
            f"{names_of(node)[1]}: changes in place a value that is read in another shape too; "
            "clone it first"
        )


def _split_clamp(graph: fx.Graph, node: fx.Node) -> Any:
    """Write max(x, low) as low + relu(x - low), and min(x, high) as high - relu(high - x)."""
    value: Any
    value, low, high = (*node.args, None, None)[:3]
    low = node.kwargs.get("min", node.kwargs.get("min_val", low))
    high = node.kwargs.get("max", node.kwargs.get("max_val", high))
    if node.target is F.relu6:
        low, high = 0.0, 6.0
    with graph.inserting_before(node):
        for sign, limit in ((1, low), (-1, high)):
            if limit is None:
                continue
            beyond = graph.call_function(operator.sub, (value, limit)[::sign])
            unit = graph.call_function(torch.relu, (beyond,))
            unit.meta = beyond.meta = node.meta
            joined = operator.add if sign == 1 else operator.sub
            value = graph.call_function(joined, (limit, unit))
    node.replace_all_uses_with(value)
    graph.erase_node(node)
    return value


def call(root: nn.Module, node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Any:
    """Compute a step, with the values of other steps as arguments."""
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(root)
    arguments: Any = fx.map_arg(node.args, value_of)
    named: Any = fx.map_arg(node.kwargs, value_of)
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **named)
    function: Any = conv2d if node.target is F.conv2d else node.target
    if node.op == "call_module":
        function = root.get_submodule(function)
    return function(*arguments, **named)


def names_of(node: fx.Node) -> tuple[str, str]:
    """A step's name for its layer and in messages: by its module of torch.nn, or its function."""
    modules = [("", nn.Module), *node.meta.get("nn_module_stack", {}).values()]
    path, kind = modules[-1][0].partition(".")[2], modules[-1][1]
    if path and kind.__module__.startswith("torch.nn."):
        return path, f"{path} ({kind.__name__})"
    return node.name, str(getattr(node.target, "__name__", node.target))


def is_size(node: fx.Node) -> bool:
    """Whether a step reads a shape, such as the batch in ``x.view(x.size(0), -1)``."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return bool(node.args[1] == "shape")
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, fx.Node) and is_size(source)
