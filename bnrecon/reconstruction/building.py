"""One target layer: draw, solve; then set the normalizations, and see how far the layer is off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from bnrecon.construction.activation import FIRST_ACTIVATIONS, LinearRegion, linear_region
from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.affine_map import AffineMap
from bnrecon.reconstruction.collapse import layer_errors, shift_at_output
from bnrecon.reconstruction.groups import joined_digest, solve_groups, weakest
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.output_error import output_error
from bnrecon.reconstruction.plan import PlannedLayer
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.base import Solution, SolverReport
from bnrecon.solvers.checkpoint import Checkpoint
from bnrecon.solvers.pruning import prune
from bnrecon.solvers.solving import relative_residual, solve
from bnrecon.solvers.spec import SolverSpec

__all__ = ["BuiltLayer", "build_layer", "solve_layer"]

# Units of rounding by which a layer may be off in the network's precision: 1.2e-4 in float32.
ASSEMBLED = 1e3

UNREACHED_PIVOT = (
    "the eliminated system is solved, but recovering the second scales amplifies what is left: "
    "some output is hardly reached at its pivot (near to a pathological target of Burkholz 2024, "
    "Thm 2.2); try a tighter tolerance, or one feature more"
)


FOREIGN = "its solution solves another system: one of another seed, model or features"


class BuiltLayer(NamedTuple):
    """A source layer, how well it was rebuilt, and what it is drawn from."""

    layer: SourceLayer
    report: LayerReport
    recipe: LayerRecipe


def solve_layer(
    layer: PlannedLayer,
    checkpoint: Checkpoint | None = None,
    pairs: Sequence[Features] | None = None,
) -> Solution:
    """Draw a layer's features and solve M γ = vec(W) for the scales γ (Burkholz 2024, Lemma 2.1).

    Args:
        layer: one of ``Plan.layers``; it holds features, solver and seed.
        checkpoint: where an iterative solver keeps its state, and goes on from; a grouped layer's
            groups and layers that are pruned are solved without.
        pairs: what ``layer.draw_groups()`` gave, where it has been called.

    Returns:
        The scales (c1,) in float64, of all groups one after the other, and the solver's report. A
        solution that does not reach the tolerance has ``report.converged == False``.

    Raises:
        UserError: the solver does not apply to this system.
        RunError: the system is singular, or memory does not suffice; both name the layer.

    >>> from bnrecon.reconstruction.planning import plan_layers
    >>> _ = torch.manual_seed(0)
    >>> plan = plan_layers(torch.nn.Linear(3, 4).eval())
    >>> solution = solve_layer(plan.layers[0])
    >>> solution.scale.shape, solution.report.converged  # 1.5 n = 18
    (torch.Size([18]), True)
    """
    problems = (
        _problem(layer, target, layer.draw(group) if pairs is None else pairs[group])
        for group, target in enumerate(layer.found.target.split())
    )
    try:
        if layer.features.keep is not None:
            return _prune(layer, problems)
        if layer.groups > 1:
            return solve_groups(problems)
        return solve(*next(problems), checkpoint)
    except (UserError, RunError) as error:
        raise type(error)(f"{layer.label}: {error}") from None


def _prune(layer: PlannedLayer, problems: Iterable[tuple[System, SolverSpec]]) -> Solution:
    """Solve every group with the features that are kept."""
    count, method = layer.features.kept(layer.width), layer.features.pruning
    solutions = [prune(system, spec, count, str(method)) for system, spec in problems]
    scale = torch.cat([solution.scale for solution in solutions])
    return Solution(scale, weakest([solution.report for solution in solutions]))


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
        system = _system(planned, target, pair)
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
    report = _report(layer, planned, solved, recipe.digest)
    if not FIRST_ACTIVATIONS[spec.activation].exact:
        assert moments is not None, "the linear region was chosen from them"
        report = _within_epsilon(layer, planned, moments, report)
    return BuiltLayer(layer, report, recipe)


def _problem(layer: PlannedLayer, target: TargetLayer, pair: Features) -> tuple[System, SolverSpec]:
    """A group's system, and how it is to be solved."""
    system = _system(layer, target, pair)
    tolerance = _tolerance(layer, target, system)
    return system, dataclasses.replace(layer.solver, tolerance=tolerance)


