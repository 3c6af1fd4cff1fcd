"""Before any work: which layers are rebuilt, with how many features, and what cannot be done."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from bnrecon.construction.residual import minimum_width
from bnrecon.features.drawing import check_skip
from bnrecon.features.register import choose_width, distribution
from bnrecon.reconstruction.folding import FoundLayer, find_layers
from bnrecon.reconstruction.source_layer import IMPLICIT_FROM
from bnrecon.runtime.errors import RunError, UserError, nearest
from bnrecon.runtime.hardware import available_memory, gigabytes
from bnrecon.solvers.base import lookup, require_memory

__all__ = ["LISTED", "Plan", "PlannedLayer", "RefusedLayers", "is_number", "is_whole", "plan_layers"]


WAY_OUT = "use solver=matrix_free with features.oversampling=1.5, or features=id_cond"


PARAMETER_BYTES = 48  # a feature: scale, shift and statistics of its normalization, in float64 and as BatchNorm holds them


LISTED = 3  # refused layers that a message names


class RefusedLayers(UserError):
    """Layers that cannot be rebuilt; ``refused`` maps each one's name to the reason."""

    def __init__(self, refused: Mapping[str, str]):
        self.refused = dict(refused)
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:LISTED])
        more = f"; and {len(refused) - LISTED} more (error.refused has all)" if len(refused) > LISTED else ""
        super().__init__(f"cannot be rebuilt: {listed}{more} (unsupported='keep' leaves such layers as they are)")


@dataclass(frozen=True)
class PlannedLayer:
    """A layer that will be rebuilt, with its features' width and number."""

    found: FoundLayer
    width: int
    number: int

    features: str

    @property
    def implicit(self) -> bool:
        """Whether the features are implicit: M = I, and too large to be worth storing."""
        shape = self.found.target.shape
        identity = self.features == "id_cond" and self.width == shape.equations
        return identity and shape.feature_bytes(self.width) > IMPLICIT_FROM


@dataclass(frozen=True)
class Plan:
    """What will be rebuilt, and what was noticed on the way."""

    layers: list[PlannedLayer]
    notes: list[str]


