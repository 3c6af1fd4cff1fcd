"""Before any work: which layers are rebuilt, with how many features, and what cannot be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from bnrecon.construction.residual import minimum_width
from bnrecon.features.drawing import check_skip
from bnrecon.features.register import choose_width, distribution
from bnrecon.reconstruction.arguments import check_unsupported, check_widths
from bnrecon.reconstruction.folding import FoundLayer, find_layers, layer_label
from bnrecon.reconstruction.source_layer import IMPLICIT_FROM
from bnrecon.runtime.errors import RunError, UserError, listed
from bnrecon.runtime.hardware import available_memory, gigabytes
from bnrecon.solvers.base import lookup

__all__ = ["Plan", "PlannedLayer", "RefusedLayers", "plan_layers"]


WAY_OUT = "use solver=matrix_free with oversampling=1.5, or features=id_cond"


LEAST = "features=id_cond needs the least memory"


PARAMETER_BYTES = 48  # a feature: scale, shift and statistics of its normalization, in float64 and as BatchNorm holds them


LISTED = 3  # refused layers that a message names,


LONGEST = 230  # in at most so many characters


class RefusedLayers(UserError):
    """Layers that cannot be rebuilt; ``refused`` maps each one's name to the reason."""

    def __init__(self, message: str, refused: Mapping[str, str]):
        super().__init__(message)
        self.refused = dict(refused)


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

    @property
    def stored(self) -> int:
        """Bytes that the source layer takes."""
        weights = 0 if self.implicit else self.found.target.shape.feature_bytes(self.width)
        return weights + PARAMETER_BYTES * self.width

    @property
    def work(self) -> int:
        """Bytes it takes besides while it is solved: float64 factors, and a float32 copy for its error."""
        return 3 * self.stored


@dataclass(frozen=True)
class Plan:
    """What will be rebuilt, and what was noticed on the way."""

    layers: list[PlannedLayer]
    notes: list[str]


def plan_layers(
    model: nn.Module,
    features: str,
    oversampling: float | None = None,
    excess: int | None = None,
    width: str | int | None = None,
    allow_below_minimum: bool = False,
    solver: str = "auto",
    unsupported: str = "raise",
    device: torch.device | None = None,
    skip: str = "none",
    images: torch.Tensor | None = None,
) -> Plan:
    """Choose every layer's width and refuse, before any work, what cannot be done, naming layer, reason and memory.

    ``images``, one batch, are run through the model to see how it uses its weights. With ``unsupported="keep"`` as many layers are
    planned as memory carries together.

    Raises ``UserError`` (``RefusedLayers`` with the reason for each), and ``RunError`` where memory does not suffice for the solver.
    """
    kind = distribution(features)
    check_skip(skip)
    check_widths(oversampling, excess, width)
    check_unsupported(unsupported)
    _check_weights(model)
    if (
        oversampling is None
        and excess is None
        and width is None
        and solver != "auto"
        and lookup(solver).square
    ):
        width = "maximum"
    device = device or next((p.device for p in model.parameters()), torch.device("cpu"))
    free = available_memory(device)
    inventory = find_layers(model, images)
    planned, too_large = [], {}
    for number, found in enumerate(inventory.layers):
        # id_cond's minimum width is n - c2 + 1, skip connection or not: it has no feature to spare.
        if width == "minimum" and not kind.widths:
            c1 = max(1, minimum_width(found.target.shape, skip))
        else:
            c1 = choose_width(features, found.target.shape, oversampling, excess, width)
        _check_layer(found, c1, skip, allow_below_minimum)
        kind.check_width(found.target.shape, c1)
        layer = PlannedLayer(found, c1, number, features)
        if short := _short_for_solver(layer, solver, skip, device, free):
            if unsupported == "raise":
                raise RunError(f"{layer_label(found.name)}: {short}; {WAY_OUT}")
            too_large[found.name] = short
        elif layer.stored + layer.work > free:
            too_large[found.name] = (
                f"its {_count(c1)} features take {gigabytes(layer.stored)}, {gigabytes(layer.stored + layer.work)} while solving, "
                f"and {gigabytes(free)} are free"
            )
        else:
            planned.append(layer)
    refused = inventory.refused | too_large
    if refused and unsupported == "raise":
        way_out = (
            f"{LEAST}; " * bool(too_large) + "unsupported='keep' leaves such layers as they are"
        )
        raise RefusedLayers(f"cannot be rebuilt: {_listed(refused)} ({way_out})", refused)
    refused |= _left_out(planned, free, unsupported, device)
    if not planned:
        _nothing_left(refused)
    notes = [
        f"{name or 'the model'} is left as it is: {reason}" for name, reason in refused.items()
    ]
    return Plan(planned, inventory.notes + notes + _expectations(kind.name, planned))


