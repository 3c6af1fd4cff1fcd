"""One target layer: draw, solve; then set the normalizations, and see how far the layer is off."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch

from bnrecon.construction.activation import FIRST_ACTIVATIONS, linear_region
from bnrecon.construction.residual import layer_system
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.affine_map import AffineMap
from bnrecon.reconstruction.collapse import layer_errors, shift_at_output
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.planning import PlannedLayer
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.base import Solution
from bnrecon.solvers.solving import relative_residual, solve

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


def solve_layer(layer: PlannedLayer) -> Solution:
    """Draw a layer's features and solve M γ = vec(W) for the scales γ (Burkholz 2024, Lemma 2.1).

    Args:
        layer: one of ``Plan.layers``; it holds features, solver and seed.

    Returns:
        The scales (c1,) in float64, and the solver's report. A solution that does not reach the
        tolerance has ``report.converged == False``.

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
    system = _system(layer, layer.draw())
    spec = dataclasses.replace(layer.solver, tolerance=_tolerance(layer, system))
    try:
        return solve(system, spec)
    except (UserError, RunError) as error:
        raise type(error)(f"{layer.label}: {error}") from None


def build_layer(
    planned: PlannedLayer, solution: Solution, moments: LayerMoments | None = None
) -> BuiltLayer:
    """Build the source layer of a target layer from its solution.

    Args:
        planned: the layer.
        solution: scales (c1,) for it, from ``solve_layer``; the residual that it reports is
            computed again, from this layer's system.
        moments: of images, for its running statistics; mean 0 and variance 1 without them.

    Raises:
        UserError: the solution is of another layer.
        RunError: a number overflows in the network's precision.
    """
    found, spec = planned.found, planned.features
    drawn = planned.draw()
    system = _system(planned, drawn)
    if len(solution.scale) != system.operator.shape[1]:
        raise UserError(
            f"{planned.label}: its solution has {len(solution.scale)} scales, the layer has "
            f"{system.operator.shape[1]} features; give the solution of this plan"
        )
    solution = _checked(planned, system, solution)
    scales = system.scales(solution.scale)
    del system  # its float64 factors, before the layer's errors form others
    layer = SourceLayer(drawn, found.module, spec.activation)
    layer.folded = found.norm is not None
    _normalize(layer, scales, planned, moments)
    recipe = LayerRecipe(
        found.name,
        found.norm_name,
        planned.number,
        spec.name,
        planned.seed,
        spec.strict,
        planned.width,
        spec.activation,
        drawn.digest(),
        spec.skip,
        None if FIRST_ACTIVATIONS[spec.activation].exact else layer.region[1],
    )
    return BuiltLayer(layer, _report(layer, planned, solution, recipe.digest), recipe)


def _system(layer: PlannedLayer, drawn: Features) -> System:
    orthogonal = distribution(layer.features.name).orthogonal
    return layer_system(layer.found.target, drawn, layer.found.module.weight.device, orthogonal)


def _tolerance(layer: PlannedLayer, system: System) -> float:
    """The residual to reach: the tolerance, less where the target is below the right-hand side.

    A skip connection that has to be cancelled can be far larger than the target.
    """
    norm, rhs = float(layer.found.target.weight.norm()), float(system.weight.norm())
    return layer.solver.tolerance * (min(1.0, norm / rhs) if norm > 0 and rhs > 0 else 1.0)


def _checked(planned: PlannedLayer, system: System, solution: Solution) -> Solution:
    """The solution with the residual that it has in this system; it may be of another plan."""
    scale, report = solution.scale.to(system.rhs), solution.report
    residual = relative_residual(system, scale)
    converged, diagnosis = residual <= _tolerance(planned, system), report.diagnosis
    if report.converged and not converged:
        diagnosis = FOREIGN
    report = dataclasses.replace(
        report, relative_residual=residual, converged=converged, diagnosis=diagnosis
    )
    return Solution(scale, report)


def _normalize(
    layer: SourceLayer, scales: Scales, planned: PlannedLayer, moments: LayerMoments | None
) -> None:
    """Set the normalizations so that the layer is outer ∘ B (inner ∘ A x) + b.

    In the linear region of the activation φ(v inner ∘ A x + t) = m (v inner ∘ A x + t) + c, so that
    the second normalization divides by m v and subtracts B (m t + c).
    """
    features, found, spec = layer.features, planned.found, planned.features
    bias = found.target.bias.to(scales.inner.device)
    seen = None if moments is None else moments.largest_input
    largest = None if seen is None else spec.margin * seen
    region = linear_region(spec.activation, features, scales, largest, spec.epsilon)
    slope, offset = layer.linearized.slope, layer.linearized.offset
    layer.region = (region.low, region.high)
    inner, outer = region.factor * scales.inner, scales.outer / (slope * region.factor)
    at_output = shift_at_output(features, slope * region.shift + offset)
    if moments is None:
        statistics = [(torch.zeros_like(scale), torch.ones_like(scale)) for scale in (inner, bias)]
    else:
        skip = features.skip_weight if features.skip == "inner" else None
        gain = found.gain.to(bias)
        statistics = [
            moments.first_output(features),
            moments.second_output(gain, found.module.bias, outer, at_output, skip),
        ]
    first, second = statistics
    layer.set_maps(
        AffineMap(inner, region.shift, *first), AffineMap(outer, bias - outer * at_output, *second)
    )


def _report(
    layer: SourceLayer, planned: PlannedLayer, solution: Solution, digest: str
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
    diagnosis = solution.report.diagnosis
    if solution.report.converged and exact > tolerance:
        if planned.width < planned.shape.equations and layer.features.skip != "inner":
            diagnosis = UNREACHED_PIVOT
    elif solution.report.converged and assembled > rounding:
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
        converged=solution.report.converged and exact <= tolerance and assembled <= rounding,
        redrawn=layer.features.redrawn,
        rank=_rank(layer.features) if planned.features.strict else None,
        convolutions="implicit" if layer.implicit else "stored",
        digest=digest,
        solution=dataclasses.replace(solution.report, diagnosis=diagnosis),
    )


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def _rank(features: Features) -> int | None:
    """Rank of M, where M is small enough for singular values."""
    if features.identity or features.shape.equations > 3000:
        return None
    matrix = feature_operator(features, torch.float64, torch.device("cpu"))
    return int(torch.linalg.matrix_rank(matrix.dense()))
