"""Plan before any work: which layers are rebuilt, their widths, and what is not possible."""

from __future__ import annotations

import torch
from torch import nn

from bnrecon.construction.residual import minimum_width
from bnrecon.features.register import choose_width, distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import arguments, storage
from bnrecon.reconstruction.attention import fast_path_notes, pack, unpack
from bnrecon.reconstruction.comparison import compare, explain_difference
from bnrecon.reconstruction.folding import find_layers, replacements
from bnrecon.reconstruction.images import checked_images
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.refusal import RefusedLayers, list_refused, raise_nothing_to_rebuild
from bnrecon.reconstruction.replaced_layer import TrialLayer
from bnrecon.reconstruction.report import OutputDifference
from bnrecon.reconstruction.substitution import share_parameters, substitute, uncompiled
from bnrecon.runtime.errors import RunError, UserError, require_choice
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.options import checked_seed
from bnrecon.runtime.torch_modes import one_thread_at_a_time, outside_torch_modes
from bnrecon.solvers.base import LESS_MEMORY
from bnrecon.solvers.pruning import check_solver, none_to_spare
from bnrecon.solvers.register import lookup
from bnrecon.solvers.spec import SolverSpec

# Norms of smaller weights, or of weights above its inverse, under- or overflow in float64.
SMALLEST = 1e-150
TRIED = 8  # images of the trial run before layers are solved


@one_thread_at_a_time
@outside_torch_modes
def plan_layers(
    model: nn.Module,
    features: FeatureSpec | str = "he_normal",
    solver: SolverSpec | str = "auto",
    *,
    seed: int = 0,
    unsupported: str = "raise",
    images: torch.Tensor | None = None,
    fold: bool = True,
) -> Plan:
    """Choose the width of every layer; raise an error before any work if one cannot be rebuilt.

    Args:
        model: a network in eval mode.
        features: the features of every layer; a name stands for ``FeatureSpec(name)``.
        solver: how every layer is solved; a name stands for ``SolverSpec(name)``.
        seed: the seed of all features.
        unsupported: ``"raise"``, or ``"keep"`` to keep layers that cannot be rebuilt, and to plan
            as many layers as fit into memory together.
        images: one batch (N, C, H, W), run to see how the model uses its weights and whether
            replacing its layers changes its outputs.
        fold: whether to rebuild a BatchNorm with the layer before it.

    Returns:
        The plan. Its ``model`` is a copy that shares the parameters.

    Raises:
        UserError: an option or a layer is not supported, or the features do not fit into memory;
            ``RefusedLayers`` has each layer's reason.
        RunError: memory is insufficient for the solver, or replacing layers changes what the model
            computes.

    >>> _ = torch.manual_seed(0)
    >>> plan = plan_layers(nn.Linear(3, 4).eval(), FeatureSpec(width="minimum"))
    >>> [(layer.label, layer.width) for layer in plan.layers]  # n - c2 + 1 = 12 - 4 + 1
    [('the model', 9)]
    """
    features, solver = arguments.feature_spec(features), arguments.solver_spec(solver)
    arguments.check_model(model)
    seed = checked_seed(seed)
    require_choice("unsupported=", unsupported, ("raise", "keep"))
    if features.pruning is not None:
        check_solver(features.pruning, solver)
    asked_for, target = model, uncompiled(model)
    if images is not None:
        images, _ = checked_images(images, target)
    model = unpack(share_parameters(target))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    free, host = available_memory(device), available_memory(torch.device("cpu"))
    inventory = find_layers(model, images, fold)
    sized = [
        (number, each, _width(each.target.shape, features, solver))
        for number, each in enumerate(inventory.layers)
    ]
    layers = [PlannedLayer(each, c1, i, features, solver, seed) for i, each, c1 in sized]
    layers = storage.store(layers, features, free, host)
    stored = sum(layer.stored_bytes for layer in layers)
    planned: list[PlannedLayer] = []
    too_large: dict[str, str] = {}
    for layer in layers:
        if reason := _nothing_to_solve(layer):
            if unsupported == "raise":
                raise UserError(f"{layer.label}: {reason}")
            inventory.refused[layer.name] = reason
            continue
        _check_layer(layer)
        beside = stored if unsupported == "raise" else layer.stored_bytes
        shortage = storage.solver_shortage(layer, beside, free)
        if shortage and unsupported == "raise":
            raise RunError(f"{layer.label}: {shortage}; {LESS_MEMORY}")
        if shortage := shortage or storage.memory_shortage(layer, free):
            too_large[layer.name] = shortage
        else:
            planned.append(layer)
    refused = inventory.refused | too_large
    if refused and unsupported == "raise":
        instead = f"; {storage.advise(layers, features)}" if too_large else ""
        raise RefusedLayers(f"cannot be rebuilt: {list_refused(refused)}{instead}", refused)
    refused |= storage.fit_together(planned, free, host, unsupported)
    planned = storage.give_room(planned, free)  # with some layers removed
    if not planned:
        raise_nothing_to_rebuild(refused)
    notes = inventory.notes + _notes(model, planned, refused, compiled=target is not asked_for)
    trial, trial_notes = _try_copy(model, target, planned, images)
    return Plan(planned, notes + trial_notes, model, features, refused, trial)


