"""The library call: any network in eval mode -> a source network that computes the same function, and a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from bnrecon.construction.activation import FIRST_ACTIVATIONS, check_activation
from bnrecon.reconstruction.arguments import check_call, check_model
from bnrecon.reconstruction.building import BuildOptions, BuiltLayer, build_layer
from bnrecon.reconstruction.comparison import compare
from bnrecon.reconstruction.folding import FoundLayer, layer_label
from bnrecon.reconstruction.images import checked_images
from bnrecon.reconstruction.moments import LayerMoments, gather
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.report import LayerReport, Reconstruction
from bnrecon.reconstruction.substitution import freeze, substitute, uncompiled
from bnrecon.runtime.errors import RunError, UserError, listed
from bnrecon.solvers import Solution

__all__ = ["reconstruct"]


NOTHING = 1e-6  # inputs that are never larger than this tell no range


def reconstruct(
    model: nn.Module,
    features: str = "he_normal",
    oversampling: float | None = None,
    solver: str = "auto",
    seed: int = 0,
    *,
    excess: int | None = None,
    width: str | int | None = None,
    allow_below_minimum: bool = False,
    activation: str = "identity",
    epsilon: float = 1e-3,
    margin: float = 2.0,
    strict: bool = False,
    skip: str = "none",
    images: torch.Tensor | Iterable[torch.Tensor] | None = None,
    moments: Mapping[str, LayerMoments] | None = None,
    tolerance: float = 1e-10,
    max_iterations: int | None = None,
    unsupported: str = "raise",
    solved: Mapping[str, Solution] | None = None,
    on_layer: Callable[[LayerReport, Solution], None] | None = None,
) -> Reconstruction:
    """Rebuild a network from frozen random convolutions by its normalization parameters alone.

    Every 2d convolution and linear layer becomes two frozen random ones, each followed by a BatchNorm (Burkholz 2024,
    Lemma 2.1, Thms 2.2-2.4); a BatchNorm that follows a layer is folded into it first. All else is copied; of that, too, only
    normalizations stay trainable. The model itself is left as it was.

    Args:
        model: any ``nn.Module`` in eval mode; of a model that ``torch.compile`` wrapped, the module inside.
        features: distribution of the frozen weights, a name in ``bnrecon.features.DISTRIBUTIONS``.
        oversampling: c1 / n features for n equations (if nothing is said 1.5; 1 for id_cond, ortho_cond and the LU solvers); or
            ``excess``, c1 - n; or ``width``, c1 itself, ``"minimum"`` (n - c2 + 1) or ``"maximum"`` (n).
        solver: a name in ``bnrecon.solvers.SOLVERS``, or ``"auto"``.
        seed: from which all features are drawn; ``strict`` keeps those of sparse distributions that came out wholly zero.
        allow_below_minimum: take fewer features than the theorems ask for: the layer is then only approximated.
        activation: after the first source layer: identity, relu, leaky_relu, tanh or sigmoid. All but the first are scaled and
            shifted into their linear region for inputs up to ``margin`` times the largest seen in ``images``, which they need.
        epsilon: with tanh and sigmoid, by how much a layer's output may differ from the target's for such inputs (Thm 2.4).
        skip: a frozen skip connection beside each pair, joined ``"inner"``: behind the second normalization, ``"outer"``: before it.
        images: a tensor (N, C, H, W) or an iterable of such, a DataLoader say, from which the running statistics are taken.
            Without them the source keeps the statistics it was drawn with: mean 0 and variance 1. The outputs of both
            networks are compared on the first batch: ``.difference``.
        moments: what ``bnrecon.reconstruction.moments.gather`` made of images before, instead of ``images``.
        tolerance: a layer counts as converged when the solver's relative residual and the layer's relative error are at most
            this, and its error in the network's own arithmetic is at most 1,000 units of rounding (1.2e-4 in float32).
        unsupported: ``"raise"``, or ``"keep"`` to leave layers that cannot be rebuilt as they are.
        solved: solutions found earlier, by layer name; ``on_layer`` is called with each layer's report and solution.

    Returns:
        ``.network``, the source as an ``nn.Module`` on the model's device; ``.layers``, a report for each layer; ``.notes``;
        ``.difference``, ``None`` where outputs were not compared; ``.save``.

    Raises:
        UserError: the model is in training mode, or something cannot be done; all is checked before any work starts.
        RunError: a system is singular, memory does not suffice, a number overflows in the network's arithmetic, or all layers
            are rebuilt and the outputs are far from the model's all the same: ``error.reconstruction`` is what was rebuilt.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2)).eval()
    >>> rebuilt = reconstruct(net, features="he_normal", oversampling=1.5, seed=0)
    >>> x = torch.randn(5, 2, 8, 8)
    >>> bool((rebuilt.network(x) - net(x)).abs().max() < 1e-4), rebuilt.layers[0].converged
    (True, True)
    """
    check_model(model)
    check_call(
        {
            "features": features,
            "solver": solver,
            "activation": activation,
            "skip": skip,
            "seed": seed,
            "allow_below_minimum": allow_below_minimum,
            "epsilon": epsilon,
            "margin": margin,
            "strict": strict,
            "moments": moments,
            "tolerance": tolerance,
            "max_iterations": max_iterations,
            "solved": solved,
            "on_layer": on_layer,
        }
    )
    check_activation(activation, skip)
    whole, model = model, uncompiled(model)
    first, batches = (None, iter(())) if images is None else checked_images(images, model)
    plan = plan_layers(
        model,
        features,
        oversampling,
        excess,
        width,
        allow_below_minimum,
        solver,
        unsupported,
        skip=skip,
        images=first,
    )
    layers = [planned.found for planned in plan.layers]
    _check_copy(model, layers)
    if moments is None and images is not None:
        moments = gather(model, layers, batches)
    moments = _checked_moments(layers, moments, activation)
    options = BuildOptions(
        solver, seed, strict, skip, activation, epsilon, margin, tolerance, max_iterations
    )
    built = []
    for planned in plan.layers:
        name = planned.found.name
        part, solution = build_layer(planned, options, moments.get(name), (solved or {}).get(name))
        built.append(part)
        if on_layer:
            on_layer(part.report, solution)
    rebuilt = _assembled(model, layers, built, plan.notes)
    if whole is not model:
        rebuilt.notes.append(
            "the model is compiled, the source network is not: torch.compile it again"
        )
    return (
        rebuilt
        if first is None
        else _compared(rebuilt, model, first, FIRST_ACTIVATIONS[activation].exact)
    )


def _replacing(layers: list[FoundLayer], by: Iterable[nn.Module]) -> dict[int, object]:
    """By ``id``, what stands in each layer's place; a BatchNorm that was folded in is left out."""
    replaced: dict[int, object] = {}
    for found, module in zip(layers, by, strict=True):
        replaced[id(found.module)] = module
        if found.norm is not None:
            replaced[id(found.norm)] = nn.Identity()
    return replaced


