#!/usr/bin/env python3
"""Train the targets of a study's tables, several at a time, each once; resumable.

    python scripts/gpu/train_targets.py STUDY [PART or NAME=VALUE ...] [--jobs N]

Each training is a process on its share of the processors, also on one GPU. Those of parts that are
no tables of runs are trained by `bnrecon study`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from bnrecon.cli import exit_codes
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


def main() -> int:
    """Train all; the first exit code that is no success.

    A signal to this process is passed on to the trainings, once: each saves its state.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("words", nargs="*", metavar="PART or NAME=VALUE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    args = parser.parse_intermixed_args()
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: give at least 1")
    planned = engine.plan(registry.find(args.study), read(args.study, args.words))
    targets: dict[str, tuple[str, ...]] = {}
    for work in (work for part in planned for work in part.work if isinstance(work, RunWork)):
        targets.setdefault(target_key(work.config), work.overrides)
    running: set[subprocess.Popen] = set()
    stopped = threading.Event()

    def stop(number: int, _frame: object) -> None:
        stopped.set()
        for process in list(running):
            process.send_signal(number)

    def train(numbered: tuple[int, tuple[str, ...]]) -> int:
        number, overrides = numbered
        if stopped.is_set():
            return exit_codes.INTERRUPTED
        print(f"target {number} of {len(targets)}: {' '.join(overrides)}", flush=True)
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
        for line in process.stdout or ():
            print(f"target {number}: {line}", end="", flush=True)
        running.discard(process)
        return process.wait()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    share = max(1, processor_count() // args.jobs)
    with environment(OMP_NUM_THREADS=str(share)), ThreadPoolExecutor(args.jobs) as pool:
        codes = list(pool.map(train, enumerate(targets.values(), 1)))
    return next((code for code in codes if code != exit_codes.DONE), exit_codes.DONE)


if __name__ == "__main__":
    try:
        code = main()
    except Exception as error:
        code = exit_codes.report(error)
    sys.exit(code)
