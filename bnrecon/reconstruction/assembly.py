"""From solutions to the source network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bnrecon.reconstruction.attention import pack
from bnrecon.reconstruction.building import BuiltLayer, build_layer
from bnrecon.reconstruction.folding import replacements
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.refusal import layer_label
from bnrecon.reconstruction.report import Reconstruction
from bnrecon.reconstruction.substitution import freeze, substitute
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.solvers.base import Solution

__all__ = ["assemble", "check_moments", "join_layers"]

NOTHING = 1e-6  # inputs that are never larger than this tell no range


@outside_torch_modes
def assemble(
    plan: Plan,
    solutions: Mapping[str, Solution],
    moments: Mapping[str, LayerMoments] | None = None,
) -> Reconstruction:
    """Build the source network from a solution for every layer of a plan.

    All layers of the plan are replaced, all else is copied, and only normalizations stay trainable.

    Args:
        plan: from ``plan_layers``; its model is left as it is.
        solutions: by the layer's name, from ``solve_layer``.
        moments: by the layer's name, from ``gather``: what running statistics are computed from,
            and the range of inputs that an activation needs. Without them means are 0, variances 1.

    Returns:
        The source network, with a report for every layer; outputs are not compared.

    Raises:
        UserError: a solution or the moments are missing, or not of this plan.
        RunError: a number overflows in the network's precision.
    """
    known = check_moments(plan, moments)
    if missing := [layer.label for layer in plan.layers if layer.name not in solutions]:
        raise UserError(f"solutions: missing for {shorten(missing)}; solve_layer computes them")
    return join_layers(
        plan,
        [build_layer(layer, solutions[layer.name], known.get(layer.name)) for layer in plan.layers],
    )


def join_layers(plan: Plan, built: Sequence[BuiltLayer]) -> Reconstruction:
    """The source network of a plan's layers, each built by ``build_layer``, in their order."""
    found = [layer.found for layer in plan.layers]
    network = pack(substitute(plan.model, replacements(found, (part.layer for part in built))))
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
        UserError: the activation needs a range that the moments do not tell.
        RunError: moments are not finite.
    """
    activation = plan.features.activation
    if activation != "identity" and moments is None:
        raise UserError(
            f"activation={activation} needs images: without the range of its inputs no shift into "
            "the linear region is known"
        )
    known = {name: seen for name, seen in (moments or {}).items() if seen.count}
    for layer in plan.layers:
        seen = known.get(layer.name)
        if seen is not None and not seen.is_finite():
            precision = str(layer.found.module.weight.dtype).removeprefix("torch.")
            raise RunError(
                f"{layer.label}: on these images, which are finite, its inputs or outputs are not "
                f"finite in {precision}; are they with model.double()?"
            )
        if activation != "identity":
            _check_range(layer.name, seen, activation)
    return known


def _check_range(name: str, seen: LayerMoments | None, activation: str) -> None:
    """Raise ``UserError`` unless the moments tell the range of a layer's inputs."""
    label = layer_label(name)
    if seen is None or seen.largest_input is None:
        raise UserError(
            f"{label}: the images do not reach it, or within torch.vmap, so that its range is not "
            "known; "
            f"activation={activation} needs it"
        )
    if (largest := float(seen.largest_input.max())) < NOTHING:
        raise UserError(
            f"{label}: on the images its inputs are at most {largest:.0e}, too small to tell "
            "their range; give images as the network will see them, or none and activation=identity"
        )