def _check_copy(model: nn.Module, layers: list[FoundLayer]) -> None:
    """Raise ``UserError`` for what is kept and cannot be copied before any layer is solved."""
    substitute(model, _replacing(layers, [nn.Identity() for _ in layers]))


def _checked_moments(
    layers: list[FoundLayer], moments: Mapping[str, LayerMoments] | None, activation: str
) -> dict[str, LayerMoments]:
    """Each layer's moments, where images reached it; raise unless they are finite, and tell a range where it matters."""
    if activation != "identity" and moments is None:
        raise UserError(
            f"activation={activation} needs images: without their range no shift into the linear region is known"
        )
    known = {name: seen for name, seen in (moments or {}).items() if seen.count}
    for found in layers:
        label, seen = layer_label(found.name), known.get(found.name)
        if seen is not None and not seen.is_finite():
            precision = str(found.module.weight.dtype).removeprefix("torch.")
            raise RunError(
                f"{label}: the images are finite, what reaches the layer or leaves it is not: a number "
                f"overflows {precision} on the way; use model.double(), or images and weights of a usual size"
            )
        if activation == "identity":
            continue
        if seen is None:
            raise UserError(
                f"{label}: the images never reach it, so that its range is not known; activation={activation} needs it"
            )
        if (largest := float(seen.largest_input.max())) < NOTHING:
            raise UserError(
                f"{label}: on the images its inputs are at most {largest:.0e}, which tells no range; give images as "
                "the network will see them, or none and activation=identity"
            )
    return known


def _assembled(
    model: nn.Module, layers: list[FoundLayer], built: list[BuiltLayer], notes: list[str]
) -> Reconstruction:
    """The network with its layers replaced, all but normalizations frozen."""
    network = substitute(model, _replacing(layers, [part.layer for part in built]))
    if frozen := freeze(network):
        notes.append(f"frozen with the convolutions, being no normalization: {listed(frozen)}")
    return Reconstruction(
        network, [part.report for part in built], [part.recipe for part in built], notes
    )


def _compared(
    rebuilt: Reconstruction, model: nn.Module, images: torch.Tensor, exact: bool
) -> Reconstruction:
    """The same, with the difference of outputs; a ``RunError`` about them carries what was rebuilt."""
    exact = exact and all(report.converged for report in rebuilt.layers)
    try:
        difference, notes = compare(rebuilt.network, model, images, exact)
    except RunError as error:
        error.reconstruction = rebuilt
        raise
    return dataclasses.replace(rebuilt, difference=difference, notes=rebuilt.notes + notes)
