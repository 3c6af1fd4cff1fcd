#!/usr/bin/env python3
"""Solve the layers that a study's runs share, by one factorization for all targets.

    python scripts/solve_together.py burkholz2024 table1 minimum target.width=64 data.root=FOLDER

takes the arguments of `bnrecon study`. Runs of one distribution differ only in their target, so
that the LU of a layer's features serves all of them (bnrecon.solvers.shared_factorization). The
solutions are stored in the runs' folders; `bnrecon study` with the same arguments then finishes the
runs: it reads these layers, solves the others, and tests. Resumable.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence

import command_line

from bnrecon.cli import exit_codes
from bnrecon.config.schema import RunConfig
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.solving import features_key, solutions_in_turn
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.reproduction.work import RunWork
from bnrecon.run.context import RunContext, open_run
from bnrecon.run.finished import write_config
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime import hardware, locks
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.solving import LU_UNKNOWNS
from bnrecon.studies import registry

logger = logging.getLogger(__name__)

Pending = tuple[PlannedLayer, SolvedLayers]


def main(arguments: list[str] | None = None) -> int:
    """Solve the layers of each group of runs."""
    args = command_line.parser(__doc__, "study", "words*").parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    groups: dict[str, list[RunConfig]] = {}
    try:
        parts = engine.plan(registry.find(args.study), read(args.study, args.words))
        # Parts share runs.
        work = {item.key: item for part in parts for item in part.work if isinstance(item, RunWork)}
        for config in (item.config for item in work.values() if not item.is_finished()):
            features = f"{config.features} {config.solver} {config.seeds}"
            groups.setdefault(features, []).append(config)
        for configs in groups.values():
            print(f"{configs[0].features.name}: {solve(configs)} layers", flush=True)
    except (RunError, UserError) as error:
        return exit_codes.report(error)
    return exit_codes.DONE


def solve(configs: Sequence[RunConfig], least: int = LU_UNKNOWNS) -> int:
    """Solve the layers of runs with the same features, for each seed; return their number."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(hardware.use_threads(configs[0].threads))
        runs = [context(config, stack) for config in configs]
        return sum(solve_seed(runs, seed, least) for seed in configs[0].seeds)


def context(config: RunConfig, stack: contextlib.ExitStack) -> RunContext:
    """A run with its target, which is trained if necessary; its folder remains locked."""
    data = load_images(config)
    folder = run_folder(config, data)
    stack.enter_context(locks.lock_folder(folder, f"the run {folder.name}"))
    write_config(config, folder)
    return open_run(config, data, folder)


def solve_seed(runs: Sequence[RunContext], seed: int, least: int) -> int:
    """Solve layers by one LU for all runs, which then read the solutions.

    The features of a layer depend on its distribution, shape, width, seed and number, and not on
    the target (``SharedFactorization``). A solution that misses the tolerance is not stored, so
    that its run solves the layer itself, as it does layers of up to ``least`` equations. Each run
    has the lock of its folder. Returns the number of layers that were solved and stored.
    """
    stored = [SolvedLayers(run.folder / f"seed-{seed}", run.seed_key) for run in runs]
    by_features: dict[object, list[Pending]] = {}
    for run, solved in zip(runs, stored, strict=True):
        for layer in run.plan_of_seed(seed).layers:
            if takes_an_lu(layer, least) and solved.get(layer) is None:
                by_features.setdefault(features_key(layer), []).append((layer, solved))
    return sum(map(solve_and_store, by_features.values()))


def solve_and_store(pending: Sequence[Pending]) -> int:
    """Return how many layers were solved; the runs solve the others, or say why they cannot."""
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


def takes_an_lu(layer: PlannedLayer, least: int) -> bool:
    """Whether ``auto`` factorizes the layer's system, with all features in it."""
    alone = layer.groups == 1 and layer.features.keep is None and layer.solver.name == "auto"
    dense = layer.choice.solver in ("lu", "refined") and layer.choice.features == layer.width
    return alone and dense and layer.rows > least


if __name__ == "__main__":
    sys.exit(main())
