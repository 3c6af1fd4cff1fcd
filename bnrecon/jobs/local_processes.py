"""Several processes on this machine, each with its GPU and its share of the threads."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from bnrecon.jobs import worker
from bnrecon.jobs.work import Outcome, Started, Work, not_tried, process_log
from bnrecon.runtime import hardware
from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.units import format_bytes

__all__ = ["LocalProcesses", "gpu_name", "require_room"]

KILLED = "its process was killed (the memory may not suffice for so many processes)"
EACH = 10**9  # bytes that a process takes beside its work: Python with its libraries


def require_room(jobs: int, device: torch.device) -> None:
    """Raise ``UserError`` for more processes than there are cores, GPUs, or memory for.

    Two are allowed on one core, but not on one GPU.
    """
    cores, free = hardware.processor_count(), hardware.available_memory(torch.device("cpu"))
    most = max(1, min(max(2, cores), free // EACH))
    there = (
        f"{cores} core{'' if cores == 1 else 's'}, {format_bytes(free)} of memory free, "
        f"{format_bytes(EACH)} per process"
    )
    if device.type == "cuda":
        gpus = torch.cuda.device_count()
        most, there = min(most, gpus), f"{there}, {gpus} GPU{'' if gpus == 1 else 's'}"
    if jobs > most:
        raise UserError(f"jobs={jobs}: this machine has room for {most} ({there})")


class LocalProcesses:
    """Computes in processes of this machine. The k-th takes the k-th GPU.

    Each process is a pool of its own, so that one that dies (for want of memory, say) takes nothing
    with it but the work that it was at. The processes end with this one, however it ends: they
    watch a pipe whose other end it holds.

    Args:
        jobs: number of processes.
        claims: the folder of the locks that two commands on this machine share.
        log: the k-th process writes its details beside this file; see ``process_log``.
        device: the device that the work is for.
    """

    def __init__(self, jobs: int, claims: Path, log: Path, device: torch.device) -> None:
        self.name, self.processes = f"{jobs} processes", jobs
        self._claims, self._log, self._device = claims, log, device
        self._threads = max(1, torch.get_num_threads() // jobs)
        self._context = multiprocessing.get_context("spawn")
        self._pools: list[ProcessPoolExecutor] = []

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``Executor.run``."""
        self._listener, held = self._context.Pipe(duplex=False)
        try:
            self._pools = []
            for number in range(self.processes):
                self._pools.append(self._start(number))
            # Their share of the threads from the first product on; and the current folder is not on
            # their path, whatever it holds.
            with environment(OMP_NUM_THREADS=str(self._threads), PYTHONSAFEPATH="1"):
                failed: dict[str, Outcome] = {}
                for stage in stages:
                    for event in self._run_stage(stage, failed):
                        if isinstance(event, Outcome) and event.kind != "done":
                            failed[event.key] = event
                        yield event
        except BaseException:
            held.close()  # stops what is being computed
            raise
        finally:
            for pool in self._pools:
                pool.shutdown()
            held.close()

    def _file(self, number: int) -> Path:
        return process_log(self._log, number + 1)

    def _start(self, number: int) -> ProcessPoolExecutor:
        file = self._file(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a", encoding="utf-8").close()  # what is wrong with it is found, and said, here
        share = (self._threads, gpu_name(number, self._device), file, self._listener)
        return ProcessPoolExecutor(1, self._context, initializer=worker.start, initargs=share)

    def _run_stage(
        self, stage: Sequence[Work], failed: Mapping[str, Outcome]
    ) -> Generator[Started | Outcome, None, None]:
        hopeless = {item.key: lost for item in stage if (lost := not_tried(item, failed))}
        yield from hopeless.values()
        # Whether to wait for another command that is at it.
        queue = deque((item, False) for item in stage if item.key not in hopeless)
        running: dict[Future[Outcome | None], tuple[int, Work]] = {}
        while queue or running:
            idle = set(range(self.processes)) - {number for number, _ in running.values()}
            for number in sorted(idle)[: len(queue)]:
                item, patient = queue.popleft()
                running[self._submit(number, item, patient)] = number, item
                yield Started(item.key)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number, item = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    yield Outcome(
                        item.key, item.label, "failed", KILLED, 0.0, str(self._file(number))
                    )
                    continue
                if outcome is None:  # another command is at it
                    queue.append((item, True))
                else:
                    yield outcome

    def _submit(self, number: int, item: Work, patient: bool) -> Future[Outcome | None]:
        """Give work to a process, to a new one where the last one has died."""
        while True:
            try:
                return self._pools[number].submit(
                    worker.compute_work, item, self._claims, self._file(number), patient
                )
            except BrokenProcessPool:
                self._pools[number].shutdown()
                self._pools[number] = self._start(number)


def gpu_name(number: int, device: torch.device) -> str | None:
    """The GPU of a process, as ``CUDA_VISIBLE_DEVICES`` names it."""
    if device.type != "cuda":
        return None
    allowed = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = allowed or [str(index) for index in range(torch.cuda.device_count())]
    return names[number]
