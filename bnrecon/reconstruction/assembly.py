"""Build the source network from solutions: its features and normalizations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from bnrecon.construction.activation import FIRST_ACTIVATIONS, LinearRegion, linear_region
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.affine_map import AffineMap, shift_at_output
from bnrecon.reconstruction.attention import pack
from bnrecon.reconstruction.folding import fold, replacements
from bnrecon.reconstruction.groups import joined_digest, weakest
from bnrecon.reconstruction.layer_report import report_layer
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.refusal import dtype_name
from bnrecon.reconstruction.report import LayerReport, Reconstruction
from bnrecon.reconstruction.solving import layer_problem
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.reconstruction.substitution import freeze, substitute
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.solvers.base import Solution
from bnrecon.solvers.report import SolverReport
from bnrecon.solvers.solving import relative_residual

OTHER_SYSTEM = "its solution belongs to another system, of another seed, model or features"
NO_RANGE = 1e-6  # inputs that never exceed this have no usable range


@outside_torch_modes
def assemble(
    plan: Plan, solutions: Mapping[str, Solution], moments: Mapping[str, LayerMoments] | None = None
) -> Reconstruction:
    """Build the source network from a solution for every layer of a plan.

    All layers of the plan are replaced, all else is copied, and only normalizations stay trainable.

    Args:
        plan: from ``plan_layers``; its model is not changed.
        solutions: from ``solve_layer``, by layer name.
        moments: from ``gather``, by layer name, to compute running statistics and the range of
            inputs that an activation needs. Without them, means are 0 and variances 1.

    Returns:
        The source network, with a report for every layer; outputs are not compared.

    Raises:
        UserError: a solution, or moments that an activation needs, are missing; a solution belongs
            to another plan; or the model has changed since planning.
        RunError: a number overflows in the network's precision.
    """
    checked = check_moments(plan, moments)
    if missing := [layer.label for layer in plan.layers if layer.name not in solutions]:
        raise UserError(f"solutions: missing for {shorten(missing)}; solve_layer computes them")
    for planned in plan.layers:
        now, _ = fold(planned.name, planned.folded.module, planned.folded.norm)
        before = planned.folded.target
        if not (torch.equal(now.weight, before.weight) and torch.equal(now.bias, before.bias)):
            raise UserError(f"{planned.label}: the model has changed since it was planned")
    solved = [(layer, solutions[layer.name], checked.get(layer.name)) for layer in plan.layers]
    return join_layers(plan, [build_layer(*each) for each in solved])


def join_layers(plan: Plan, built: Sequence[BuiltLayer]) -> Reconstruction:
    """Join a plan's layers, built by ``build_layer``, in order, into the source network."""
    targets = [layer.folded for layer in plan.layers]
    network = pack(substitute(plan.model, replacements(targets, (part.layer for part in built))))
    notes = list(plan.notes)
    if frozen := freeze(network):
        notes.append(f"frozen too, as only normalizations stay trainable: {shorten(frozen)}")
    reports, recipes = [part.report for part in built], [part.recipe for part in built]
    return Reconstruction(network, reports, recipes, notes)


def check_moments(
    plan: Plan, moments: Mapping[str, LayerMoments] | None
) -> dict[str, LayerMoments]:
    """The moments of each layer that images reached.

    Raises:
        UserError: the activation needs a range that the moments lack.
        RunError: moments are not finite.
    """
    activation = plan.features.activation
    if activation != "identity" and moments is None:
        raise UserError(
            f"activation={activation} needs images: without the range of its inputs no shift into "
            "the linear region is known"
        )
    reached = {name: seen for name, seen in (moments or {}).items() if seen.count}
    for layer in plan.layers:
        seen = reached.get(layer.name)
        if seen is not None and not seen.is_finite():
            raise RunError(
                f"{layer.label}: on these images, which are finite, its inputs or outputs are not "
                f"finite in {dtype_name(layer.folded.module.weight.dtype)}; try model.double()"
            )
        if activation == "identity":
            continue
        if seen is None or seen.largest_input is None:
            raise UserError(
                f"{layer.label}: the images do not reach it, or only within torch.vmap, so its "
                f"range is unknown; activation={activation} needs it"
            )
        if (largest := float(seen.largest_input.max())) < NO_RANGE:
            raise UserError(
                f"{layer.label}: on the images its inputs are at most {largest:.0e}, too small to "
                "tell their range; give images like those that the network will see, or use "
                "activation=identity"
            )
    return reached


class BuiltLayer(NamedTuple):
    """A source layer, how well it was rebuilt, and what it is drawn from."""

    layer: SourceLayer
    report: LayerReport
    recipe: LayerRecipe


