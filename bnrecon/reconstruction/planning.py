"""Before any work: which layers are rebuilt, with how many features, and what cannot be done."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from bnrecon.construction.residual import minimum_width
from bnrecon.features.drawing import draw
from bnrecon.features.pair import Features
from bnrecon.features.register import choose_width, distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.arguments import (
    check_model,
    check_seed,
    check_unsupported,
    feature_spec,
    solver_spec,
)
from bnrecon.reconstruction.attention import fast_path_notes, unpack
from bnrecon.reconstruction.folding import FoundLayer, find_layers, layer_label
from bnrecon.reconstruction.groups import group_number, together_bytes
from bnrecon.reconstruction.refusal import RefusedLayers, list_refused, raise_nothing_left
from bnrecon.reconstruction.source_layer import IMPLICIT_FROM
from bnrecon.reconstruction.storage import (
    advice,
    count,
    disk_bytes,
    fit_together,
    give_room,
    held_bytes,
    host_bytes,
    memory_shortage,
    solver_shortage,
    solving_bytes,
    store,
    together,
)
from bnrecon.reconstruction.substitution import check_copy, substitute, uncompiled
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.hardware import available_memory
from bnrecon.solvers.pruning import check_solver, none_to_spare
from bnrecon.solvers.register import lookup
from bnrecon.solvers.solving import Choice, choose
from bnrecon.solvers.spec import SolverSpec

__all__ = ["Plan", "PlannedLayer", "RefusedLayers", "plan_layers"]

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

    @property
    def regenerated(self) -> bool:
        """Whether features are made wherever they are used, instead of being stored."""
        return self.storage == "regenerate"

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
        return choose(self.rows, columns, orthogonal, self.room, self.solver.tolerance)

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

    ``kept`` has the reason for each layer that is left as it is.
    """

    layers: list[PlannedLayer]
    notes: list[str]
    model: nn.Module = field(default_factory=nn.Identity)
    features: FeatureSpec = field(default_factory=FeatureSpec)
    kept: dict[str, str] = field(default_factory=dict)

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

    @property
    def regenerated(self) -> bool:
        """Whether features are made wherever they are used, instead of being stored."""
        return self.storage == "regenerate"


def plan_layers(
    model: nn.Module,
    features: FeatureSpec | str = "he_normal",
    solver: SolverSpec | str = "auto",
    *,
    seed: int = 0,
    unsupported: str = "raise",
    images: torch.Tensor | None = None,
    device: torch.device | None = None,
) -> Plan:
    """Choose the width of every layer, and refuse what cannot be done before any work.

    Args:
        model: a network in eval mode.
        features: what every layer is given; a name stands for ``FeatureSpec(name)``.
        solver: how every layer is solved; a name stands for ``SolverSpec(name)``.
        seed: what features are drawn from.
        unsupported: ``"raise"``, or ``"keep"`` to leave layers that cannot be rebuilt as they are
            and to plan as many as memory holds together.
        images: one batch, (N, C, H, W), that is run to see how the model uses its weights.
        device: where memory is looked up; that of the model by default.

    Raises:
        UserError: an option or a layer is not possible; ``RefusedLayers`` has the reason for each.
        RunError: memory does not suffice for the solver.

    >>> _ = torch.manual_seed(0)
    >>> plan = plan_layers(nn.Linear(3, 4).eval(), FeatureSpec(width="minimum"))
    >>> [(layer.label, layer.width) for layer in plan.layers]  # n - c2 + 1 = 12 - 4 + 1
    [('the model', 9)]
    """
    features, solver = feature_spec(features), solver_spec(solver)
    check_model(model)
    check_seed(seed)
    check_unsupported(unsupported)
    if features.pruning is not None:
        check_solver(features.pruning, solver)
    own = uncompiled(model)
    compiled = own is not model
    _check_tensors(own)
    model = unpack(own, substitute)
    device = device or next((p.device for p in model.parameters()), torch.device("cpu"))
    free, host = available_memory(device), available_memory(torch.device("cpu"))
    inventory = find_layers(model, images)
    wanted = [
        PlannedLayer(
            found, _width(found.target.shape, features, solver), number, features, solver, int(seed)
        )
        for number, found in enumerate(inventory.layers)
    ]
    wanted = store(wanted, features, free, host)
    stored = sum(layer.stored for layer in wanted)
    planned: list[PlannedLayer] = []
    too_large: dict[str, str] = {}
    for layer in wanted:
        _check_layer(layer)
        beside = stored if unsupported == "raise" else layer.stored
        shortage = solver_shortage(layer, beside, free)
        if shortage and unsupported == "raise":
            instead = "use solver=matrix_free with oversampling=1.5, or features=id_cond"
            raise RunError(f"{layer.label}: {shortage}; {instead}")
        if shortage := shortage or memory_shortage(layer, free):
            too_large[layer.name] = shortage
        else:
            planned.append(layer)
    refused = inventory.refused | too_large
    if refused and unsupported == "raise":
        instead = f"; {advice(wanted, features)}" if too_large else ""
        raise RefusedLayers(f"cannot be rebuilt: {list_refused(refused)}{instead}", refused)
    refused |= fit_together(planned, free, host, unsupported)
    planned = give_room(planned, free)  # of those that are left
    if not planned:
        raise_nothing_left(refused)
    kept = [f"{name or 'the model'} is left as it is: {reason}" for name, reason in refused.items()]
    notes = [*inventory.notes, *kept, *_slow(planned), *fast_path_notes(model)]
    if compiled:
        notes.append("the model is compiled, the source network is not: torch.compile it again")
    check_copy(model, [layer.found for layer in planned])
    return Plan(planned, notes, model, features, refused)


