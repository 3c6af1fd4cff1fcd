#!/usr/bin/env python3
"""Train the targets of a study's tables, several at a time, each once; resumable.

    python scripts/gpu/train_targets.py STUDY [PART or NAME=VALUE ...] [--jobs N]

Each training is a process with its share of the processors, all on one GPU. `bnrecon study` trains
the targets of parts that are not tables of runs.
"""

from __future__ import annotations

import argparse
import logging
import sys

import torch

from bnrecon.cli import exit_codes
from bnrecon.jobs.local_processes import LocalProcesses
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.reproduction.work import RunWork, TargetWork, with_targets
from bnrecon.runtime import interruption
from bnrecon.studies import registry


def main() -> int:
    """Train all targets; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study")
    parser.add_argument("words", nargs="*", metavar="PART or NAME=VALUE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    args = parser.parse_intermixed_args()
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: must be at least 1")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        with interruption.handle_signals():
            interruption.finish_loading()
            request = read(args.study, args.words)
            planned, batch = engine.plan(registry.find(args.study), request), request.batch
            runs = [item for part in planned for item in part.work if isinstance(item, RunWork)]
            targets = [x for x in with_targets(runs).values() if isinstance(x, TargetWork)]
            # Treated as work for processors, so that the processes do not divide the GPUs.
            executor = LocalProcesses(args.jobs, batch.locks_folder, batch.log, torch.device("cpu"))
            engine.compute_missing(targets, executor, batch)
    except BaseException as error:
        return exit_codes.report(error)
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
