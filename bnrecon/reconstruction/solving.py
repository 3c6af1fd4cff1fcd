"""One layer of a plan: draw its features, solve for the scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.operators.system import System
from bnrecon.reconstruction.groups import join_solutions, solve_groups
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.solvers.base import Solution
from bnrecon.solvers.checkpoint import Checkpoint
from bnrecon.solvers.pruning import prune
from bnrecon.solvers.solving import solve
from bnrecon.solvers.spec import SolverSpec


@outside_torch_modes
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

    >>> import torch
    >>> from bnrecon.reconstruction.planning import plan_layers
    >>> _ = torch.manual_seed(0)
    >>> plan = plan_layers(torch.nn.Linear(3, 4).eval())
    >>> solution = solve_layer(plan.layers[0])
    >>> solution.scale.shape, solution.report.converged  # 1.5 n = 18
    (torch.Size([18]), True)
    """
    problems = (
        layer_problem(layer, target, layer.draw(group) if pairs is None else pairs[group])
        for group, target in enumerate(layer.found.target.split())
    )
    try:
        if layer.features.keep is not None:
            kept, method = layer.features.kept(layer.width), str(layer.features.pruning)
            return join_solutions([prune(*problem, kept, method) for problem in problems])
        if layer.groups > 1:
            return solve_groups(problems)
        return solve(*next(problems), checkpoint)
    except (UserError, RunError) as error:
        raise type(error)(f"{layer.label}: {error}") from None


def layer_problem(
    layer: PlannedLayer, target: TargetLayer, pair: Features
) -> tuple[System, SolverSpec]:
    """The system of a layer, or of one group of it, and the solver's settings for it.

    The relative residual to reach is tolerance · min(1, ‖W‖ / ‖b‖), W being the target's weight and
    b the right-hand side. A skip connection that has to be cancelled can make b far larger than W,
    as can small outputs that are scaled up; the error is to be small relative to W.
    """
    orthogonal = distribution(layer.features.name).orthogonal
    system = layer_system(target, pair, layer.device, orthogonal)
    wanted = system.weight if system.outer is None else system.rhs
    norm, rhs = float(target.weight.norm()), float(wanted.norm())
    share = min(1.0, norm / rhs) if norm > 0 and rhs > 0 else 1.0
    return system, dataclasses.replace(layer.solver, tolerance=layer.solver.tolerance * share)