def build_layer(
    planned: PlannedLayer,
    solution: Solution,
    moments: LayerMoments | None = None,
    pairs: Sequence[Features] | None = None,
) -> BuiltLayer:
    """Build the source layer of a target layer from its solution.

    Args:
        planned: the layer.
        solution: its scales (c1,), from ``solve_layer``; the reported residual is recomputed from
            this layer's system.
        moments: of images, for its running statistics; mean 0 and variance 1 without them.
        pairs: the result of ``planned.draw_groups()``, if already drawn.

    Raises:
        UserError: the solution belongs to another layer.
        RunError: a number overflows in the network's precision.
    """
    source, spec = planned.folded, planned.features
    scale_count, width = len(solution.scale), planned.groups * planned.width
    if scale_count != width:
        raise UserError(
            f"{planned.label}: its solution has {scale_count} scales, the layer has {width} "
            "features; give the solution of this plan"
        )
    pairs = planned.draw_groups() if pairs is None else pairs
    layer = SourceLayer(pairs, source.module, spec.activation)
    layer.folded = source.norm is not None
    reports, maps, groups = [], [], []
    parts = zip(pairs, source.target.split(), solution.scale.chunk(len(pairs)), strict=True)
    for group, (pair, target, scale) in enumerate(parts):
        system, spec_of_group = layer_problem(planned, target, pair)
        reports.append(_checked(system, spec_of_group.tolerance, scale, solution.report))
        scales = system.scales(scale.to(system.rhs))
        del system  # frees its float64 factors before the layer's errors form others
        seen = None if moments is None else moments.of_group(group, len(pairs))
        largest = None if seen is None else seen.largest_input
        reach = None if largest is None else spec.margin * largest
        region = linear_region(spec.activation, pair, scales, reach, spec.epsilon)
        groups.append((pair, scales, region, seen))
    # The narrowest region is the layer's, so that ``outside`` counts the values of every group.
    narrowest = min((region for _, _, region, _ in groups), key=lambda region: region.high)
    for group, (pair, scales, region, seen) in enumerate(groups):
        if region.high > narrowest.high:  # a smaller factor lowers the activation's error
            factor = region.factor * narrowest.high / region.high
            region = dataclasses.replace(narrowest, factor=factor, shift=region.shift)
        maps.append(_maps(planned, group, pair, scales, region, seen))
    first, second = map(AffineMap.join, zip(*maps, strict=True))
    layer.region = narrowest.low, narrowest.high
    layer.set_maps(first, second)
    end = None if FIRST_ACTIVATIONS[spec.activation].exact else layer.region[1]
    recipe = LayerRecipe(
        name=source.name,
        norm=source.norm_name,
        number=planned.number,
        features=spec.name,
        seed=planned.seed,
        strict=spec.strict,
        width=planned.width,
        activation=spec.activation,
        digest=joined_digest(pairs),
        skip=spec.skip,
        reach=end,
    )
    # Each group's report has the seconds of all of them.
    solved = dataclasses.replace(weakest(reports), seconds=solution.report.seconds)
    report = report_layer(layer, planned, solved, recipe.digest, moments)
    return BuiltLayer(layer, report, recipe)


def _checked(
    system: System, tolerance: float, scale: torch.Tensor, report: SolverReport
) -> SolverReport:
    """Recompute the report's residual in this system; the scales may be of another plan."""
    residual = relative_residual(system, scale.to(system.rhs))
    converged = residual <= tolerance
    why = OTHER_SYSTEM if report.converged and not converged else report.diagnosis
    return dataclasses.replace(
        report, converged=converged, diagnosis=why, relative_residual=residual
    )


def _maps(
    planned: PlannedLayer,
    group: int,
    pair: Features,
    scales: Scales,
    region: LinearRegion,
    moments: LayerMoments | None,
) -> tuple[AffineMap, AffineMap]:
    """Return the normalization maps that make a pair compute outer ∘ B (inner ∘ A x) + b."""
    # In the linear region φ(v inner ∘ A x + t) = m (v inner ∘ A x + t) + c, so the second map
    # divides by m v and subtracts B (m t + c).
    source, activation = planned.folded, FIRST_ACTIVATIONS[planned.features.activation]

    def of_group(values: torch.Tensor) -> torch.Tensor:
        size = planned.shape.outputs
        return values[group * size : (group + 1) * size].detach().to(scales.inner)

    bias = of_group(source.target.bias)
    inner = region.factor * scales.inner
    outer = scales.outer / (activation.slope * region.factor)
    at_output = shift_at_output(pair, activation.slope * region.shift + activation.offset)
    if moments is None:
        first, second = ((torch.zeros_like(s), torch.ones_like(s)) for s in (inner, bias))
    else:
        first = moments.first_output(pair)
        unfolded = None if source.module.bias is None else of_group(source.module.bias)
        skip = pair.skip_weight if pair.skip == "inner" else None
        second = moments.second_output(of_group(source.gain), unfolded, outer, at_output, skip)
    return (
        AffineMap(inner, region.shift, *first),
        AffineMap(outer, bias - outer * at_output, *second),
    )
