"""What happens in a process that another one started to compute work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from tqdm import tqdm

from bnrecon.jobs.computation import compute, details_to
from bnrecon.jobs.outcome import Outcome
from bnrecon.jobs.work import Work

__all__ = ["GRACE", "Start", "compute_work", "start"]

GRACE = 60  # seconds that a process has to reach a safe point after it was told to stop


@dataclass(frozen=True)
class Start:
    """What a process is told at its start.

    Args:
        number: which of the processes it is, from 0.
        threads: its share of the threads.
        gpu: its GPU as ``CUDA_VISIBLE_DEVICES`` names it; ``None`` for what there is.
        log: the file that its details, and whatever else it prints, are written to.
    """

    number: int
    threads: int
    gpu: str | None
    log: Path


@dataclass
class _State:
    """This process's log, whether it is at work, and whether it was told to stop."""

    log: Path | None = None
    at_work: bool = False
    told_to_stop: bool = False


_state = _State()


def start(share: Start, listener: Connection) -> None:
    """Prepare this process.

    It computes in a session of its own, so that Ctrl-C in the terminal reaches the process that
    leads alone, which then tells the others to stop.

    Args:
        share: this process's share.
        listener: ends when the leading process closes its other end, or ends itself.
    """
    with contextlib.suppress(AttributeError, PermissionError):  # Windows has no sessions
        os.setsid()
    if share.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share.gpu
    share.log.parent.mkdir(parents=True, exist_ok=True)
    with share.log.open("a", encoding="utf-8") as file:  # a library's last words, too
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(share.threads)
    tqdm.set_lock(threading.RLock())  # its own would be left behind, with a warning, by os._exit
    _state.log = share.log
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_watch, args=(listener,), daemon=True).start()


def compute_work(item: Work, claims: Path, patient: bool) -> Outcome | None:
    """Compute one piece of work; ``None`` if another command is at it and we are not to wait."""
    assert _state.log is not None, "start was not called"
    waiting = (lambda: f"waiting for another process to finish {item.label}") if patient else None
    _state.at_work = True
    try:
        with details_to(_state.log):
            return compute(item, claims, _state.log, waiting)
    finally:
        _state.at_work = False
        if _state.told_to_stop:  # whoever would take the result is gone, or is going
            os._exit(130)


def _stop(*_: object) -> None:
    """End at once where nothing is being computed."""
    if not _state.at_work:
        os._exit(130)
    raise KeyboardInterrupt


def _watch(listener: Connection) -> None:
    """Stop this process when the leading one says so, or has ended."""
    with contextlib.suppress(EOFError, OSError):
        listener.recv_bytes()  # nothing is ever sent
    _state.told_to_stop = True
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(130)
