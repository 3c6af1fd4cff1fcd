"""Layers solved outside a run, which reads them: one alone, or those of several runs at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bnrecon.config.schema import RunConfig
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.solving import features_key, solutions_in_turn
from bnrecon.run.context import RunContext, open_run
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime import hardware
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.solving import LU_UNKNOWNS

logger = logging.getLogger(__name__)

Pending = tuple[PlannedLayer, SolvedLayers]


def solve_one_layer(config: RunConfig, seed: int, name: str) -> str:
    """Solve a layer of a run and store it, for the run to read; the solver and its residual.

    What is stored already is not solved again, and what was interrupted goes on. Another process
    holds the lock of the run's folder meanwhile, and waits.

    Raises:
        UserError: the request cannot be met.
        RunError: the layer cannot be solved.
    """
    with hardware.use_threads(config.threads):
        data = load_images(config)
        run = open_run(config, data, run_folder(config, data))
        solved = SolvedLayers(run.folder / f"seed-{seed}", run.seed_key)
        (layer,) = (each for each in run.plan_of_seed(seed).layers if each.name == name)
        solution = solved.get(layer) or solved.solve(layer, layer.draw_groups())
    return f"{solution.report.solver}, residual {solution.report.relative_residual:.1e}"


def solve_layers_together(runs: Sequence[RunContext], seed: int, least: int = LU_UNKNOWNS) -> int:
    """Solve the layers that an LU is chosen for, once for all runs; the runs then read them.

    The features of a layer depend on its distribution, shape, width, seed and number, and on
    nothing of the target (``SharedFactorization``). A solution that does not reach the tolerance is
    not stored, so that its run solves the layer alone; so are layers of up to ``least`` equations.
    Each run has the lock of its folder. Returns how many layers were solved and stored.
    """
    stored = [SolvedLayers(run.folder / f"seed-{seed}", run.seed_key) for run in runs]
    by_features: dict[object, list[Pending]] = {}
    for run, solved in zip(runs, stored, strict=True):
        for layer in run.plan_of_seed(seed).layers:
            if _takes_an_lu(layer, least) and solved.get(layer) is None:
                by_features.setdefault(features_key(layer), []).append((layer, solved))
    return sum(map(_solve_and_store, by_features.values()))


def _solve_and_store(pending: Sequence[Pending]) -> int:
    """How many of the layers were solved; the runs solve the others, and say why they cannot."""
    count = 0
    try:
        solutions = solutions_in_turn([layer for layer, _ in pending])
        for (layer, solved), solution in zip(pending, solutions, strict=True):
            if solution.report.converged:
                solved.store(layer, solution)
                count += 1
            else:
                residual = solution.report.relative_residual
                logger.warning("%s: residual %.1e, not stored", layer.label, residual)
    except (RunError, UserError) as error:
        logger.warning("%s; left to the runs", error)
    return count


def _takes_an_lu(layer: PlannedLayer, least: int) -> bool:
    """Whether ``auto`` factorizes the layer's system, and all features go into it."""
    alone = layer.groups == 1 and layer.features.keep is None and layer.solver.name == "auto"
    dense = layer.choice.solver in ("lu", "refined") and layer.choice.features == layer.width
    return alone and dense and layer.rows > least
