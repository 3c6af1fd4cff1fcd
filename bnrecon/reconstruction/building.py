"""The source layer of a target layer: features, and normalizations that make it the target's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch

from bnrecon.construction.activation import FIRST_ACTIVATIONS, LinearRegion, linear_region
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.affine_map import AffineMap, shift_at_output
from bnrecon.reconstruction.groups import joined_digest, weakest
from bnrecon.reconstruction.layer_report import report_layer
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.plan import PlannedLayer
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.solving import group_system, tolerance_for
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime.errors import UserError
from bnrecon.solvers.base import Solution, SolverReport
from bnrecon.solvers.solving import relative_residual

__all__ = ["FOREIGN", "BuiltLayer", "build_layer"]

FOREIGN = "its solution solves another system: one of another seed, model or features"


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
        solution: scales (c1,) for it, from ``solve_layer``; the residual that it reports is
            computed again, from this layer's system.
        moments: of images, for its running statistics; mean 0 and variance 1 without them.
        pairs: what ``planned.draw_groups()`` gave, where it has been called.

    Raises:
        UserError: the solution is of another layer.
        RunError: a number overflows in the network's precision.
    """
    found, spec = planned.found, planned.features
    width = len(solution.scale)
    if width != planned.groups * planned.width:
        raise UserError(
            f"{planned.label}: its solution has {width} scales, the layer has "
            f"{planned.groups * planned.width} features; give the solution of this plan"
        )
    pairs = planned.draw_groups() if pairs is None else pairs
    layer = SourceLayer(pairs, found.module, spec.activation)
    layer.folded = found.norm is not None
    reports, maps, regions = [], [], []
    parts = zip(pairs, found.target.split(), solution.scale.chunk(len(pairs)), strict=True)
    for group, (pair, target, scale) in enumerate(parts):
        system = group_system(planned, target, pair)
        reports.append(_checked(planned, target, system, scale, solution.report))
        scales = system.scales(scale.to(system.rhs))
        del system  # its float64 factors, before the layer's errors form others
        seen = None if moments is None else moments.of_group(group, len(pairs))
        region = _region(planned, pair, scales, seen)
        maps.append(_maps(planned, group, pair, scales, region, seen))
        regions.append(region)
    first, second = map(AffineMap.join, zip(*maps, strict=True))
    layer.region = min(r.low for r in regions), max(r.high for r in regions)
    layer.set_maps(first, second)
    recipe = LayerRecipe(
        found.name,
        found.norm_name,
        planned.number,
        spec.name,
        planned.seed,
        spec.strict,
        planned.width,
        spec.activation,
        joined_digest(pairs),
        spec.skip,
        None if FIRST_ACTIVATIONS[spec.activation].exact else layer.region[1],
    )
    # Each group's report has the seconds of all of them.
    solved = dataclasses.replace(weakest(reports), seconds=solution.report.seconds)
    report = report_layer(layer, planned, solved, recipe.digest, moments)
    return BuiltLayer(layer, report, recipe)


def _checked(
    planned: PlannedLayer,
    target: TargetLayer,
    system: System,
    scale: torch.Tensor,
    report: SolverReport,
) -> SolverReport:
    """The report with the residual that the scales have in this system.

    They may be of another plan.
    """
    residual = relative_residual(system, scale.to(system.rhs))
    converged, diagnosis = residual <= tolerance_for(planned, target, system), report.diagnosis
    if report.converged and not converged:
        diagnosis = FOREIGN
    return dataclasses.replace(
        report, relative_residual=residual, converged=converged, diagnosis=diagnosis
    )


def _region(
    planned: PlannedLayer, pair: Features, scales: Scales, moments: LayerMoments | None
) -> LinearRegion:
    """Where the activation is linear for the inputs that were seen."""
    spec = planned.features
    seen = None if moments is None else moments.largest_input
    largest = None if seen is None else spec.margin * seen
    return linear_region(spec.activation, pair, scales, largest, spec.epsilon)


def _maps(
    planned: PlannedLayer,
    group: int,
    pair: Features,
    scales: Scales,
    region: LinearRegion,
    moments: LayerMoments | None,
) -> tuple[AffineMap, AffineMap]:
    """The maps of the normalizations with which a pair is outer ∘ B (inner ∘ A x) + b.

    In the linear region of the activation φ(v inner ∘ A x + t) = m (v inner ∘ A x + t) + c, so that
    the second normalization divides by m v and subtracts B (m t + c).

    Args:
        planned: the layer.
        group: which of its groups.
        pair: the group's features.
        scales: its solution.
        region: v and t.
        moments: of the group's inputs and outputs.
    """
    found, activation = planned.found, FIRST_ACTIVATIONS[planned.features.activation]

    def of_group(values: torch.Tensor) -> torch.Tensor:
        size = planned.shape.outputs
        return values[group * size : (group + 1) * size].detach().to(scales.inner)

    bias = of_group(found.target.bias)
    inner = region.factor * scales.inner
    outer = scales.outer / (activation.slope * region.factor)
    at_output = shift_at_output(pair, activation.slope * region.shift + activation.offset)
    if moments is None:
        first, second = ((torch.zeros_like(s), torch.ones_like(s)) for s in (inner, bias))
    else:
        own = found.module.bias
        first = moments.first_output(pair)
        second = moments.second_output(
            of_group(found.gain),
            None if own is None else of_group(own),
            outer,
            at_output,
            pair.skip_weight if pair.skip == "inner" else None,
        )
    return (
        AffineMap(inner, region.shift, *first),
        AffineMap(outer, bias - outer * at_output, *second),
    )
