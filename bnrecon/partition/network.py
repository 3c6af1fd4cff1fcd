"""A network as a sequence of affine steps, activations and poolings, from a torch.fx trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _single

from bnrecon.partition.convolution import by_side
from bnrecon.partition.tracing import OPERATIONS, call, copy_network, is_size, names_of, trace
from bnrecon.runtime.errors import UserError, first_line

ACTIVATIONS = {"relu", "leaky_relu", "prelu", "abs"}
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
        self.module = copy_network(network).cpu().double().eval()
        self.shape = shape
        root = nn.Sequential(self.module)  # torch.fx takes a root's forward from its class
        graph = trace(root)
        self._constants: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in graph.nodes:
                if node.op == "get_attr" or (
                    node.op.startswith("call")
                    and self._constants.keys() >= set(node.all_input_nodes)
                ):
                    self._constants[node] = call(root, node, self._constants.__getitem__)
        steps = [node for node in graph.nodes if node not in self._constants]
        sizes: set[fx.Node] = set()
        for node in steps:
            reads = set(node.all_input_nodes) - self._constants.keys()
            if is_size(node) or (reads and reads <= sizes):  # computed from sizes alone
                sizes.add(node)
        self.steps = [node for node in steps if node not in sizes]
        self.kinds = {node: self._kind(node, sizes) for node in self.steps}
        self._free_after = _last_uses(self.steps)
        interpreter = fx.Interpreter(root, garbage_collect_values=False, graph=graph)
        self._reshaped: dict[fx.Node, tuple[int, ...]] = {}  # to what shape for one input
        measured = list(self._measure(interpreter))
        self.layers = tuple(layer for layer, _ in measured)
        compared = [numbers for _, numbers in measured] or [1]
        # By layer, how many numbers its units compare, or those of a wider later layer.
        self.widest = tuple(itertools.accumulate(reversed(compared), max))[::-1]

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
                raise UserError(f"{names_of(node)[1]}: joins the inputs of a batch")
            if not bool(torch.isfinite(value).all()):
                raise UserError(
                    f"{names_of(node)[1]}: its values are not finite; look for weights, buffers "
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
        else:
            options = {k: by_side(v) for k, v in options.items()}
        positions = torch.arange(1.0, height * width + 1, dtype=torch.float64)
        index = F.unfold(positions.reshape(1, 1, height, width), **options)[0].T.long() - 1
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
            return call(self.module, node, value_of)
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
        label = names_of(node)[1]
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

    def _measure(self, interpreter: fx.Interpreter) -> Iterator[tuple[Layer, int]]:
        """Yield each layer and how many numbers its units compare, from a run on two inputs."""
        points = torch.zeros(2, *self.shape, dtype=torch.float64)
        try:
            with torch.no_grad():
                self.module(points)
                values: dict[fx.Node, Any] = {}
                interpreter.run(points, initial_env=values)
                reshaped = [n for n in self.steps if OPERATIONS.get(n.target) == "reshape"]
                self._reshaped = {node: tuple(values[node].shape[1:]) for node in reshaped}
                state = self.start(points)
                for _, node, source in self.walk(state):
                    state[node] = self.plain(node, source)
                    pooled = self.kinds[node] == "pooling"
                    compared = self.members(node, source.shape) if pooled else source[0]
                    shape = tuple(state[node].shape[1:])
                    yield Layer(names_of(node)[0], self.kinds[node], shape), compared.numel()
        except UserError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = first_line(error)
            raise UserError(f"an input of shape {self.shape} does not fit: {reason}") from None


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
