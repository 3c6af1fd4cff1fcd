"""More processes for one study: each is given the same request, and they share its tasks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import bnrecon
from bnrecon.runtime import hardware
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.interruption import WORKER_VARIABLE

__all__ = ["require_room", "workers"]

EACH = 10**9  # bytes that a worker takes beside its work: Python with its libraries

# This very package, wherever it lies; the current folder is not on a worker's path, whatever it
# holds.
START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("bnrecon", sys.argv.pop(1))
sys.modules["bnrecon"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["bnrecon"])
from bnrecon.cli.main import main
sys.exit(main())
"""


def require_room(jobs: int) -> None:
    """Raise ``UserError`` for more processes than cores, or than fit into free memory.

    Two are allowed on one core.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    free = hardware.available_memory(torch.device("cpu"))
    most = max(1, min(max(2, cores), free // EACH))
    if jobs > most:
        raise UserError(
            f"jobs={jobs}: this machine carries {most} ({cores} cores, "
            f"{hardware.format_bytes(free)} of memory free, "
            f"{hardware.format_bytes(EACH)} per process)"
        )


@contextlib.contextmanager
def workers(request: Sequence[str], jobs: int, log: Path) -> Iterator[None]:
    """Let ``jobs`` processes, this one among them, work on a study, each with its share of threads.

    A task that fails in another process fails here again and is reported. The others end with
    this process, however it ends: they watch a pipe that it holds, and stop at a safe point.

    Args:
        request: the arguments of ``bnrecon study`` for one process.
        jobs: the number of processes.
        log: the file that the others report to.
    """
    if jobs == 1:
        yield
        return
    threads = max(1, torch.get_num_threads() // jobs)
    torch.set_num_threads(threads)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), WORKER_VARIABLE: "1"}
    line = [sys.executable, "-P", "-c", START, bnrecon.__file__, "study", *request]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        started = [
            subprocess.Popen(line, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment)
            for _ in range(jobs - 1)
        ]
    try:
        yield
    finally:
        for process in started:
            if process.stdin is not None:
                process.stdin.close()
        for process in started:
            process.wait()
