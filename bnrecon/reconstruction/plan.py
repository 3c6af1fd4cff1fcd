"""What a plan says of each layer that is rebuilt, and of all of them: features, solver, memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from bnrecon.construction.residual import minimum_width
from bnrecon.features.drawing import draw
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.folding import FoundLayer
from bnrecon.reconstruction.groups import group_number, together_bytes
from bnrecon.reconstruction.refusal import layer_label
from bnrecon.reconstruction.report import OutputDifference
from bnrecon.reconstruction.source_layer import IMPLICIT_FROM
from bnrecon.reconstruction.storage import (
    disk_bytes,
    held_bytes,
    host_bytes,
    solving_bytes,
    together,
)
from bnrecon.solvers.register import lookup
from bnrecon.solvers.solving import Choice, choose
from bnrecon.solvers.spec import SolverSpec

__all__ = ["Plan", "PlannedLayer"]

FILE_BYTES = 24  # a feature's scale and shift in float64 and statistics in float32
MAP_BYTES = 32  # a feature's scale, shift and statistics in float64; BatchNorm has them too


@dataclass(frozen=True)
class PlannedLayer:
    """A layer that will be rebuilt.

    Args:
        found: the layer, with the BatchNorm that follows it folded in.
        width: c1, the number of features; of a grouped convolution, of each group.
        number: of the layer among those found; its features depend on it.
        features: what they are drawn as.
        solver: how the layer is solved.
        seed: what features are drawn from.
        storage: where they are: ``memory``, ``disk``, or ``regenerate`` for nowhere.
        room: bytes of memory that are left to the solver; ``auto`` chooses by it.
    """

    found: FoundLayer
    width: int
    number: int
    features: FeatureSpec
    solver: SolverSpec = field(default_factory=SolverSpec)
    seed: int = 0
    storage: str = "memory"
    room: float = math.inf

    @property
    def name(self) -> str:
        """The layer's name in the model."""
        return self.found.name

    @property
    def label(self) -> str:
        """What a message calls the layer."""
        return layer_label(self.found.name)

    @property
    def shape(self) -> LayerShape:
        """The target layer's shape; of a grouped convolution, that of one group."""
        return self.found.target.shape

    @property
    def groups(self) -> int:
        """How many groups the layer has, each with features of its own."""
        return self.found.target.groups

    def draw(self, group: int = 0) -> Features:
        """Draw the layer's features, or those of one group, the same ones each time."""
        spec, number = self.features, group_number(self.number, group)
        return draw(
            spec.name,
            self.shape,
            self.width,
            self.seed,
            number,
            spec.strict,
            spec.skip,
            self.storage,
        )

    @property
    def device(self) -> torch.device:
        """Where the layer is solved."""
        return self.found.module.weight.device

    def draw_groups(self) -> list[Features]:
        """Draw the features of all groups."""
        return [self.draw(group) for group in range(self.groups)]

    @property
    def implicit(self) -> bool:
        """Whether the features are implicit: M = I, and too large to be worth storing."""
        identity = self.features.name == "id_cond" and self.width == self.shape.equations
        return identity and self.groups * self.shape.feature_bytes(self.width) > IMPLICIT_FROM

    @property
    def rows(self) -> int:
        """How many equations are solved: n, or fewer where second scales are eliminated."""
        n, least = self.shape.equations, minimum_width(self.shape, self.features.skip)
        return least if least <= self.width < n else n

    @property
    def choice(self) -> Choice:
        """The solver that was named, or the one that ``auto`` chooses."""
        return self._choose(self.solver.name, self.width)

    def _choose(self, name: str, columns: int) -> Choice:
        if name != "auto":
            return Choice(name, "", columns)
        orthogonal = distribution(self.features.name).orthogonal
        return choose(
            self.rows, columns, orthogonal, self.room, self.solver.tolerance, patterned=orthogonal
        )

    @property
    def solver_memory(self) -> int:
        """Bytes that the solver needs beside the operator, for one group after the other."""
        choices, kept = [self.choice], self.features.kept(self.width)
        if self.rows <= kept < self.width:
            choices.append(self._choose("auto", kept))  # solves again with these features alone
        needs = [lookup(choice.solver).memory(self.rows, choice.features) for choice in choices]
        if self.groups > 1 and self.solver.name == "auto":
            needs.append(together_bytes(self.rows, self.width, self.groups))
        return max(needs)

    @cached_property
    def stored(self) -> int:
        """Bytes of memory that the source layer takes."""
        module, numbers = self.found.module, 0
        if self.storage == "memory" and not self.implicit:
            numbers = held_bytes(self.features.name, self.shape, self.width, module)
        return numbers + self.groups * self.width * (MAP_BYTES + 4 * module.weight.itemsize)

    @cached_property
    def work(self) -> int:
        """Bytes it takes besides while it is solved: the operator's, and the solver's own."""
        return solving_bytes(self)


@dataclass(frozen=True)
class Plan:
    """What will be rebuilt: ``layers`` of ``model``, and ``notes`` on what was found.

    ``kept`` has the reason for each layer that is left as it is, ``trial`` how far outputs are off
    once layers are replaced by others that compute the same, where images were given.
    """

    layers: list[PlannedLayer]
    notes: list[str]
    model: nn.Module = field(default_factory=nn.Identity)
    features: FeatureSpec = field(default_factory=FeatureSpec)
    kept: dict[str, str] = field(default_factory=dict)
    trial: OutputDifference | None = None

    @property
    def memory(self) -> int:
        """Bytes that all layers take together, and solving the largest of them."""
        return together(self.layers)

    @property
    def host_memory(self) -> int:
        """Bytes of the host's memory that layers on a GPU take; 0 for those on a processor."""
        return host_bytes(self.layers)

    @property
    def disk(self) -> int:
        """Bytes of the source network's file: a scale, a shift and two statistics a feature."""
        return FILE_BYTES * sum(layer.groups * layer.width for layer in self.layers)

    @property
    def temporary_disk(self) -> int:
        """Bytes of temporary files while the layers are solved and the source network is used."""
        return disk_bytes(self.layers)

    @property
    def storage(self) -> str:
        """Where all features are: ``memory``, ``disk``, or ``regenerate`` for nowhere."""
        return self.layers[0].storage if self.layers else "memory"
