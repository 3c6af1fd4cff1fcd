"""A network as a sequence of affine steps, activations and poolings, read off a torch.fx trace."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from bnrecon.runtime.errors import UserError, first_line

__all__ = ["Layer", "PiecewiseAffine", "State"]

AFFINE_MODULES = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Identity),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d),
    *(nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d),
)
ACTIVATION_MODULES = (nn.ReLU, nn.LeakyReLU)
# In-place additions become plain ones: a chunk of regions shares its tensors with no other.
AFFINE_FUNCTIONS: dict[Any, Callable] = {
    operator.add: operator.add,
    operator.iadd: operator.add,
    torch.add: torch.add,
    operator.sub: operator.sub,
    operator.isub: operator.sub,
    operator.neg: operator.neg,
    torch.flatten: torch.flatten,
    F.avg_pool2d: F.avg_pool2d,
    F.adaptive_avg_pool2d: F.adaptive_avg_pool2d,
    F.dropout: F.dropout,
}
# A product of two activations is not affine: one factor must be a number.
SCALING_FUNCTIONS = {operator.mul, operator.imul, operator.truediv, operator.itruediv, torch.mul}
AFFINE_METHODS = {"flatten", "add", "add_", "sub", "contiguous"}
RESHAPES = {"view", "reshape"}
ACTIVATION_FUNCTIONS = {torch.relu, torch.relu_, F.relu, F.leaky_relu, torch.abs, operator.abs}
ACTIVATION_METHODS = {"relu", "relu_", "abs", "abs_"}
SUPPORTED = (
    "Linear, Conv1d/2d, BatchNorm1d/2d, average and 2-D max pooling, Flatten, Dropout, Identity, "
    "sums, ReLU, LeakyReLU and abs"
)

State = dict[fx.Node, torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """A layer of units that are not affine.

    Attributes:
        name: the module's name in the network, or the function's in the trace.
        kind: ``activation`` or ``pooling``.
        shape: of its output for one input.
    """

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def units(self) -> int:
        """How many units it has."""
        return int(torch.Size(self.shape).numel())


class PiecewiseAffine:
    """A float64 copy of a network in eval mode, run step by step.

    On a region where every unit keeps its state the network is affine, and an affine map is known
    by its values at affinely independent points. A state holds the values at P such points for each
    of R regions as one batch (R P, ...): every affine step is the network's own module, run on it.

    Supported are Linear, Conv1d/2d, BatchNorm1d/2d with running statistics, average pooling,
    MaxPool2d, Flatten, Dropout (the identity), Identity, ZeroPad2d, ReLU, LeakyReLU, abs, sums and
    differences of activations (residual networks), products with numbers, flatten and
    view/reshape that keep the batch. Anything else is refused.

    Args:
        network: the network; it is not changed.
        shape: of one input.

    Raises:
        UserError: where the network cannot be traced, or names the step that is not supported.
    """

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        self.module = copy.deepcopy(network).cpu().double().eval()
        self.shape = shape
        graph, self._names = _trace(self.module)
        self._modules = dict(self.module.named_modules())
        sizes = {node for node in graph.nodes if _is_size(node)}
        self.steps = [node for node in graph.nodes if node not in sizes]
        self.kinds = {node: self._kind(node, sizes) for node in self.steps}
        self._free_after = _last_uses(self.steps)
        self.widest = 1  # numbers that a layer's units compare, in the widest layer
        self.layers = tuple(self._measure())

    @property
    def output(self) -> fx.Node:
        """The step whose value is the network's output."""
        return self.steps[-1]

    def start(self, points: torch.Tensor) -> State:
        """The state before the first step, at points (R P, *input shape)."""
        return {self.steps[0]: points}

    def walk(self, state: State, start: int = 0) -> Iterator[tuple[int, fx.Node, torch.Tensor]]:
        """Run the affine steps on the state, and stop at each layer that is not affine.

        Values that no later step reads are dropped from the state.

        Args:
            state: the values so far; they become those of later steps.
            start: position of the first step to run.

        Yields:
            A layer's position, its step and its input. The caller sets ``state[step]`` to the
            layer's value before it takes the next one.
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
        elif node.op not in ("placeholder", "get_attr"):
            state[node] = self._run(node, state)

    def hold(self, node: fx.Node, source: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """A layer's values at each region's points, with its units in the state of the region.

        Args:
            node: the layer's step.
            source: (R P, ...), its input at the P points of each of R regions.
            inside: (R, inputs), its input within each region, which gives the state.
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
        """An activation's slope where it is applied to these values."""
        below: Any = -1.0 if "abs" in str(node.target) else 0.0
        if node.op == "call_module":
            module = self._modules[str(node.target)]
            below = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
        elif node.target is F.leaky_relu:
            below = node.kwargs.get("negative_slope", (*node.args, 0.01)[1])
        return torch.where(values > 0, torch.ones_like(values), below)

    def members(self, node: fx.Node, shape: torch.Size) -> torch.Tensor:
        """The inputs (units, m) of each unit of a max-pooling, as indices into a flattened input.

        A place in the padding is replaced by the window's first real one, which never changes the
        maximum.
        """
        pool: Any = self._modules[str(node.target)]
        channels, height, width = shape[-3:]
        places = torch.arange(1.0, height * width + 1, dtype=torch.float64)
        options = {"padding": pool.padding, "dilation": pool.dilation, "stride": pool.stride}
        image = places.reshape(1, 1, height, width)
        index = F.unfold(image, pool.kernel_size, **options)[0].T.long() - 1
        first = index.gather(1, (index >= 0).long().argmax(1, keepdim=True))
        index = torch.where(index < 0, first, index)
        channel = torch.arange(channels)[:, None, None] * (height * width)
        return (channel + index).flatten(0, 1)

    def _run(self, node: fx.Node, state: State) -> torch.Tensor:
        def value_of(step: fx.Node) -> torch.Tensor | None:
            if step.op == "get_attr":
                return _attribute(self.module, str(step.target))
            return state.get(step)  # none for a tensor's size, which view and reshape keep

        arguments: Any = fx.map_arg(node.args, value_of)
        named: Any = fx.map_arg(node.kwargs, value_of)
        if node.op == "call_module":
            return self._modules[str(node.target)](*arguments, **named)
        if node.op == "call_method":
            value, *rest = arguments
            if node.target in RESHAPES:
                sizes = rest[0] if isinstance(rest[0], tuple | list) else rest
                return value.reshape(len(value), *sizes[1:])
            return getattr(value, str(node.target).rstrip("_"))(*rest, **named)
        function: Any = AFFINE_FUNCTIONS.get(node.target, node.target)
        return function(*arguments, **named)

    def _kind(self, node: fx.Node, sizes: set[fx.Node]) -> str:
        """``affine``, ``activation`` or ``pooling``; ``UserError`` for anything else."""
        read = set(node.all_input_nodes) & sizes
        if read and not (node.op == "call_method" and node.target in RESHAPES):
            raise UserError(f"{node.name}: reads a tensor's size; only view and reshape may")
        if node.op == "output" and not isinstance(node.args[0], fx.Node):
            raise UserError("the network returns several values; give one that returns a tensor")
        kind = _kind_of_operation(node, self._modules)
        if kind is None:
            what = str(getattr(node.target, "__name__", node.target))
            if node.op == "call_module":
                what = f"{what} ({type(self._modules[what]).__name__})"
            raise UserError(f"{what}: not supported in a partition; allowed: {SUPPORTED}")
        return kind

    def _measure(self) -> Iterator[Layer]:
        """The layers with their shapes, from a run on one input."""
        state = self.start(torch.zeros(1, *self.shape, dtype=torch.float64))
        try:
            with torch.no_grad():
                for _, node, source in self.walk(state):
                    state[node] = self.plain(node, source)
                    pooled = self.kinds[node] == "pooling"
                    compared = self.members(node, source.shape) if pooled else source
                    self.widest = max(self.widest, compared.numel())
                    name = self._names.get(node, node.name)
                    yield Layer(name, self.kinds[node], tuple(state[node].shape[1:]))
        except (RuntimeError, TypeError) as error:
            reason = first_line(error)
            raise UserError(f"an input of shape {self.shape} does not fit: {reason}") from None

    def plain(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        """An activation or a pooling as the network computes it."""
        if self.kinds[node] == "pooling":
            return self._modules[str(node.target)](value)
        return self.slopes(node, value) * value


class _Tracer(fx.Tracer):
    """Takes every supported module as one step, subclasses too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        supported = (*AFFINE_MODULES, *ACTIVATION_MODULES, nn.MaxPool2d)
        return isinstance(m, supported) or super().is_leaf_module(m, module_qualified_name)


def _trace(network: nn.Module) -> tuple[fx.Graph, dict[fx.Node, str]]:
    try:
        graph = _Tracer().trace(network)
    except Exception as error:  # tracing runs the user's forward, which can raise anything
        reason = first_line(error)
        raise UserError(f"the network cannot be traced by torch.fx: {reason}") from None
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise UserError(f"the network takes {len(inputs)} inputs; a slice has one")
    names = {node: str(node.target) for node in graph.nodes if node.op == "call_module"}
    return graph, names


def _kind_of_operation(node: fx.Node, modules: dict[str, nn.Module]) -> str | None:
    if node.op in ("placeholder", "output", "get_attr"):
        return "affine"
    target: Any = node.target
    if node.op == "call_module":
        return _kind_of_module(modules[target])
    if node.op == "call_method":
        if target in ACTIVATION_METHODS:
            return "activation"
        if target == "flatten" and _merges_batch(node):
            return None
        return "affine" if target in AFFINE_METHODS | RESHAPES else None
    if target in ACTIVATION_FUNCTIONS:
        return "activation"
    if target in SCALING_FUNCTIONS:
        if len(node.args) < 2:  # as in torch.mul(x, other=2)
            return None
        first, second = node.args[:2]
        numbers = [isinstance(second, int | float), isinstance(first, int | float)]
        allowed = numbers if target in {operator.mul, operator.imul, torch.mul} else numbers[:1]
        return "affine" if any(allowed) else None
    if target is torch.flatten and _merges_batch(node):
        return None
    return "affine" if target in AFFINE_FUNCTIONS else None


def _merges_batch(node: fx.Node) -> bool:
    """Whether a flatten joins the inputs of a batch into one vector."""
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
    return bool(start == 0)


def _kind_of_module(module: nn.Module) -> str | None:
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is None:
        return None  # normalizes by the batch in eval mode too
    if isinstance(module, nn.MaxPool2d):
        return None if module.ceil_mode or module.return_indices else "pooling"
    if isinstance(module, ACTIVATION_MODULES):
        return "activation"
    return "affine" if isinstance(module, AFFINE_MODULES) else None


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
    last = {node: position for position, node in enumerate(steps)}
    for position, node in enumerate(steps):
        for read in node.all_input_nodes:
            last[read] = position
    free: list[list[fx.Node]] = [[] for _ in steps]
    for node, position in last.items():
        if position < len(steps) and node is not steps[-1]:
            free[position].append(node)
    return free


def _attribute(module: nn.Module, path: str) -> torch.Tensor:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value.detach()
