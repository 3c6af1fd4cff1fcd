"""The library call: any network in eval mode -> a source network that computes the same function, and a report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from bnrecon.construction.activation import FIRST_ACTIVATIONS, check_activation, linear_region
from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.collapse import layer_errors, shift_at_output
from bnrecon.reconstruction.folding import FoundLayer
from bnrecon.reconstruction.geometry import geometry_of
from bnrecon.reconstruction.images import checked_images
from bnrecon.reconstruction.moments import LayerMoments, gather
from bnrecon.reconstruction.planning import LISTED, is_number, is_whole, plan_layers
from bnrecon.reconstruction.report import LayerReport, OutputDifference, Reconstruction
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.reconstruction.source_layer import AffineMap, SourceLayer
from bnrecon.reconstruction.substitution import freeze, substitute
from bnrecon.reconstruction.usage import tensors_in
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import exact_float32
from bnrecon.solvers import Report, Solution, SolverOptions, solve
from bnrecon.solvers.solving import relative_residual

__all__ = ["reconstruct"]


ASSEMBLED = 1e3  # units of rounding by which a layer may be off in the arithmetic the network runs in: 1.2e-4 in float32


OUTPUTS = 0.1  # of the outputs' own size: farther off, something in the network was not seen


NOTHING = 1e-6  # inputs that are never larger than this tell no range


def reconstruct(
    model: nn.Module, features: str = "he_normal", oversampling: float | None = None, solver: str = "auto", seed: int = 0, *,
    excess: int | None = None, width: str | int | None = None, allow_below_minimum: bool = False, activation: str = "identity",
    epsilon: float = 1e-3, margin: float = 2.0, strict: bool = False, skip: str = "none", images: torch.Tensor | Iterable[torch.Tensor] | None = None,
    moments: Mapping[str, LayerMoments] | None = None, tolerance: float = 1e-10, max_iterations: int | None = None,
    unsupported: str = "raise", solved: Mapping[str, Solution] | None = None,
    on_layer: Callable[[LayerReport, Solution], None] | None = None,
) -> Reconstruction:  # fmt: skip
    """Rebuild a network from frozen random convolutions by its normalization parameters alone.

    Every 2d convolution and linear layer becomes two frozen random ones, each followed by a BatchNorm (Burkholz 2024,
    Lemma 2.1, Thms 2.2-2.4); a BatchNorm that follows a layer is folded into it first. All else is copied; of that, too, only
    normalizations stay trainable. The model itself is left as it was.

    Args:
        model: any ``nn.Module`` in eval mode.
        features: distribution of the frozen weights, a name in ``bnrecon.features.DISTRIBUTIONS``.
        oversampling: c1 / n features for n equations (if nothing is said 1.5; 1 for id_cond, ortho_cond and the LU solvers); or
            ``excess``, c1 - n; or ``width``, c1 itself, ``"minimum"`` (n - c2 + 1) or ``"maximum"`` (n).
        solver: a name in ``bnrecon.solvers.SOLVERS``, or ``"auto"``.
        seed: from which all features are drawn.
        activation: after the first source layer: identity, relu, leaky_relu, tanh or sigmoid. All but the first are scaled and
            shifted into their linear region for inputs up to ``margin`` times the largest seen in ``images``, which they need.
        epsilon: with tanh and sigmoid, by how much a layer's output may differ from the target's for such inputs (Thm 2.4).
        skip: a frozen skip connection beside each pair, joined ``"inner"``: behind the second normalization, ``"outer"``: before it.
        images: a tensor (N, C, H, W) or an iterable of such, a DataLoader say, from which the running statistics are taken.
            Without them the source keeps the statistics it was drawn with: mean 0 and variance 1. The outputs of both
            networks are compared on the first batch: ``.difference``.
        moments: what ``bnrecon.moments.gather`` made of images before, instead of ``images``.
        tolerance: a layer counts as converged when the solver's relative residual and the layer's relative error are at most
            this, and its error in the network's own arithmetic is at most 1,000 units of rounding (1.2e-4 in float32).
        unsupported: ``"raise"``, or ``"keep"`` to leave layers that cannot be rebuilt as they are.
        solved: solutions found earlier, by layer name; ``on_layer`` is called with each layer's report and solution.

    Returns:
        ``.network``, the source as an ``nn.Module`` on the model's device; ``.layers``, a report for each layer; ``.notes``;
        ``.difference``; ``.save``.

    Raises:
        UserError: the model is in training mode, or something cannot be done; all is checked before any work starts.
        RunError: a system is singular, memory does not suffice, a number overflows in the network's arithmetic, or all layers
            are rebuilt and the outputs are far from the model's all the same.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2)).eval()
    >>> rebuilt = reconstruct(net, features="he_normal", oversampling=1.5, seed=0)
    >>> x = torch.randn(5, 2, 8, 8)
    >>> bool((rebuilt.network(x) - net(x)).abs().max() < 1e-4), rebuilt.layers[0].converged
    (True, True)
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model is {type(model).__name__}; it must be a torch.nn.Module")
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise UserError(f"seed={seed!r}: must be a whole number from 0 to 2^63 - 1")
    if max_iterations is not None and not (is_whole(max_iterations) and max_iterations > 0):
        raise UserError(f"max_iterations={max_iterations!r}: must be a whole number above 0")
    if any(module.training for module in model.modules()):
        raise UserError("the model is in training mode, its normalization not yet fixed; call model.eval() before reconstruct")
    check_activation(activation, skip)
    for name, value in (("epsilon", epsilon), ("margin", margin), ("tolerance", tolerance)):
        if not (is_number(value) and 0 < value < math.inf):
            raise UserError(f"{name}={value}: must be above 0")
    odd = {str(p.dtype).removeprefix("torch.") for p in model.parameters()} - {"float32", "float64"}
    if odd:
        raise UserError(
            f"the model holds {', '.join(sorted(odd))} parameters; reconstruct works in float32 or float64: call model.float()"
        )
    first, batches = (None, iter(())) if images is None else checked_images(images, model)
    plan = plan_layers(
        model, features, oversampling, excess, width, allow_below_minimum, solver, unsupported, skip=skip, images=first
    )
    if moments is None and images is not None:
        moments = gather(model, [layer.found for layer in plan.layers], batches)
    if activation != "identity" and moments is None:
        raise UserError(f"activation={activation} needs images: without their range no shift into the linear region is known")
    if moments is not None and activation != "identity":
        for layer in plan.layers:
            if (known := moments.get(layer.found.name)) is None or known.count == 0:
                raise UserError(
                    f"layer {layer.found.name}: the images never reach it, so that its range is not known; activation={activation} needs it"
                )
            if (largest := float(known.largest_input.max())) < NOTHING:
                raise UserError(
                    f"layer {layer.found.name}: on the images its inputs are at most {largest:.0e}, which tells no range; give images as "
                    f"the network will see them, or none and activation=identity"
                )
    replaced: dict[int, object] = {}
    reports, recipes = [], []
    kind = distribution(features)
    for layer in plan.layers:
        found, target = layer.found, layer.found.target
        device, dtype = found.module.weight.device, found.module.weight.dtype
        drawn = draw(features, target.shape, layer.width, seed, layer.number, strict, skip)
        system = layer_system(target, drawn, device, kind.orthogonal)
        options = SolverOptions(tolerance * _share(system, target), max_iterations)
        if solved and found.name in solved and len(solved[found.name].scale) == system.operator.shape[1]:
            solution = _taken(system, solved[found.name], options.tolerance)
        else:
            solution = _solved(found.name, solver, system, options)
        scales = system.scales(solution.scale)
        del system  # its float64 factors, before the layer's errors form others
        built = SourceLayer(drawn, geometry_of(found.module), activation, dtype).to(device)
        built.folded = found.norm is not None
        known = moments.get(found.name) if moments else None
        if known is not None and known.count == 0:
            known = None  # a layer that the forward pass never reaches
        _normalize(built, scales, found, known, activation, margin, epsilon)
        recipe = LayerRecipe(
            found.name, found.norm_name, layer.number, features, seed, strict, layer.width, activation, drawn.digest(), skip,
            None if FIRST_ACTIVATIONS[activation].exact else built.region[1],
        )  # fmt: skip
        report = _report(built, found, solution.report, recipe, strict, tolerance)
        if on_layer:
            on_layer(report, solution)
        reports.append(report)
        recipes.append(recipe)
        replaced[id(found.module)] = built
        if found.norm is not None:
            replaced[id(found.norm)] = nn.Identity()
    network = substitute(model, replaced)
    frozen = freeze(network)
    if frozen:
        plan.notes.append(f"frozen with the convolutions, being no normalization: {_listed(frozen)}")
    done = all(report.converged for report in reports) and FIRST_ACTIVATIONS[activation].exact
    difference = None if first is None else _compared(network, model, first, done)
    return Reconstruction(network, reports, recipes, plan.notes, difference)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _compared(network: nn.Module, model: nn.Module, images: torch.Tensor, exact: bool) -> OutputDifference:
    """Compare outputs on up to 64 images; ``exact``: no layer says that it is off, so that they must be close."""
    images = images[:64]
    with torch.no_grad(), exact_float32():
        pairs = zip(tensors_in(network(images)), tensors_in(model(images)), strict=True)
        pairs = [(ours, theirs) for ours, theirs in pairs if theirs.is_floating_point() and theirs.numel()]
    if any(bool(theirs.isfinite().all()) and not bool(ours.isfinite().all()) for ours, theirs in pairs):
        raise RunError(
            "the source network's outputs are not finite, the model's are: intermediate numbers overflow; use model.double(), or images "
            "and weights of a usual size"
        )
    largest = max((float((ours - theirs).abs().max()) for ours, theirs in pairs), default=0.0)
    size = max((float(theirs.abs().max()) for _, theirs in pairs), default=0.0)
    if exact and largest > OUTPUTS * size:
        raise RunError(
            f"every layer is rebuilt, and yet outputs differ by {largest:.1e} where they are up to {size:.1e}: the model computes "
            "something from its layers that a replaced layer does not give"
        )
    return OutputDifference(largest, size, len(images))


