"""The library call: any network in eval mode -> a source network that computes the same function, and a report."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from bnrecon import source_file
from bnrecon.construction.activation import FIRST_ACTIVATIONS, check_activation, linear_region
from bnrecon.construction.residual import layer_system, minimum_width
from bnrecon.construction.two_layer import Scales, System, TargetLayer, feature_operator
from bnrecon.errors import RunError, UserError, nearest
from bnrecon.features import Features, check_skip, choose_width, distribution, draw
from bnrecon.hardware import available_memory, exact_float32, gigabytes
from bnrecon.images import checked_images
from bnrecon.moments import LayerMoments, gather
from bnrecon.solvers import Report, Solution, SolverOptions, solve
from bnrecon.solvers.base import lookup, require_memory
from bnrecon.solvers.solving import relative_residual
from bnrecon.source import (
    IMPLICIT_FROM,
    AffineMap,
    SourceLayer,
    freeze,
    geometry_of,
    layer_errors,
    shift_at_output,
    substitute,
)  # fmt: skip
from bnrecon.source_file import LayerRecipe
from bnrecon.targets.folding import FoundLayer, find_layers
from bnrecon.targets.usage import tensors_in

__all__ = [
    "LayerReport",
    "OutputDifference",
    "Plan",
    "PlannedLayer",
    "Reconstruction",
    "RefusedLayers",
    "plan_layers",
    "reconstruct",
]

WAY_OUT = "use solver=matrix_free with features.oversampling=1.5, or features=id_cond"
PARAMETER_BYTES = 48  # a feature: scale, shift and statistics of its normalization, in float64 and as BatchNorm holds them
ASSEMBLED = 1e3  # units of rounding by which a layer may be off in the arithmetic the network runs in: 1.2e-4 in float32
OUTPUTS = 0.1  # of the outputs' own size: farther off, something in the network was not seen
NOTHING = 1e-6  # inputs that are never larger than this tell no range
LISTED = 3  # refused layers that a message names


class RefusedLayers(UserError):
    """Layers that cannot be rebuilt; ``refused`` maps each one's name to the reason."""

    def __init__(self, refused: Mapping[str, str]):
        self.refused = dict(refused)
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:LISTED])
        more = f"; and {len(refused) - LISTED} more (error.refused has all)" if len(refused) > LISTED else ""
        super().__init__(f"cannot be rebuilt: {listed}{more} (unsupported='keep' leaves such layers as they are)")


@dataclass(frozen=True)
class LayerReport:
    """How well one layer was rebuilt.

    ``shape`` is (c2, c0, kh, kw), ``width`` c1, ``equations`` n. ``relative_error`` is ‖W' - W‖ / ‖W‖ in float64 from the float64
    normalization parameters and the features; ``assembled_error`` the same in the arithmetic the network runs in. A layer has
    ``converged`` when the solver has, the first is within the tolerance, and the second is rounding and little more.
    ``residual`` is the solver's, recomputed in float64; ``rank`` that of M where strict sparse features may lack it. ``norm`` says
    which of many solutions was taken, ``arithmetic`` what the work was done in, ``reason`` why ``auto`` picked the solver,
    ``diagnosis`` why the layer did not converge, where a reason was found.
    """

    name: str
    shape: tuple[int, int, int, int]
    equations: int
    width: int
    oversampling: float
    solver: str
    relative_error: float
    assembled_error: float
    residual: float
    iterations: int
    seconds: float
    converged: bool
    redrawn: int
    rank: int | None
    convolutions: str
    digest: str
    norm: str = ""
    arithmetic: str = ""
    reason: str = ""
    diagnosis: str = ""


@dataclass(frozen=True)
class OutputDifference:
    """How far the source network's outputs are from the model's on ``images`` of the images given.

    ``largest`` is the largest difference of two numbers, ``size`` the largest number that the model puts out.
    """

    largest: float
    size: float
    images: int


@dataclass(frozen=True)
class Reconstruction:
    """A source network and how it came about; ``difference`` is ``None`` where no images were given."""

    network: nn.Module
    layers: list[LayerReport]
    recipes: list[LayerRecipe]
    notes: list[str] = field(default_factory=list)
    difference: OutputDifference | None = None

    def save(self, path: str | Path, full: bool = False) -> Path:
        """Save the network as its seed and normalization parameters; ``full`` saves all its weights instead.

        The short form is reloaded by ``bnrecon.load_source(path, model)``, the full one by ``load_state_dict`` of
        ``safetensors.torch.load_file(path)``.
        """
        write = source_file.save_full if full else source_file.save
        write(Path(path), self.network, self.recipes)
        return Path(path)


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
    if oversampling is not None and not (_is_number(oversampling) and 0 < oversampling < math.inf):
        raise UserError(f"{named}: oversampling must be a number above 0")
    if excess is not None and not _is_whole(excess):
        raise UserError(f"{named}: excess must be a whole number")
    if width is not None and width not in ("minimum", "maximum") and not (str(width).isdecimal() and int(width) > 0):
        raise UserError(f"{named}: width must be a number of features above 0, 'minimum' or 'maximum'")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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
    if not _is_whole(seed) or not 0 <= seed < 2**63:
        raise UserError(f"seed={seed!r}: must be a whole number from 0 to 2^63 - 1")
    if max_iterations is not None and not (_is_whole(max_iterations) and max_iterations > 0):
        raise UserError(f"max_iterations={max_iterations!r}: must be a whole number above 0")
    if any(module.training for module in model.modules()):
        raise UserError("the model is in training mode, its normalization not yet fixed; call model.eval() before reconstruct")
    check_activation(activation, skip)
    for name, value in (("epsilon", epsilon), ("margin", margin), ("tolerance", tolerance)):
        if not (_is_number(value) and 0 < value < math.inf):
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
