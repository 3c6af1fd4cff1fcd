"""The library call: rebuild a network in eval mode as a source network of the same function."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.arguments import check_model, feature_spec, solver_spec
from bnrecon.reconstruction.assembly import build_layer, check_moments, join_layers
from bnrecon.reconstruction.comparison import UNCOMPARED, compare, explain_difference
from bnrecon.reconstruction.images import checked_images
from bnrecon.reconstruction.moments import gather
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.refusal import RefusedLayers, layer_label
from bnrecon.reconstruction.report import NOTED, Reconstruction
from bnrecon.reconstruction.solving import solve_layer
from bnrecon.reconstruction.substitution import uncompiled
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.torch_modes import one_thread_at_a_time, outside_torch_modes
from bnrecon.runtime.units import format_duration
from bnrecon.solvers.spec import SolverSpec

logger = logging.getLogger(__name__)


@one_thread_at_a_time
@outside_torch_modes
def reconstruct(
    model: nn.Module,
    features: str | FeatureSpec = "he_normal",
    oversampling: float | None = None,
    solver: str | SolverSpec = "auto",
    seed: int = 0,
    images: torch.Tensor | Iterable | None = None,
    *,
    unsupported: str = "raise",
    fold: bool = True,
) -> Reconstruction:
    """Rebuild a network from frozen random convolutions by choosing normalization parameters alone.

    Each convolution, transposed convolution and linear layer is replaced by two frozen random
    layers (for images A (c1, c0, 1, 1) and B (c2, c1, kh, kw)), each followed by a BatchNorm
    (Burkholz 2024, Lemma 2.1, Theorems 2.2-2.4). So is each group of a grouped convolution, and
    each projection of ``nn.MultiheadAttention`` or torchvision's Swin. A BatchNorm that follows a
    layer is folded into it first. Everything else is copied, only normalizations stay trainable,
    and the model itself is not changed.

    This combines ``plan_layers``, ``solve_layer`` for each layer and ``assemble``, which are public
    too, and compares both networks' outputs on up to 64 images of the first batch.

    Args:
        model: any ``nn.Module`` in eval mode, in float32 or float64. The module inside a
            ``torch.compile`` wrapper is rebuilt.
        features: a distribution in ``bnrecon.features.DISTRIBUTIONS``, or a ``FeatureSpec`` with
            widths, activation and skip connection.
        oversampling: c1 / n, where n = c2 · c0 · kh · kw is the number of a layer's equations; by
            default 1.5 (sign, sparse_he_normal, er_sign: at least n + 64 features), and 1 for
            id_cond, ortho_cond, sparse_id_cond and solvers of square systems.
        solver: a solver in ``bnrecon.solvers.SOLVERS``, ``"auto"``, or a ``SolverSpec``. A layer
            has converged if the solver's residual and the layer's relative error are within the
            spec's tolerance, and its error in the network's precision is at most 1,000 machine
            epsilons (1.2e-4 in float32) or the tolerance, whichever is larger. The weights of each
            output may be off by 1,000 times the tolerance, as rounded also by 1,000 epsilons. With
            tanh and sigmoid the rounded layer must keep to ``FeatureSpec.epsilon``.
        seed: the seed of all features, 0 to 2^63 - 1.
        images: (N, C, H, W), or an iterable of such batches, like a DataLoader, to compute running
            statistics from. Without images, means are 0 and variances 1. An activation needs
            images: their range determines how its inputs are moved into its linear region.
        unsupported: ``"raise"``, or ``"keep"`` to keep layers that cannot be rebuilt.
        fold: whether to rebuild a BatchNorm with the layer before it; an ``nn.Identity`` replaces
            it in the source network. If False, all normalizations are kept.

    Returns:
        ``.network``, the source network, an ``nn.Module`` on the model's device; ``.layers``, a
        report for each layer; ``.verified``, whether outputs agree (``None`` if not compared, as
        without images); ``.difference`` of outputs; ``.notes``; ``.save``.

    Raises:
        UserError: an argument, the model or a layer is not supported, or the features do not fit
            into memory; checked before any work.
        RunError: a system is singular, a solver lacks memory, or a number overflows in the
            network's precision; replacing layers changes what the model computes; or the outputs
            are far from the model's, and ``error.reconstruction`` has the result.

    >>> _ = torch.manual_seed(0)
    >>> layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3)]
    >>> net = nn.Sequential(*layers).eval()
    >>> rebuilt = reconstruct(net, features="he_normal", oversampling=1.5, seed=0)
    >>> x = torch.randn(5, 2, 8, 8)
    >>> bool((rebuilt.network(x) - net(x)).abs().max() < 1e-4), rebuilt.layers[0].converged
    (True, True)
    """
    check_model(model)
    if not isinstance(fold, bool):
        raise UserError(f"fold={fold!r}: must be true or false")
    spec, solver = feature_spec(features, oversampling), solver_spec(solver)
    target = uncompiled(model)
    first, batches = (None, None) if images is None else checked_images(images, target)
    options: Any = {"seed": seed, "unsupported": unsupported, "fold": fold}
    try:
        plan = plan_layers(model, spec, solver, images=first, **options)
    except RefusedLayers as error:
        if unsupported == "raise":
            error.advise_library_user()
        raise
    targets = [layer.folded for layer in plan.layers]
    moments = None if batches is None else gather(plan.model, targets, batches)
    checked = check_moments(plan, moments)
    if logger.isEnabledFor(logging.INFO):  # the estimate runs a benchmark
        expected = format_duration(max(1, plan.seconds))
        logger.info("%d layers, about %s of solving", len(plan.layers), expected)
    built = []
    with tqdm(plan.layers, desc="layers", disable=None, leave=False) as layers:
        for layer in layers:
            equations = layer.groups * layer.shape.equations
            layers.set_postfix_str(f"{layer.label}, {equations} equations")
            pairs = layer.draw_groups()  # once, for solving and building
            solution = solve_layer(layer, pairs=pairs)
            built.append(build_layer(layer, solution, checked.get(layer.name), pairs))
    return _describe(_compare(join_layers(plan, built), target, first, plan), plan)


def _compare(
    rebuilt: Reconstruction, model: nn.Module, images: torch.Tensor | None, plan: Plan
) -> Reconstruction:
    """Add the difference of outputs; a ``RunError`` about it carries the reconstruction."""
    if images is None:
        note = "outputs were not compared with the model's: give images to compare them"
        return dataclasses.replace(rebuilt, notes=[note, *rebuilt.notes])
    try:
        difference, notes = compare(rebuilt.network, model, images)
        spec = plan.features  # some are approximate by choice
        approximate = not FIRST_ACTIVATIONS[spec.activation].exact or spec.keep is not None
        accepted = approximate or spec.allow_below_minimum
        off = explain_difference(difference, _explain(rebuilt), accepted)
    except RunError as error:
        error.reconstruction = rebuilt
        raise
    if plan.trial is None or plan.trial.relative <= NOTED:  # else the trial's note says why
        notes += off
    again = any(note.startswith(UNCOMPARED) for note in notes)  # the trial says so, too
    before = [note for note in rebuilt.notes if not (again and note.startswith(UNCOMPARED))]
    notes = list(dict.fromkeys(before + notes))
    return dataclasses.replace(rebuilt, difference=difference, notes=notes)


def _explain(rebuilt: Reconstruction) -> str:
    """Say why the network's outputs may be off."""
    failed = [report for report in rebuilt.layers if not report.converged]
    if failed:
        names = shorten([report.name or "the model" for report in failed])
        why = failed[0].diagnosis
        return f"not converged: {names} ({why})" if why else f"not converged: {names}"
    worst = max(rebuilt.layers, key=lambda report: report.channel_error or 0)
    return (
        f"each layer alone is rebuilt to {worst.channel_error:.0e} of each output's weights "
        f"({layer_label(worst.name)} is the worst); if model.double() or features=id_cond is as "
        "far off, the cause is not accumulated rounding"
    )


def _describe(rebuilt: Reconstruction, plan: Plan) -> Reconstruction:
    """Add notes on layers that failed, on folding, and on the range of an activation."""
    notes = []
    for report in rebuilt.layers:
        if not report.converged:
            reason = f": {report.diagnosis}" if report.diagnosis else ""
            notes.append(
                f"{layer_label(report.name)} did not converge, its weights are off by "
                f"{report.relative_error:.1e}{reason}"
            )
            logger.warning(notes[-1])
    layers = [layer.folded for layer in plan.layers]
    if folded := [f"{one.norm_name} into {one.name}" for one in layers if one.norm is not None]:
        notes.append(
            f"folded: {shorten(folded)}; each is an Identity in the source network, also for other "
            "code that uses it (fold=False keeps all)"
        )
    spec = plan.features
    if spec.activation != "identity":
        notes.append(
            f"activation={spec.activation} is linear for inputs of a layer up to {spec.margin:g} "
            "times the largest on these images; beyond them the source network deviates, and "
            "layer.outside of each source layer counts such values"
        )
    return dataclasses.replace(rebuilt, notes=rebuilt.notes + notes)