def _notes(
    model: nn.Module, planned: list[PlannedLayer], refused: dict[str, str], compiled: bool
) -> list[str]:
    """What a user should know about a plan."""
    notes = [f"{name or 'the model'} is left as it is: {why}" for name, why in refused.items()]
    rows = max(layer.shape.outputs * layer.shape.taps for layer in planned)
    if planned[0].features.name == "ortho_cond" and rows > 20_000:
        notes.append("ortho_cond factorizes matrices of more than 20,000 rows here: expect hours")
    notes += fast_path_notes(model)
    if compiled:
        notes.append("the model is compiled, the source network is not: torch.compile it again")
    return notes


def _try_copy(
    model: nn.Module, target: nn.Module, planned: list[PlannedLayer], images: torch.Tensor | None
) -> tuple[OutputDifference | None, list[str]]:
    """Compare a copy of equivalent layers with the model; without images, it is not run."""
    layers = [layer.folded for layer in planned]
    if images is None:
        substitute(model, replacements(layers, (nn.Identity() for _ in layers)))
        return None, []
    trials = [TrialLayer(one.module, one.target, one.norm is not None) for one in layers]
    network = pack(substitute(model, replacements(layers, trials)))
    difference, notes = compare(network, target, images[:TRIED])
    why = (
        "nothing is solved yet, and each layer alone agrees with the model's up to rounding. "
        "Look for code that reads the type, settings or weights of a layer, or of a folded "
        "BatchNorm (fold=False avoids this), and for numbers so far from 0 that rounding shows "
        "(model.double() avoids this)"
    )
    return difference, notes + explain_difference(difference, why)


def _width(shape: LayerShape, features: FeatureSpec, solver: SolverSpec) -> int:
    asked = (features.oversampling, features.excess, features.width)
    if asked == (None, None, None) and solver.name != "auto" and lookup(solver.name).square:
        return shape.equations
    # id_cond's is n - c2 + 1 even with a skip connection: it has no feature to spare.
    if features.width == "minimum" and not distribution(features.name).widths:
        return max(1, minimum_width(shape, features.skip))
    return choose_width(features.name, shape, *asked)


def _nothing_to_solve(layer: PlannedLayer) -> str | None:
    """Say why a layer's weights cannot be a target; ``None`` if they can."""
    target = layer.folded.target
    if not target.weight.numel():
        return f"its weight is empty, of shape {tuple(target.weight.shape)}"
    for what, value in (("weights", target.weight), ("bias", target.bias)):
        if not bool(torch.isfinite(value).all()):
            what = f"its {what}, normalization folded in, are not all finite"
            return f"{what}; nothing can be rebuilt from them"
    for group in target.split():
        largest = float(group.rows().abs().max())
        if largest and not SMALLEST < largest < 1 / SMALLEST:
            return (
                f"its weights, normalization folded in, are {largest:.0e} at most, whose squares "
                f"float64 does not hold; give weights from {SMALLEST:.0e} to {1 / SMALLEST:.0e}"
            )
    return None


def _check_layer(layer: PlannedLayer) -> None:
    features, c1 = layer.features, layer.width
    least = minimum_width(layer.shape, features.skip)
    if c1 < least and not features.allow_below_minimum:
        outer = features.skip == "outer"
        bound, source = ("n - c2", "Eq. 3") if outer else ("n - c2 + 1", "Thm 2.2")
        are = "feature is" if c1 == 1 else "features are"
        raise UserError(
            f"{layer.label}: {storage.show_count(c1)} {are} below the minimum width {bound} = "
            f"{least} (Burkholz 2024, {source}) from which a target can be rebuilt; take more, or "
            "set allow_below_minimum=True"
        )
    if features.keep is not None and least <= c1 < layer.shape.equations:
        raise UserError(f"{layer.label}: {none_to_spare(layer.shape.equations, c1)}")
    if c1 < 1:
        raise UserError(f"{layer.label}: {storage.show_count(c1)} features; at least one is needed")
    kind = distribution(features.name)
    kind.check_width(layer.shape, c1)
    if layer.solver.name != "auto":
        lookup(layer.solver.name).require(layer.rows, c1, kind.orthogonal, layer.device)
