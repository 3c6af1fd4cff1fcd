"""What happens in a process that another one started to compute work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from tqdm import tqdm

from bnrecon.jobs.computation import compute, details_to
from bnrecon.jobs.work import Outcome, Work

__all__ = ["GRACE", "compute_work", "start"]

GRACE = 60  # seconds that a process has to reach a safe point after it was told to stop

_at_work, _told_to_stop = threading.Event(), threading.Event()


def start(threads: int, gpu: str | None, log: Path, listener: Connection) -> None:
    """Prepare this process.

    It computes in a session of its own, so that Ctrl-C in the terminal reaches the process that
    leads alone, which then tells the others to stop.

    Args:
        threads: its share of the threads.
        gpu: its GPU as ``CUDA_VISIBLE_DEVICES`` names it; ``None`` for what there is.
        log: the file that whatever it prints is written to.
        listener: ends when the leading process closes its other end, or ends itself.
    """
    with contextlib.suppress(AttributeError, PermissionError):  # Windows has no sessions
        os.setsid()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with log.open("a", encoding="utf-8") as file:  # a library's last words, too
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(threads)
    tqdm.set_lock(threading.RLock())  # its own would be left behind, with a warning, by os._exit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_watch, args=(listener,), daemon=True).start()


def compute_work(item: Work, claims: Path, log: Path, patient: bool) -> Outcome | None:
    """Compute one piece of work; ``None`` if another command is at it and we are not to wait."""
    waiting = (lambda: f"waiting for another process to finish {item.label}") if patient else None
    _at_work.set()
    try:
        with details_to(log):
            return compute(item, claims, log, waiting)
    finally:
        _at_work.clear()
        if _told_to_stop.is_set():  # whoever would take the result is gone, or is going
            os._exit(130)


def _stop(*_: object) -> None:
    """End at once where nothing is being computed."""
    if not _at_work.is_set():
        os._exit(130)
    raise KeyboardInterrupt


def _watch(listener: Connection) -> None:
    """Stop this process when the leading one says so, or has ended."""
    with contextlib.suppress(EOFError, OSError):
        listener.recv_bytes()  # nothing is ever sent
    _told_to_stop.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(130)