def _share(system: System, target: TargetLayer) -> float:
    """How much smaller the target is than the right-hand side, if it is: a skip connection that has to be cancelled can dwarf it."""
    norm, rhs = float(target.weight.norm()), float(system.weight.norm())
    return min(1.0, norm / rhs) if norm > 0 and rhs > 0 else 1.0


def _solved(layer: str, solver: str, system: System, options: SolverOptions) -> Solution:
    """Solve, naming the layer in whatever goes wrong."""
    try:
        return solve(solver, system, options)
    except (UserError, RunError) as error:
        raise type(error)(f"layer {layer}: {error}") from None


def _taken(system: System, solution: Solution, tolerance: float) -> Solution:
    """A solution found earlier, its residual recomputed all the same."""
    scale = solution.scale.to(system.rhs.device)
    residual = relative_residual(system, scale)
    report = dataclasses.replace(solution.report, relative_residual=residual, converged=residual <= tolerance)
    return Solution(scale, report)


def _normalize(
    layer: SourceLayer, scales: Scales, found: FoundLayer, moments: LayerMoments | None, activation: str, margin: float, epsilon: float
) -> None:  # fmt: skip
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
    layer.set_maps(AffineMap(inner, region.shift, *first), AffineMap(outer, bias - outer * at_output, *second))


