"""More processes for one study: each is given the same command, and they share its pieces."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

__all__ = ["end_with_parent", "workers"]

MARK = "BNRECON_WORKER"


@contextlib.contextmanager
def workers(words: Sequence[str], jobs: int, log: Path) -> Iterator[None]:
    """Have ``jobs`` processes, this one among them, at the study of ``bnrecon study WORDS``, each with its part of the threads.

    What the others print goes to ``log``; a piece that fails there fails here again and is reported. They end with this process,
    however it ends: they watch a pipe that it holds, and go at a safe point.
    """
    if jobs == 1:
        yield
        return
    threads = max(1, torch.get_num_threads() // jobs)
    torch.set_num_threads(threads)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), MARK: "1"}
    line = [sys.executable, "-m", "bnrecon.cli", "study", *words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        started = [
            subprocess.Popen(line, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment) for _ in range(jobs - 1)
        ]
    try:
        yield
    finally:
        for process in started:
            process.stdin.close()
        for process in started:
            process.wait()


def end_with_parent() -> None:
    """In a worker: stop, as on SIGTERM, when the process that started it is gone."""
    if MARK not in os.environ:
        return

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
