"""Solve a planned layer: draw its features, solve for the scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.operators.system import System
from bnrecon.reconstruction.groups import join_solutions, solve_groups
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.runtime import distributed as processes
from bnrecon.runtime.digests import tensor_digest
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.options import labelled
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.solvers.base import Solution
from bnrecon.solvers.checkpoint import Checkpoint, OnFirstRank
from bnrecon.solvers.pruning import prune
from bnrecon.solvers.register import lookup
from bnrecon.solvers.shared_factorization import SharedFactorization
from bnrecon.solvers.solving import solve
from bnrecon.solvers.spec import SolverSpec


@outside_torch_modes
def solve_layer(
    layer: PlannedLayer,
    checkpoint: Checkpoint | None = None,
    pairs: Sequence[Features] | None = None,
    distributed: bool = False,
) -> Solution:
    """Draw a layer's features and solve M γ = vec(W) for the scales γ (Burkholz 2024, Lemma 2.1).

    Args:
        layer: one of ``Plan.layers``; it holds features, solver and seed.
        checkpoint: where an iterative solver saves its state and resumes from; grouped and pruned
            layers do not use it.
        pairs: the result of ``layer.draw_groups()``, if already drawn.
        distributed: whether to divide the features among the processes of ``torch.distributed``.
            All call this with the same layer, neither grouped nor pruned, and a solver that only
            multiplies (``auto`` is ``matrix_free``); all get the solution.

    Returns:
        The scales (c1,) in float64, group after group, and the solver's report. If the tolerance is
        not reached, ``report.converged == False``.

    Raises:
        UserError: the solver does not apply to this system.
        RunError: the system is singular, or memory is insufficient. Both errors name the layer.

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
        for group, target in enumerate(layer.folded.target.split())
    )
    with labelled(layer.label):
        if distributed:
            return _solve_distributed(layer, checkpoint, pairs)
        if layer.features.keep is not None:
            kept, method = layer.features.kept(layer.width), str(layer.features.pruning)
            return join_solutions([prune(*problem, kept, method) for problem in problems])
        if layer.groups > 1:
            return solve_groups(problems)
        return solve(*next(problems), checkpoint)


def _solve_distributed(
    layer: PlannedLayer, checkpoint: Checkpoint | None, pairs: Sequence[Features] | None
) -> Solution:
    """Solve in several processes, which decide every step from the same numbers."""
    if not torch.distributed.is_initialized():
        raise UserError("distributed=True: call torch.distributed.init_process_group before it")
    if layer.groups > 1 or layer.features.keep is not None:
        raise UserError("a grouped or pruned layer is solved in one process")
    name = "matrix_free" if layer.solver.name == "auto" else layer.solver.name
    if not lookup(name).products or layer.width <= layer.shape.equations:
        raise UserError(
            f"solver={layer.solver.name} with {layer.width} features for {layer.shape.equations} "
            "equations is for one process; several need a solver that only multiplies, such as "
            "matrix_free, and more features than equations"
        )
    (target,) = layer.folded.target.split()
    system, spec = layer_problem(layer, target, pairs[0] if pairs else layer.draw(), True)
    plan = features_key(layer), spec, checkpoint is None
    about = f"{plan} {tensor_digest({'target': system.rhs})}"
    if processes.any_rank(processes.run_on_first_rank(lambda: about) != about, layer.device):
        raise UserError(
            "the processes have different plans or targets, or only some a checkpoint; build the "
            "same model in each, from the same weights or seed, and the same plan"
        )
    shared = None if checkpoint is None else OnFirstRank(checkpoint)
    return solve(system, dataclasses.replace(spec, name=name), shared)


@outside_torch_modes
def solve_layers(layers: Sequence[PlannedLayer]) -> list[Solution]:
    """Solve one layer of several networks with one LU (``SharedFactorization``).

    A layer's features depend on distribution, shape, width, seed and the layer's number, but not on
    weights: networks of one architecture share them.

    Args:
        layers: the same layer in a plan of each network, with at most n features and the solver
            ``auto``, ``lu`` or ``refined``.

    Returns:
        The solutions, in the order of the layers.

    Raises:
        UserError: the layers' features differ, are more than n or are pruned, the layers are
            grouped, or the solver is another.
        RunError: the system is singular, or memory does not suffice.

    >>> import torch
    >>> from bnrecon.features.spec import FeatureSpec
    >>> from bnrecon.reconstruction.planning import plan_layers
    >>> _ = torch.manual_seed(0)
    >>> networks = [torch.nn.Linear(3, 4).eval() for _ in range(2)]
    >>> spec = FeatureSpec("he_normal", oversampling=1)
    >>> plans = [plan_layers(network, spec) for network in networks]
    >>> [solution.report.converged for solution in solve_layers([plan.layers[0] for plan in plans])]
    [True, True]
    """
    return list(solutions_in_turn(list(layers)))


def solutions_in_turn(layers: Sequence[PlannedLayer]) -> Iterator[Solution]:
    """Yield the solutions of ``solve_layers`` as they are computed."""
    if len({features_key(layer) for layer in layers}) > 1:
        raise UserError(
            f"{layers[0].label}: seed, number, shape, width or distribution of its features is not "
            "the same for all networks; use solve_layer"
        )
    for layer in layers:
        if layer.groups > 1 or layer.features.keep is not None:
            raise UserError(f"{layer.label}: is grouped or pruned; use solve_layer")
        if layer.solver.name not in ("auto", "lu", "refined"):
            raise UserError(f"{layer.label}: solver={layer.solver.name}; use solve_layer")
    shared = pair = None
    for layer in layers:
        with labelled(layer.label):
            pair = pair or layer.draw()
            system, spec = layer_problem(layer, layer.folded.target, pair)
            shared = shared or SharedFactorization(system.matrix, len(layers))
            solution = shared.solve(system, spec)
        yield solution


def features_key(layer: PlannedLayer) -> tuple[object, ...]:
    """What a layer's features are drawn from."""
    return layer.seed, layer.number, layer.shape, layer.width, str(layer.features)


def layer_problem(
    layer: PlannedLayer, target: TargetLayer, pair: Features, distributed: bool = False
) -> tuple[System, SolverSpec]:
    """The system of a layer, or of one group of it, and the solver's settings for it.

    The relative residual to reach is tolerance · min(1, ‖W‖ / ‖b‖) for the target's weight W and
    the right-hand side b. The error must be small relative to W, but cancelling a skip connection
    or scaling small outputs up can make b far larger.
    """
    orthogonal = distribution(layer.features.name).orthogonal
    system = layer_system(target, pair, layer.device, orthogonal, distributed)
    right = system.weight if system.outer is None else system.rhs
    norm, rhs = float(target.weight.norm()), float(right.norm())
    share = min(1.0, norm / rhs) if norm > 0 and rhs > 0 else 1.0
    return system, dataclasses.replace(layer.solver, tolerance=layer.solver.tolerance * share)