def _width(shape: LayerShape, features: FeatureSpec, solver: SolverSpec) -> int:
    """The width c1 that a layer is given."""
    given = (features.oversampling, features.excess, features.width)
    if given == (None, None, None) and solver.name != "auto" and lookup(solver.name).square:
        return shape.equations
    # The minimum width of id_cond is n - c2 + 1, skip connection or not: it has no feature to
    # spare.
    if features.width == "minimum" and not distribution(features.name).widths:
        return max(1, minimum_width(shape, features.skip))
    return choose_width(features.name, shape, *given)


def _check_tensors(model: nn.Module) -> None:
    """Raise ``UserError`` unless all of the model's tensors hold numbers."""
    lazy = [name for name, part in model.named_modules() if isinstance(part, LazyModuleMixin)]
    if lazy:
        names = shorten([name or "the model" for name in lazy])
        raise UserError(f"{names}: a lazy module has no weights yet; run the network once before")
    if any(value.is_meta for value in [*model.parameters(), *model.buffers()]):
        raise UserError(
            "model: some of its tensors are on the meta device and hold no numbers; "
            "load its weights first"
        )


def _check_layer(layer: PlannedLayer) -> None:
    """Raise ``UserError`` for a width that is not possible, and for weights that are not finite."""
    features, c1 = layer.features, layer.width
    least = minimum_width(layer.shape, features.skip)
    if c1 < least and not features.allow_below_minimum:
        outer = features.skip == "outer"
        bound, source = ("n - c2", "Eq. 3") if outer else ("n - c2 + 1", "Thm 2.2")
        raise UserError(
            f"{layer.label}: {_features_are(c1)} below the minimum width {bound} = {least} "
            f"(Burkholz 2024, {source}) from which a target can be rebuilt; take more, or set "
            "allow_below_minimum=True"
        )
    if features.keep is not None and least <= c1 < layer.shape.equations:
        raise UserError(f"{layer.label}: {none_to_spare(layer.shape.equations, c1)}")
    if c1 < 1:
        raise UserError(f"{layer.label}: {count(c1)} features; at least one is needed")
    target = layer.found.target
    for what, value in (("weights", target.weight), ("bias", target.bias)):
        if not bool(torch.isfinite(value).all()):
            raise UserError(
                f"{layer.label}: its {what}, normalization folded in, are not all finite; "
                "nothing can be rebuilt from them"
            )
    kind = distribution(features.name)
    kind.check_width(layer.shape, c1)
    if layer.solver.name != "auto":
        lookup(layer.solver.name).check(layer.rows, c1, kind.orthogonal)


def _slow(planned: list[PlannedLayer]) -> list[str]:
    """A note on what will take long."""
    rows = max(layer.shape.outputs * layer.shape.taps for layer in planned)
    if planned[0].features.name == "ortho_cond" and rows > 20_000:
        return ["ortho_cond factorizes matrices of more than 20,000 rows here: expect hours"]
    return []


def _features_are(number: int) -> str:
    return f"{count(number)} {'feature is' if number == 1 else 'features are'}"