def plan_layers(
    model: nn.Module, features: str, oversampling: float | None = None, excess: int | None = None, width: str | int | None = None,
    allow_below_minimum: bool = False, solver: str = "auto", unsupported: str = "raise",
    device: torch.device | None = None, skip: str = "none", images: torch.Tensor | None = None,
) -> Plan:  # fmt: skip
    """Choose every layer's width and refuse, before any work, what cannot be done, naming layer, reason and memory.

    ``images``, one batch, are run through the model to see how it uses its weights. With ``unsupported="keep"`` as many layers are
    planned as memory carries together.

    Raises ``UserError`` (``RefusedLayers`` with the reason for each), and ``RunError`` where memory does not suffice for the solver.
    """
    kind = distribution(features)
    check_skip(skip)
    _check_widths(oversampling, excess, width)
    if unsupported not in ("raise", "keep"):
        raise UserError(f"unsupported={unsupported!r}: {nearest(str(unsupported), ('raise', 'keep'))}")
    if any(value.is_meta for value in [*model.parameters(), *model.buffers()]):
        raise UserError("model: some of its tensors are on the meta device and hold no numbers; load its weights first")
    if oversampling is None and excess is None and width is None and solver != "auto" and lookup(solver).square:
        width = "maximum"
    inventory = find_layers(model, images)
    refused, notes = dict(inventory.refused), list(inventory.notes)
    planned, needs = [], []
    device = device or next((p.device for p in model.parameters()), torch.device("cpu"))
    for number, found in enumerate(inventory.layers):
        shape = found.target.shape
        least = minimum_width(shape, skip)
        # id_cond's minimum width is n - c2 + 1, skip connection or not: it has no feature to spare.
        smallest = width == "minimum" and not kind.widths
        c1 = max(1, least) if smallest else choose_width(features, shape, oversampling, excess, width)
        if c1 < least and not allow_below_minimum:
            raise UserError(
                f"layer {found.name}: {c1} features are below the minimum width {'n - c2' if skip == 'outer' else 'n - c2 + 1'} = {least} "
                f"(Burkholz 2024, {'Eq. 3' if skip == 'outer' else 'Thm 2.2'}), from which a target can be rebuilt; take more, or say "
                "features.allow_below_minimum=true"
            )
        if c1 < 1:
            raise UserError(f"layer {found.name}: {c1} features; at least one is needed")
        if not bool(torch.isfinite(found.target.weight).all()):
            raise UserError(
                f"layer {found.name}: its weights, normalization folded in, are not all finite; nothing can be rebuilt from them"
            )
        kind.check_width(shape, c1)
        rows = least if least <= c1 < shape.equations else shape.equations
        if solver != "auto":
            lookup(solver).check(rows, c1, kind.orthogonal)
            try:
                require_memory(lookup(solver).memory(rows, c1), device, solver, WAY_OUT)
            except RunError as error:
                if unsupported == "raise":
                    raise
                refused[found.name] = str(error)
                continue
        layer = PlannedLayer(found, c1, number, features)
        stored = (0 if layer.implicit else shape.feature_bytes(c1)) + PARAMETER_BYTES * c1
        work = 3 * stored  # float64 factors and a float32 copy while the layer is solved, or its error taken
        if stored + work > available_memory(device):
            refused[found.name] = (
                f"its {c1} features take {gigabytes(stored)}, {gigabytes(stored + work)} while solving, and {gigabytes(available_memory(device))} "
                "are free; features=id_cond needs the least"
            )
            continue
        planned.append(layer)
        needs.append((stored, work))
    if refused and unsupported == "raise":
        raise RefusedLayers(refused)
    whole = _together(needs)
    if whole > available_memory(device):
        short = f"{gigabytes(available_memory(device))} are free on {device.type}"
        if unsupported == "raise":
            raise UserError(
                f"the network's {len(planned)} layers need {gigabytes(whole)} for their features, {short}; use a smaller width, or "
                "features=id_cond, which needs the least"
            )
        while planned and _together(needs) > available_memory(device):
            last = max(range(len(needs)), key=lambda number: (needs[number], number))
            refused[planned.pop(last).found.name] = f"with the other layers it does not fit: {short}"
            needs.pop(last)
    notes += [f"{name} is left as it is: {reason}" for name, reason in refused.items()]
    if not planned:
        why = "the network has no convolution or linear layer"
        if refused:
            listed = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:LISTED])
            why = f"none of the network's {len(refused)} layers can be rebuilt ({listed})"
        raise UserError(f"{why} (one that is trained by its normalizations alone is a source already: bnrecon train)")
    if kind.name == "ortho_cond" and any(
        layer.found.target.shape.outputs * layer.found.target.shape.taps > 20_000 for layer in planned
    ):
        notes.append("ortho_cond factorizes matrices of more than 20,000 rows here: expect hours")
    return Plan(planned, notes)


def _together(needs: list[tuple[int, int]]) -> int:
    """Bytes that layers take together: what each one stores, and the largest one's work."""
    return sum(stored for stored, _ in needs) + max((work for _, work in needs), default=0)


def _check_widths(oversampling: float | None, excess: int | None, width: str | int | None) -> None:
    """Raise ``UserError`` unless at most one is given, and is a number that a width can come of."""
    given = {"oversampling": oversampling, "excess": excess, "width": width}
    named = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    if sum(value is not None for value in given.values()) > 1:
        raise UserError(f"{named}: give one of oversampling (c1/n), excess (c1 - n) and width (c1)")
    if oversampling is not None and not (is_number(oversampling) and 0 < oversampling < math.inf):
        raise UserError(f"{named}: oversampling must be a number above 0")
    if excess is not None and not is_whole(excess):
        raise UserError(f"{named}: excess must be a whole number")
    if width is not None and width not in ("minimum", "maximum") and not (str(width).isdecimal() and int(width) > 0):
        raise UserError(f"{named}: width must be a number of features above 0, 'minimum' or 'maximum'")


def is_number(value: object) -> bool:
    """Whether a value is a real number, and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
