"""A network as a sequence of affine steps, activations and poolings, from a torch.fx trace."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _single
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
ACTIVATIONS = {"relu", "leaky_relu", "prelu", "abs"}
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
SUPPORTED = (
    "Linear, Conv1d/2d, BatchNorm1d/2d in eval mode, average and max pooling in 1-D and 2-D "
    "without ceil_mode, padding, mean, Flatten, Dropout in eval mode, Identity, sums, cat, ReLU, "
    "LeakyReLU, PReLU, ReLU6, Hardtanh, clamp and abs"
)

State = dict[fx.Node, torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """A layer of units that are not affine.

    Attributes:
        name: the module's name in the network, or the function's in the trace.
        kind: ``activation`` or ``pooling``.
        shape: the output's for one input.
    """

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def units(self) -> int:
        """The number of units."""
        return int(torch.Size(self.shape).numel())


class PiecewiseAffine:
    """A float64 copy of a network in eval mode, run step by step.

    On a region where every unit keeps its state the network is affine, and values at affinely
    independent points determine its affine map. A state holds the values at P such points for each
    of R regions as one batch (R P, ...), on which every affine step of the network runs.

    The functions that the network calls (``OPERATIONS``) decide, not the classes of its modules:
    subclasses, replaced methods and hooks are traced too. Anything that is not piecewise affine is
    refused.

    Args:
        network: the network; it is not changed.
        shape: one input's.

    Raises:
        UserError: the network cannot be traced, or a step is not supported, which it names.
    """

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        self.module = _copy(network).cpu().double().eval()
        self.shape = shape
        root = nn.Sequential(self.module)  # torch.fx takes a root's forward from its class
        graph = _trace(root)
        self._constants: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in graph.nodes:
                if node.op == "get_attr" or (
                    node.op.startswith("call")
                    and self._constants.keys() >= set(node.all_input_nodes)
                ):
                    self._constants[node] = _call(root, node, self._constants.__getitem__)
        steps = [node for node in graph.nodes if node not in self._constants]
        sizes: set[fx.Node] = set()
        for node in steps:
            reads = set(node.all_input_nodes) - self._constants.keys()
            if _is_size(node) or (reads and reads <= sizes):  # computed from sizes alone
                sizes.add(node)
        self.steps = [node for node in steps if node not in sizes]
        self.kinds = {node: self._kind(node, sizes) for node in self.steps}
        self._free_after = _last_uses(self.steps)
        self._interpreter = fx.Interpreter(root, garbage_collect_values=False, graph=graph)
        self._reshaped: dict[fx.Node, tuple[int, ...]] = {}  # to what shape for one input
        compared: list[int] = []
        self.layers = tuple(self._measure(compared))
        # By layer, how many numbers its units compare, or those of a wider later layer.
        self.widest = tuple(itertools.accumulate(reversed(compared or [1]), max))[::-1]

    @property
    def output(self) -> fx.Node:
        """The step that computes the network's output."""
        return self.steps[-1]

    def start(self, points: torch.Tensor) -> State:
        """The state before the first step, at points (R P, *input shape)."""
        return {self.steps[0]: points}

    def walk(self, state: State, start: int = 0) -> Iterator[tuple[int, fx.Node, torch.Tensor]]:
        """Run the affine steps on the state; stop at each layer that is not affine.

        Values that no later step reads are dropped from the state.

        Args:
            state: the values so far; they become those of later steps.
            start: position of the first step to run.

        Yields:
            A layer's position, its step and its input. The caller sets ``state[step]`` to the
            layer's value before it continues.
        """
        for position, node in enumerate(self.steps[start:], start):
            if self.kinds[node] == "affine":
                self._apply(node, state)
            else:
                yield position, node, state[node.all_input_nodes[0]]
            for read in self._free_after[position]:
                state.pop(read, None)

    def _apply(self, node: fx.Node, state: State) -> None:
        if node.op == "output":
            state[node] = state[node.all_input_nodes[0]]
        elif node.op != "placeholder":
            value = self._run(node, state)
            if any(
                len(value) != len(state[read]) for read in node.all_input_nodes if read in state
            ):
                raise UserError(f"{_names_of(node)[1]}: joins the inputs of a batch")
            if not bool(torch.isfinite(value).all()):
                raise UserError(
                    f"{_names_of(node)[1]}: its values are not finite; look for weights, buffers "
                    "or inputs that are not, or so large that the step overflows"
                )
            state[node] = value

    def hold(self, node: fx.Node, source: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """A layer's values at each region's points, its units in the region's state.

        Args:
            node: the layer's step.
            source: (R P, ...), its input at the P points of each of R regions.
            inside: (R, inputs), its input inside each region, which determines the state.
        """
        value = source.reshape(len(inside), -1, inside.shape[1])
        if self.kinds[node] == "activation":
            return (value * self.slopes(node, inside)[:, None]).reshape(source.shape)
        members = self.members(node, source.shape)
        winner = inside[:, members].argmax(2, keepdim=True)
        chosen = members.expand(len(value), -1, -1).gather(2, winner)[..., 0]
        held = value.gather(2, chosen[:, None].expand(-1, value.shape[1], -1))
        return held.reshape(len(source), *self.plain(node, source[:1]).shape[1:])

    def slopes(self, node: fx.Node, values: torch.Tensor) -> torch.Tensor:
        """An activation's slope at these values (n, units)."""
        below: Any = {"abs": -1.0, "relu": 0.0}.get(OPERATIONS[node.target])
        if node.target is F.leaky_relu:
            below = node.kwargs["negative_slope"]
        elif node.target is F.prelu:
            weight: Any = node.args[1]
            below = self._constants[weight]  # one for all, or one per channel
            below = below.repeat_interleave(values.shape[1] // len(below))
        return torch.where(values > 0, torch.ones_like(values), below)

    def members(self, node: fx.Node, shape: torch.Size) -> torch.Tensor:
        """The inputs (units, m) of each unit of a max-pooling, as indices into a flattened input.

        A position in the padding is replaced by the window's first real one, which never changes
        the maximum.
        """
        names = ("stride", "padding", "dilation")
        options: dict[str, Any] = {name: node.kwargs[name] for name in names}
        options["kernel_size"] = node.args[1]
        options["stride"] = options["stride"] or options["kernel_size"]
        dimensions, height, width = 2, shape[-2], shape[-1]
        if node.target is F.max_pool1d:  # as an image of one row
            dimensions, height = 1, 1
            options = {k: (int(k != "padding"), *_single(v)) for k, v in options.items()}
        places = torch.arange(1.0, height * width + 1, dtype=torch.float64)
        index = F.unfold(places.reshape(1, 1, height, width), **options)[0].T.long() - 1
        first = index.gather(1, (index >= 0).long().argmax(1, keepdim=True))
        index = torch.where(index < 0, first, index)
        channel = torch.arange(shape[1:-dimensions].numel())[:, None, None] * (height * width)
        return (channel + index).flatten(0, 1)

    def plain(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        """Compute an activation or a pooling as the network does."""
        if self.kinds[node] == "pooling":
            pool: Any = node.target
            return pool(value, *node.args[1:], **node.kwargs)
        flat = value.flatten(1)
        return (self.slopes(node, flat) * flat).reshape(value.shape)

    def _run(self, node: fx.Node, state: State) -> torch.Tensor:
        def value_of(step: fx.Node) -> Any:
            return self._constants[step] if step in self._constants else state.get(step)

        if OPERATIONS[node.target] != "reshape":
            return _call(self.module, node, value_of)
        value = value_of(node.all_input_nodes[0])
        return value.reshape(len(value), *self._reshaped[node])

    def _kind(self, node: fx.Node, sizes: set[fx.Node]) -> str:
        """``affine``, ``activation`` or ``pooling``; raises ``UserError`` for anything else."""
        if node.op == "placeholder":
            return "affine"
        if node.op == "output":
            if not isinstance(node.args[0], fx.Node) or node.args[0] in self._constants:
                raise UserError("the network does not return one tensor that depends on its input")
            return "affine"
        kind = None if node.op == "call_module" else OPERATIONS.get(node.target)
        label = _names_of(node)[1]
        if kind != "reshape" and sizes & set(node.all_input_nodes):
            raise UserError(f"{label}: reads a tensor's size; only view and reshape may")
        reads: list[fx.Node] = []
        fx.map_arg((node.args, node.kwargs), reads.append)  # a value read twice counts twice
        values = tuple(read for read in reads if read not in sizes | self._constants.keys())
        other = ("ceil_mode", "return_indices") if kind == "pooling" else ("training",)
        allowed = values == node.args[:1] and not any(node.kwargs.get(name) for name in other)
        if kind in ("sum", "product"):
            allowed = kind == "sum" or len(values) == 1
        if kind is None or not allowed:
            raise UserError(f"{label}: not supported in a partition; allowed: {SUPPORTED}")
        return "activation" if kind in ACTIVATIONS else "pooling" if kind == "pooling" else "affine"

    def _measure(self, numbers: list[int]) -> Iterator[Layer]:
        """Yield the layers, from a run on a few inputs; append the ``numbers`` units compare."""
        points = torch.zeros(2, *self.shape, dtype=torch.float64)
        try:
            with torch.no_grad():
                self.module(points)
                values: dict[fx.Node, Any] = {}
                self._interpreter.run(points, initial_env=values)
                reshaped = [n for n in self.steps if OPERATIONS.get(n.target) == "reshape"]
                self._reshaped = {node: tuple(values[node].shape[1:]) for node in reshaped}
                state = self.start(points)
                for _, node, source in self.walk(state):
                    state[node] = self.plain(node, source)
                    pooled = self.kinds[node] == "pooling"
                    compared = self.members(node, source.shape) if pooled else source[0]
                    numbers.append(compared.numel())
                    shape = tuple(state[node].shape[1:])
                    yield Layer(_names_of(node)[0], self.kinds[node], shape)
        except UserError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = first_line(error)
            raise UserError(f"an input of shape {self.shape} does not fit: {reason}") from None


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


def _copy(network: nn.Module) -> nn.Module:
    """Copy the network, also weights that a hook computed with their gradient."""
    computed = [
        value
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    ]
    return copy.deepcopy(network, {id(value): value.detach() for value in computed})


def _trace(root: nn.Module) -> fx.Graph:
    """Trace the functions that a network calls, none in place, only those its output needs."""
    graph = _Tracer().trace(root)
    memory: dict[fx.Node, fx.Node] = {}  # by value, the step that owns its memory
    for node in list(graph.nodes):
        source: Any = node.kwargs.get("out", node.args[0] if node.args else None)
        calls = node.op in ("call_function", "call_method") and not _is_size(node)
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
            f"{_names_of(node)[1]}: changes in place a value that is read in another shape too; "
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


def _call(root: nn.Module, node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Any:
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


def _names_of(node: fx.Node) -> tuple[str, str]:
    """A step's name for its layer and in messages: by its module of torch.nn, or its function."""
    modules = [("", nn.Module), *node.meta.get("nn_module_stack", {}).values()]
    path, kind = modules[-1][0].partition(".")[2], modules[-1][1]
    if path and kind.__module__.startswith("torch.nn."):
        return path, f"{path} ({kind.__name__})"
    return node.name, str(getattr(node.target, "__name__", node.target))


def _is_size(node: fx.Node) -> bool:
    """Whether a step reads a shape, such as the batch in ``x.view(x.size(0), -1)``."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return bool(node.args[1] == "shape")
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, fx.Node) and _is_size(source)


def _last_uses(steps: list[fx.Node]) -> list[list[fx.Node]]:
    """For every step, the values that it is the last to read."""
    last: dict[fx.Node, int] = {}
    for position, node in enumerate(steps):
        last |= dict.fromkeys((node, *node.all_input_nodes), position)
    free: list[list[fx.Node]] = [[] for _ in steps]
    for node, position in last.items():
        if node is not steps[-1]:
            free[position].append(node)
    return free
