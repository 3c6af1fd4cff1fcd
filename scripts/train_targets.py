#!/usr/bin/env python3
"""Train the targets of a study's tables, before anything is rebuilt from them; resumable.

    python scripts/train_targets.py burkholz2024 table1 table2 scale=paper [NAME=VALUE ...]
    python scripts/train_targets.py burkholz2024 table1 scale=paper device=cuda --jobs 4

Each network is trained once, however many rows of the tables it is for. Those of parts that are
not tables of runs are trained by `bnrecon study`. With --jobs N, N are trained side by side in
processes of their own, each on its share of the processors, also on one GPU: a narrow network
leaves most of it idle (docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from bnrecon.cli import exit_codes, main
from bnrecon.jobs.work import target_key
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.reproduction.work import RunWork
from bnrecon.runtime.environment import environment
from bnrecon.runtime.hardware import processor_count
from bnrecon.studies import registry

# A training that saves and ends where whoever started it was killed.
TRAINING = """
import sys
from bnrecon.cli import main
from bnrecon.runtime.interruption import ending_with_parent
with ending_with_parent():
    sys.exit(main.main(["train", *sys.argv[1:]]))
"""


def targets(words: list[str]) -> list[tuple[str, ...]]:
    """The overrides of a run for each target, in the order of the tables."""
    found: dict[str, tuple[str, ...]] = {}
    request = read(words[0], words[1:])
    for part in engine.plan(registry.find(words[0]), request):
        for work in part.work:
            if isinstance(work, RunWork):
                found.setdefault(target_key(work.config), work.row.overrides)
    return list(found.values())


def train(words: list[str]) -> int:
    """Train one after another; the first exit code that is no success."""
    for number, overrides in enumerate(wanted := targets(words), 1):
        print(f"target {number} of {len(wanted)}: {' '.join(overrides)}", flush=True)
        code = main.main(["train", *overrides])
        if code != exit_codes.DONE:
            return code
    return exit_codes.DONE


def train_side_by_side(words: list[str], jobs: int) -> int:
    """Train so many at a time; the first exit code that is no success, when all have ended.

    A signal to this process is passed on to the trainings, once: each saves its state.
    """
    wanted, running, stopped = targets(words), set(), threading.Event()

    def stop(number: int, _frame: object) -> None:
        stopped.set()
        for process in list(running):
            process.send_signal(number)

    def train_one(numbered: tuple[int, tuple[str, ...]]) -> int:
        number, overrides = numbered
        if stopped.is_set():
            return exit_codes.INTERRUPTED
        print(f"target {number} of {len(wanted)}: {' '.join(overrides)}", flush=True)
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,  # a signal to the group comes through this process alone
        )
        running.add(process)
        if stopped.is_set():  # since it was looked at
            process.terminate()
        assert process.stdout is not None
        for line in process.stdout:
            print(f"target {number}: {line}", end="", flush=True)
        running.discard(process)
        return process.wait()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    share = max(1, processor_count() // jobs)
    with environment(OMP_NUM_THREADS=str(share)), ThreadPoolExecutor(jobs) as pool:
        codes = list(pool.map(train_one, enumerate(wanted, 1)))
    return next((code for code in codes if code != exit_codes.DONE), exit_codes.DONE)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("words", nargs="*", metavar="PART or NAME=VALUE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    args = parser.parse_intermixed_args()
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: give at least 1")
    return args


if __name__ == "__main__":
    given = read_arguments()
    words = [given.study, *given.words]
    try:
        code = train(words) if given.jobs == 1 else train_side_by_side(words, given.jobs)
    except Exception as error:
        code = exit_codes.report(error)
    sys.exit(code)
