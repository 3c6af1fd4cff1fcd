"""What a plan decides for each layer: features, solver, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from bnrecon.construction.residual import minimum_width
from bnrecon.features.drawing import draw
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.generated import Generated
from bnrecon.operators.integers import IntegerProducts
from bnrecon.operators.signs import SignMatrix
from bnrecon.reconstruction import source_layer
from bnrecon.reconstruction.folding import FoldedLayer
from bnrecon.reconstruction.groups import group_number, together_bytes
from bnrecon.reconstruction.refusal import layer_label
from bnrecon.solvers.iterative import rounded_itemsize
from bnrecon.solvers.register import lookup
from bnrecon.solvers.solving import Choice, choose
from bnrecon.solvers.spec import SolverSpec

MAP_BYTES = 32  # per feature: scale, shift and statistics in float64, besides BatchNorm's
VECTOR_BYTES = 48  # the same with those of a float32 BatchNorm
DRAWING = 3  # times the features' size, while a matrix factorization draws them


@dataclass(frozen=True)
class PlannedLayer:
    """A layer that will be rebuilt.

    Args:
        folded: the layer, with the BatchNorm that follows it folded in.
        width: c1, the number of features, per group of a grouped convolution.
        number: the layer's index among those listed; its features depend on it.
        features: how features are drawn.
        solver: how the layer is solved.
        seed: the seed of the features.
        storage: where features are stored: ``memory``, ``disk``, or ``regenerate`` (nowhere).
        room: bytes of memory for the solver; ``auto`` chooses by it.
    """

    folded: FoldedLayer
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
        return self.folded.name

    @property
    def label(self) -> str:
        """The layer's name in messages."""
        return layer_label(self.folded.name)

    @property
    def shape(self) -> LayerShape:
        """The target layer's shape; for a grouped convolution, that of one group."""
        return self.folded.target.shape

    @property
    def groups(self) -> int:
        """The number of groups, each with separate features."""
        return self.folded.target.groups

    def draw(self, group: int = 0) -> Features:
        """Draw the features of the layer or of one group, the same at each call."""
        spec, number = self.features, group_number(self.number, group)
        drawn_with = (spec.strict, spec.skip, self.storage)
        return draw(spec.name, self.shape, self.width, self.seed, number, *drawn_with)

    @property
    def device(self) -> torch.device:
        """Where the layer is solved."""
        return self.folded.module.weight.device

    def draw_groups(self) -> list[Features]:
        """Draw the features of all groups."""
        return [self.draw(group) for group in range(self.groups)]

    @property
    def feature_bytes(self) -> int:
        """Bytes of the features of all groups, in float32."""
        return self.groups * self.shape.feature_bytes(self.width)

    @property
    def implicit(self) -> bool:
        """Whether the features are implicit: M = I, and too large to be worth storing."""
        identity = self.features.name == "id_cond" and self.width == self.shape.equations
        return identity and self.feature_bytes > source_layer.IMPLICIT_FROM

    @property
    def rows(self) -> int:
        """How many equations are solved: n, or fewer where second scales are eliminated."""
        n, least = self.shape.equations, minimum_width(self.shape, self.features.skip)
        return least if least <= self.width < n else n

    @property
    def choice(self) -> Choice:
        """The requested solver, or the one that ``auto`` chooses."""
        return self._choose(self.solver.name, self.width)

    def _choose(self, name: str, columns: int) -> Choice:
        if name != "auto":
            return Choice(name, "", columns)
        orthogonal = distribution(self.features.name).orthogonal
        tolerance, device = self.solver.tolerance, self.device
        return choose(self.rows, columns, orthogonal, self.room, tolerance, orthogonal, device)

    @property
    def solver_memory(self) -> int:
        """Bytes that the solver needs besides the operator, for one group at a time."""
        choices, kept = [self.choice], self.features.kept(self.width)
        if self.rows <= kept < self.width:
            choices.append(self._choose("auto", kept))  # solves again with these features alone
        needs = [lookup(choice.solver).memory(self.rows, choice.features) for choice in choices]
        if self.groups > 1 and self.solver.name == "auto":
            needs.append(together_bytes(self.rows, self.width, self.groups))
        return max(needs)

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of memory that the source layer takes."""
        module, weights = self.folded.module, 0
        if self.storage == "memory" and not self.implicit:
            frozen = (self.features.name, self.shape, self.width, module)
            weights = source_layer.weight_bytes(*frozen)
        return weights + self.groups * self.width * (MAP_BYTES + 4 * module.weight.itemsize)

    @cached_property
    def working_bytes(self) -> int:
        """Additional bytes while the layer is solved, for the operator and the solver.

        If features are not in memory, this covers at least the source layer's forward pass.
        Features that cannot be drawn in parts are drawn in memory before they are written.
        """
        needed = self.operator_bytes(self.choice.solver) + self.solver_memory
        if self.storage == "memory":
            return needed
        if self.storage == "disk" and "regenerate" not in distribution(self.features.name).storages:
            needed = max(needed, DRAWING * self.shape.feature_bytes(self.width))
        return max(needed, source_layer.FORWARD_BYTES)

    def operator_bytes(self, solver: str) -> int:
        """Bytes of one group's operator for a solver, with the tiles of its products.

        Features in memory have a transposed and a rounded copy. Others have rounded features (bits
        for signs), unless those are on disk too.
        """
        width, device = self.width, self.device
        numbers = self.shape.feature_size
        if self.storage == "memory":
            copies = 0 if self.implicit else 2 * 4 * numbers  # transposed and rounded, in float32
            return width * (2 * VECTOR_BYTES + copies)
        tiles = Generated.tile_bytes(width, numbers, device)
        if self.storage == "disk":
            return tiles
        if self.features.name == "sign":
            signs = width * numbers, device
            return tiles + SignMatrix.pair_bytes(*signs) + IntegerProducts.pair_bytes(*signs)
        return tiles + self.rounded_bytes(solver)

    def rounded_bytes(self, solver: str) -> int:
        """Bytes of one group's rounded features that a solver's iterations read."""
        itemsize = rounded_itemsize(solver, self.rows, self.width, self.device)
        return itemsize * self.width * self.shape.feature_size


def memory_bytes(layers: Sequence[PlannedLayer]) -> int:
    """Bytes for all layers together: what each stores, and the most that one works with."""
    largest = max((layer.working_bytes for layer in layers), default=0)
    return sum(layer.stored_bytes for layer in layers) + largest


def host_bytes(layers: Sequence[PlannedLayer]) -> int:
    """Bytes of host memory for layers on a GPU: drawn weights, and one layer in transfer."""
    sizes = [
        layer.feature_bytes
        for layer in layers
        if layer.device.type != "cpu" and layer.storage == "memory" and not layer.implicit
    ]
    drawn = all(source_layer.holds_weights(layer.features.name) for layer in layers)
    return drawn * sum(sizes) + 2 * max(sizes, default=0)


def disk_bytes(layers: Sequence[PlannedLayer]) -> int:
    """Bytes of temporary files: the features of all layers, and one layer's rounded ones."""
    on_disk = [layer for layer in layers if layer.storage == "disk"]
    rounded = (layer.rounded_bytes(layer.choice.solver) for layer in on_disk)
    return sum(layer.feature_bytes for layer in on_disk) + max(rounded, default=0)