def _system(layer: PlannedLayer, target: TargetLayer, pair: Features) -> System:
    """The system of a layer, or of one group of it."""
    orthogonal = distribution(layer.features.name).orthogonal
    return layer_system(target, pair, layer.found.module.weight.device, orthogonal)


def _tolerance(layer: PlannedLayer, target: TargetLayer, system: System) -> float:
    """The residual to reach: the tolerance, less where the target is below the right-hand side.

    A skip connection that has to be cancelled can be far larger than the target.
    """
    norm, rhs = float(target.weight.norm()), float(system.weight.norm())
    return layer.solver.tolerance * (min(1.0, norm / rhs) if norm > 0 and rhs > 0 else 1.0)


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
    converged, diagnosis = residual <= _tolerance(planned, target, system), report.diagnosis
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


def _report(
    layer: SourceLayer, planned: PlannedLayer, solution: SolverReport, digest: str
) -> LayerReport:
    """The report of a layer, its errors computed from what it holds."""
    precision = layer.second_norm.weight.dtype
    exact, assembled = layer_errors(layer, planned.found.target.weight)
    if not layer.is_finite() or not math.isfinite(assembled):
        largest = float(planned.found.target.weight.abs().max())
        raise RunError(
            f"{planned.label}: its normalization overflows {_name(precision)} (weights up to "
            f"{largest:.0e}, statistics of the images besides); use model.double(), or weights "
            "and images of a usual size"
        )
    tolerance = planned.solver.tolerance
    rounding = max(tolerance, ASSEMBLED * torch.finfo(precision).eps)
    diagnosis = solution.diagnosis
    if solution.converged and exact > tolerance:
        if planned.width < planned.shape.equations:
            diagnosis = UNREACHED_PIVOT
    elif solution.converged and assembled > rounding:
        diagnosis = (
            f"solved to {exact:.0e}, of which rounding to {_name(precision)} leaves "
            f"{assembled:.0e}: large scales cancel; take more features (oversampling=1.1), or a "
            "model in double precision"
        )
    shape = planned.shape
    return LayerReport(
        name=planned.name,
        shape=(shape.outputs, shape.inputs, *shape.kernel),
        equations=shape.equations,
        width=planned.width,
        relative_error=exact,
        assembled_error=assembled,
        converged=solution.converged and exact <= tolerance and assembled <= rounding,
        redrawn=sum(pair.redrawn for pair in layer.pairs),
        rank=_rank(layer.pairs) if planned.features.strict else None,
        convolutions=_convolutions(layer),
        digest=digest,
        solution=dataclasses.replace(solution, diagnosis=diagnosis),
        groups=planned.groups,
        kept=None if planned.features.keep is None else planned.features.kept(planned.width),
    )


def _within_epsilon(
    layer: SourceLayer, planned: PlannedLayer, moments: LayerMoments, report: LayerReport
) -> LayerReport:
    """The report, not converged where the layer's own outputs are off by more than epsilon.

    Theorem 2.4 bounds the error in exact arithmetic. A sigmoid's values lie around 1/2, and what
    is left of them without it is the less, the smaller epsilon: rounding may be far above it.
    """
    assert moments.largest_input is not None
    error = output_error(layer, planned.found, moments.largest_input)
    spec = planned.features
    if error <= spec.epsilon or not report.converged:
        return report
    diagnosis = (
        f"an output is off by {error:.1e}, epsilon={spec.epsilon:g} is promised: rounding to "
        f"{_name(layer.second_norm.weight.dtype)} leaves too little of what the {spec.activation} "
        "gives; use model.double(), tanh, or a larger epsilon"
    )
    solution = dataclasses.replace(report.solution, diagnosis=diagnosis)
    return dataclasses.replace(report, converged=False, solution=solution)


def _convolutions(layer: SourceLayer) -> str:
    if layer.implicit:
        return "implicit"
    return {"regenerate": "regenerated", "disk": "on disk"}.get(layer.pairs[0].storage, "stored")


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def _rank(pairs: Sequence[Features]) -> int | None:
    """Rank of M, the smallest of the groups' where M is small enough for singular values."""
    if pairs[0].identity or pairs[0].shape.equations > 3000:
        return None
    matrices = (feature_operator(pair, torch.float64, torch.device("cpu")) for pair in pairs)
    return min(int(torch.linalg.matrix_rank(matrix.dense())) for matrix in matrices)
