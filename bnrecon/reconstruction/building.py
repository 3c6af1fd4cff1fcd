"""One target layer -> one source layer: draw, solve, set the normalizations, and see how far it is off."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from bnrecon.construction.activation import FIRST_ACTIVATIONS, linear_region
from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.collapse import layer_errors, shift_at_output
from bnrecon.reconstruction.folding import FoundLayer, layer_label
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.planning import PlannedLayer
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.reconstruction.source_layer import AffineMap, SourceLayer
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers import Report, Solution, SolverOptions, solve
from bnrecon.solvers.solving import relative_residual

__all__ = ["BuildOptions", "BuiltLayer", "build_layer"]


ASSEMBLED = 1e3  # units of rounding by which a layer may be off in the arithmetic the network runs in: 1.2e-4 in float32


@dataclass(frozen=True)
class BuildOptions:
    """How every layer of a network is built; the names are those of ``reconstruct``'s arguments."""

    solver: str = "auto"
    seed: int = 0
    strict: bool = False
    skip: str = "none"
    activation: str = "identity"
    epsilon: float = 1e-3
    margin: float = 2.0
    tolerance: float = 1e-10
    max_iterations: int | None = None


class BuiltLayer(NamedTuple):
    """A source layer, how well it was rebuilt, and what it is drawn from."""

    layer: SourceLayer
    report: LayerReport
    recipe: LayerRecipe


def build_layer(
    planned: PlannedLayer,
    options: BuildOptions,
    moments: LayerMoments | None = None,
    solved: Solution | None = None,
) -> tuple[BuiltLayer, Solution]:
    """Build the source layer of one target layer; return it and the solution it was built of.

    ``moments`` of images give its running statistics; ``solved`` is a solution found earlier, which
    is taken where it fits. Raises ``UserError`` and ``RunError`` that name the layer.
    """
    found, target = planned.found, planned.found.target
    drawn = draw(
        planned.features,
        target.shape,
        planned.width,
        options.seed,
        planned.number,
        options.strict,
        options.skip,
    )
    orthogonal = distribution(planned.features).orthogonal
    system = layer_system(target, drawn, found.module.weight.device, orthogonal)
    wanted = SolverOptions(options.tolerance * _share(system, target), options.max_iterations)
    if solved is not None and len(solved.scale) == system.operator.shape[1]:
        solution = _taken(system, solved, wanted.tolerance)
    else:
        solution = _solved(found.name, options.solver, system, wanted)
    scales = system.scales(solution.scale)
    del system  # its float64 factors, before the layer's errors form others
    layer = SourceLayer(drawn, found.module, options.activation)
    layer.folded = found.norm is not None
    _normalize(layer, scales, found, moments, options.activation, options.margin, options.epsilon)
    recipe = LayerRecipe(
        found.name,
        found.norm_name,
        planned.number,
        planned.features,
        options.seed,
        options.strict,
        planned.width,
        options.activation,
        drawn.digest(),
        options.skip,
        None if FIRST_ACTIVATIONS[options.activation].exact else layer.region[1],
    )
    report = _report(layer, found, solution.report, recipe, options.tolerance)
    return BuiltLayer(layer, report, recipe), solution


def _share(system: System, target: TargetLayer) -> float:
    """How much smaller the target is than the right-hand side, if it is: a skip connection that has to be cancelled can dwarf it."""
    norm, rhs = float(target.weight.norm()), float(system.weight.norm())
    return min(1.0, norm / rhs) if norm > 0 and rhs > 0 else 1.0


def _solved(name: str, solver: str, system: System, options: SolverOptions) -> Solution:
    """Solve, naming the layer in whatever goes wrong."""
    try:
        return solve(solver, system, options)
    except (UserError, RunError) as error:
        raise type(error)(f"{layer_label(name)}: {error}") from None


def _taken(system: System, solution: Solution, tolerance: float) -> Solution:
    """A solution found earlier, its residual recomputed all the same."""
    scale = solution.scale.to(system.rhs.device)
    residual = relative_residual(system, scale)
    report = dataclasses.replace(
        solution.report, relative_residual=residual, converged=residual <= tolerance
    )
    return Solution(scale, report)