def _check_weights(model: nn.Module) -> None:
    """Raise ``UserError`` unless all of the model's tensors hold numbers."""
    if lazy := [
        name or "the model"
        for name, module in model.named_modules()
        if isinstance(module, LazyModuleMixin)
    ]:
        raise UserError(
            f"{listed(lazy)}: a lazy module has no weights yet; run the network once before"
        )
    if any(value.is_meta for value in [*model.parameters(), *model.buffers()]):
        raise UserError(
            "model: some of its tensors are on the meta device and hold no numbers; load its weights first"
        )


def _check_layer(found: FoundLayer, c1: int, skip: str, allow_below_minimum: bool) -> None:
    """Raise ``UserError`` for a width that is too small, and for a target that holds no numbers."""
    label, least = layer_label(found.name), minimum_width(found.target.shape, skip)
    if c1 < least and not allow_below_minimum:
        bound, source = ("n - c2", "Eq. 3") if skip == "outer" else ("n - c2 + 1", "Thm 2.2")
        raise UserError(
            f"{label}: {_count(c1)} features are below the minimum width {bound} = {least} (Burkholz 2024, {source}), from "
            "which a target can be rebuilt; take more, or say allow_below_minimum=True"
        )
    if c1 < 1:
        raise UserError(f"{label}: {_count(c1)} features; at least one is needed")
    for what, value in (("weights", found.target.weight), ("bias", found.target.bias)):
        if not bool(torch.isfinite(value).all()):
            raise UserError(
                f"{label}: its {what}, normalization folded in, are not all finite; nothing can be rebuilt from them"
            )


def _short_for_solver(
    layer: PlannedLayer, solver: str, skip: str, device: torch.device, free: int
) -> str | None:
    """Check that a solver named by the user applies to the layer; say what memory it lacks, if it does."""
    if solver == "auto":
        return None
    shape = layer.found.target.shape
    least = minimum_width(shape, skip)
    rows = least if least <= layer.width < shape.equations else shape.equations
    method = lookup(solver)
    method.check(rows, layer.width, distribution(layer.features).orthogonal)
    need = method.memory(rows, layer.width)
    return (
        f"solver {solver} needs {gigabytes(need)} on {device.type}, {gigabytes(free)} are free"
        if need > free
        else None
    )


def _left_out(
    planned: list[PlannedLayer], free: int, unsupported: str, device: torch.device
) -> dict[str, str]:
    """Take layers out of the plan, the largest first, until the others fit together; return those with the reason."""
    short = f"{gigabytes(free)} are free on {device.type}"
    if _together(planned) > free and unsupported == "raise":
        raise UserError(
            f"the network's {len(planned)} layers need {gigabytes(_together(planned))} for their features, {short}; "
            f"use a smaller width; {LEAST}"
        )
    refused = {}
    while _together(planned) > free:
        largest = max(planned, key=lambda layer: (layer.stored, layer.number))
        planned.remove(largest)
        refused[largest.found.name] = f"with the other layers it does not fit: {short}"
    return refused


def _together(layers: Sequence[PlannedLayer]) -> int:
    """Bytes that layers take together: what each one stores, and the largest one's work."""
    return sum(layer.stored for layer in layers) + max((layer.work for layer in layers), default=0)


def _nothing_left(refused: Mapping[str, str]) -> None:
    """Raise ``UserError``: there is nothing to rebuild."""
    if refused:
        raise RefusedLayers(
            f"none of the network's {len(refused)} layers can be rebuilt ({_listed(refused)})",
            refused,
        )
    raise UserError(
        "the network has no convolution or linear layer "
        "(one that is trained by its normalizations alone is a source already: bnrecon train)"
    )


def _expectations(features: str, planned: list[PlannedLayer]) -> list[str]:
    """What will take long."""
    rows = max(
        layer.found.target.shape.outputs * layer.found.target.shape.taps for layer in planned
    )
    if features == "ortho_cond" and rows > 20_000:
        return ["ortho_cond factorizes matrices of more than 20,000 rows here: expect hours"]
    return []


def _listed(refused: Mapping[str, str]) -> str:
    """The first few layers with their reasons, and how many more there are, short enough to be read."""
    entries = [f"{name or 'the model'}: {reason}" for name, reason in refused.items()]
    shown = entries[:LISTED]
    while len(shown) > 1 and len("; ".join(shown)) > LONGEST:
        shown.pop()
    if len(shown[0]) > LONGEST:
        shown[0] = shown[0][: LONGEST - 2] + " …"
    more = len(entries) - len(shown)
    return "; ".join(shown) + (f"; and {more} more (error.refused has all)" if more else "")


def _count(number: int) -> str:
    """A number of features, short where no machine could hold as many."""
    return str(number) if abs(number) < 1e9 else f"{number:.3g}"
