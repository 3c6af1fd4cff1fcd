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
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.reproduction.work import RunWork
from bnrecon.run.context import RunContext, open_run
from bnrecon.run.finished import write_config
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.together import solve_layers_together
from bnrecon.runtime import hardware, locks
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.solving import LU_UNKNOWNS
from bnrecon.studies import registry


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
        return sum(solve_layers_together(runs, seed, least) for seed in configs[0].seeds)


def context(config: RunConfig, stack: contextlib.ExitStack) -> RunContext:
    """A run with its target, which is trained if necessary; its folder remains locked."""
    data = load_images(config)
    folder = run_folder(config, data)
    stack.enter_context(locks.lock_folder(folder, f"the run {folder.name}"))
    write_config(config, folder)
    return open_run(config, data, folder)


if __name__ == "__main__":
    sys.exit(main())