def _normalize(
    layer: SourceLayer,
    scales: Scales,
    found: FoundLayer,
    moments: LayerMoments | None,
    activation: str,
    margin: float,
    epsilon: float,
) -> None:
    """Set the layer's normalizations so that it is outer ∘ B (inner ∘ A x) + b, the activation kept in its linear region.

    There φ(v inner ∘ A x + t) = m (v inner ∘ A x + t) + c, so that the second normalization divides by m v and takes B (m t + c) off.
    """
    features, bias = layer.features, found.target.bias.to(scales.inner.device)
    known = None if moments is None else margin * moments.largest_input
    region = linear_region(activation, features, scales, known, epsilon)
    slope, offset = layer.linearized.slope, layer.linearized.offset
    layer.region = (region.low, region.high)
    inner, outer = region.factor * scales.inner, scales.outer / (slope * region.factor)
    at_output = shift_at_output(features, slope * region.shift + offset)
    if moments is None:
        statistics = [(torch.zeros_like(scale), torch.ones_like(scale)) for scale in (inner, bias)]
    else:
        beside = features.skip_weight if features.skip == "inner" else None
        statistics = [
            moments.first_output(features),
            moments.second_output(found.gain.to(bias), found.module.bias, outer, at_output, beside),
        ]
    dtype = layer.second_norm.weight.dtype
    first, second = ((mean.to(dtype), variance.to(dtype)) for mean, variance in statistics)
    layer.set_maps(
        AffineMap(inner, region.shift, *first), AffineMap(outer, bias - outer * at_output, *second)
    )


def _report(
    layer: SourceLayer, found: FoundLayer, solved: Report, recipe: LayerRecipe, tolerance: float
) -> LayerReport:
    """What is said of a layer, its errors taken anew."""
    shape, precision = found.target.shape, layer.second_norm.weight.dtype
    exact, assembled = layer_errors(layer, found.target.weight)
    if not layer.is_finite() or not math.isfinite(assembled):
        largest = float(found.target.weight.abs().max())
        raise RunError(
            f"{layer_label(found.name)}: its normalization overflows {_name(precision)} (weights up to {largest:.0e}, "
            "statistics of the images besides); use model.double(), or weights and images of a usual size"
        )
    rounding = max(tolerance, ASSEMBLED * torch.finfo(precision).eps)
    diagnosis = solved.diagnosis
    if (
        solved.converged
        and exact > tolerance
        and recipe.width < shape.equations
        and recipe.skip != "inner"
    ):
        diagnosis = (
            "the eliminated system is solved, but recovering the second scales amplifies what is left: some output is hardly reached at "
            "its pivot (near to a pathological target of Burkholz 2024, Thm 2.2); try a tighter tolerance, or one feature more"
        )
    elif solved.converged and exact <= tolerance and assembled > rounding:
        diagnosis = (
            f"solved to {exact:.0e}, of which rounding to {_name(precision)} leaves {assembled:.0e}: large scales cancel; "
            "take more features (oversampling=1.1), or a model in double precision"
        )
    return LayerReport(
        found.name,
        (shape.outputs, shape.inputs, *shape.kernel),
        shape.equations,
        recipe.width,
        recipe.width / shape.equations,
        solved.solver,
        exact,
        assembled,
        solved.relative_residual,
        solved.iterations,
        solved.seconds,
        solved.converged and exact <= tolerance and assembled <= rounding,
        layer.features.redrawn,
        _rank(layer.features) if recipe.strict else None,
        "implicit" if layer.implicit else "stored",
        recipe.digest,
        solved.norm,
        solved.arithmetic,
        solved.reason,
        diagnosis,
    )


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def _rank(features: Features) -> int | None:
    """Rank of M, where M is small enough for singular values."""
    if features.identity or features.shape.equations > 3000:
        return None
    matrix = feature_operator(features, torch.float64, torch.device("cpu"))
    return int(torch.linalg.matrix_rank(matrix.dense()))
