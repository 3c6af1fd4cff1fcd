"""Several processes on this machine, each with its GPU and its share of the threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from tqdm import tqdm

from bnrecon.jobs.computation import compute, details_to
from bnrecon.jobs.work import Outcome, Started, Work, not_tried, process_log
from bnrecon.reporting.wording import count_of
from bnrecon.runtime import hardware, interruption
from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.units import format_bytes

KILLED = "its process was killed (the memory may not suffice for so many processes)"
GRACE = 60  # seconds that a process has to reach a safe point after a request to stop
EACH = 10**9  # bytes of a process without its work: Python and its libraries


def require_room(jobs: int, device: torch.device) -> None:
    """Raise ``UserError`` for more processes than cores, GPUs or memory allow.

    Two may share a core, but not a GPU.
    """
    cores, free = hardware.processor_count(), hardware.available_memory(torch.device("cpu"))
    most = max(1, min(max(2, cores), free // EACH))
    resources = (
        f"{count_of(cores, 'core')}, {format_bytes(free)} of memory free, "
        f"{format_bytes(EACH)} per process"
    )
    if device.type == "cuda":
        gpus = torch.cuda.device_count()
        most, resources = min(most, gpus), f"{resources}, {count_of(gpus, 'GPU')}"
    if jobs > most:
        raise UserError(f"jobs={jobs}: this machine has room for {most} ({resources})")


class LocalProcesses:
    """Computes in processes of this machine. The k-th takes the k-th GPU.

    If a process dies (from a lack of memory, say), only its current work is lost, and a new process
    replaces it. All end with this process, however it ends: at the next safe point, and, if this
    process is alive to enforce it, after a minute at the latest. Each writes its details to a file
    next to ``log``; see ``process_log``.
    """

    def __init__(self, jobs: int, locks_folder: Path, log: Path, device: torch.device) -> None:
        self.name, self.processes = f"{jobs} processes", jobs
        self._locks_folder, self._log, self._device = locks_folder, log, device
        threads = min(torch.get_num_threads(), hardware.processor_count())
        self._threads = max(1, threads // jobs)
        self._workers: dict[int, tuple[SpawnProcess, Connection]] = {}

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``Executor.run``."""
        try:
            # Set before they import torch: their share of the threads, and a path without the
            # current folder, whatever it holds.
            with environment(OMP_NUM_THREADS=str(self._threads), PYTHONSAFEPATH="1"):
                for number in range(self.processes):
                    self._start(number)
                failed: dict[str, Outcome] = {}
                for stage in stages:
                    for event in self._run_stage(stage, failed):
                        if isinstance(event, Outcome) and event.kind != "done":
                            failed[event.key] = event
                        yield event
        except BaseException:
            for process, _ in self._workers.values():
                process.terminate()
            raise
        finally:
            for _, requests in self._workers.values():
                requests.close()
            deadline = time.monotonic() + GRACE
            try:
                for process, _ in self._workers.values():
                    process.join(max(0.0, deadline - time.monotonic()))
            finally:  # also if a second Ctrl-C ends the wait
                for process, _ in self._workers.values():
                    process.kill()

    def _start(self, number: int) -> None:
        log = process_log(self._log, number + 1)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("a", encoding="utf-8").close()  # errors appear here
        context = multiprocessing.get_context("spawn")
        requests, answers = context.Pipe()
        share = (answers, os.getpid(), self._threads, gpu_name(number, self._device), log)
        process = context.Process(target=_serve, args=share)
        process.start()
        answers.close()
        self._workers[number] = process, requests

    def _run_stage(
        self, stage: Sequence[Work], failed: Mapping[str, Outcome]
    ) -> Generator[Started | Outcome, None, None]:
        skipped = {item.key: outcome for item in stage if (outcome := not_tried(item, failed))}
        yield from skipped.values()
        # Each with whether to wait for another command that computes it.
        queue = deque((item, False) for item in stage if item.key not in skipped)
        running: dict[int, Work] = {}
        while queue or running:
            for number in sorted(set(self._workers) - set(running))[: len(queue)]:
                item, blocking = queue.popleft()
                self._send(number, (item, self._locks_folder, blocking))
                running[number] = item
                yield Started(item.key)
            ready = wait([self._workers[number][1] for number in running])
            for number in [each for each in running if self._workers[each][1] in ready]:
                item = running.pop(number)
                try:
                    answer = self._workers[number][1].recv()
                except (EOFError, ConnectionError):
                    self._start(number)
                    log = process_log(self._log, number + 1)
                    yield Outcome(item.key, item.label, "failed", KILLED, 0.0, str(log))
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                if answer is None:  # another command computes it
                    queue.append((item, True))
                else:
                    yield answer

    def _send(self, number: int, request: tuple[Work, Path, bool]) -> None:
        """Send work to a process; restart it first if it died while idle."""
        try:
            self._workers[number][1].send(request)
        except ConnectionError:
            self._start(number)
            self._workers[number][1].send(request)


def _serve(requests: Connection, leader: int, threads: int, gpu: str | None, log: Path) -> None:
    """Answer requests by an outcome, an exception, or ``None`` if another command computes it."""
    # A separate session: Ctrl-C reaches only the leading process, which stops the others.
    with contextlib.suppress(AttributeError, PermissionError):  # Windows has no sessions
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    file = log.open("a", 1, "utf-8", "backslashreplace")  # stays open: its number may be 1 or 2
    os.dup2(file.fileno(), 1)  # output of libraries, too
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file  # ``None`` if the command's was closed
    torch.set_num_threads(threads)
    tqdm.set_lock(threading.RLock())  # tqdm's default lock would leak, with a warning
    # The leading process may have ended, or told this one to stop while it is idle.
    gone = (EOFError, ConnectionError, KeyboardInterrupt)
    with contextlib.suppress(*gone), interruption.ending_with_parent(leader), details_to(log):
        while True:
            item, locks_folder, blocking = requests.recv()
            message = f"waiting for another process to finish {item.label}"
            try:
                waiting = (lambda text=message: text) if blocking else None
                requests.send(compute(item, locks_folder, log, waiting))
            except BaseException as error:  # the leading process reports it
                requests.send(error)
                return


def gpu_name(number: int, device: torch.device) -> str | None:
    """The GPU of a process, as in ``CUDA_VISIBLE_DEVICES``."""
    if device.type != "cuda":
        return None
    allowed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = allowed or [str(index) for index in range(torch.cuda.device_count())]
    return names[number]