def _report(
    layer: SourceLayer, found: FoundLayer, report: Report, recipe: LayerRecipe, strict: bool, tolerance: float
) -> LayerReport:
    shape = found.target.shape
    exact, assembled = layer_errors(layer, found.target.weight)
    if not layer.is_finite() or not math.isfinite(assembled):
        precision = str(layer.second_norm.weight.dtype).removeprefix("torch.")
        raise RunError(
            f"layer {found.name}: its normalization overflows {precision} (weights up to {float(found.target.weight.abs().max()):.0e}, "
            "statistics of the images besides); use model.double(), or weights and images of a usual size"
        )
    diagnosis = report.diagnosis
    rounding = max(tolerance, ASSEMBLED * torch.finfo(layer.second_norm.weight.dtype).eps)
    if report.converged and exact > tolerance and recipe.width < shape.equations and recipe.skip != "inner":
        diagnosis = (
            "the eliminated system is solved, but recovering the second scales amplifies what is left: some output is hardly reached at "
            "its pivot (near to a pathological target of Burkholz 2024, Thm 2.2); try a tighter solver.tolerance, or one feature more"
        )
    elif report.converged and exact <= tolerance and assembled > rounding:
        diagnosis = (
            f"solved to {exact:.0e}, of which rounding to {str(layer.second_norm.weight.dtype).removeprefix('torch.')} leaves "
            f"{assembled:.0e}: large scales cancel; take more features (features.oversampling=1.1), or a model in double precision"
        )
    return LayerReport(
        found.name, (shape.outputs, shape.inputs, *shape.kernel), shape.equations, recipe.width, recipe.width / shape.equations,
        report.solver, exact, assembled, report.relative_residual, report.iterations, report.seconds,
        report.converged and exact <= tolerance and assembled <= rounding,
        layer.features.redrawn, _rank(layer.features) if strict else None, "implicit" if layer.implicit else "stored", recipe.digest,
        report.norm, report.arithmetic, report.reason, diagnosis,
    )  # fmt: skip


def _rank(features: Features) -> int | None:
    """Rank of M, where M is small enough for singular values."""
    if features.identity or features.shape.equations > 3000:
        return None
    matrix = feature_operator(features, torch.float64, torch.device("cpu"))
    return int(torch.linalg.matrix_rank(matrix.dense()))
