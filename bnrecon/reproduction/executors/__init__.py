"""Who computes a study's work: this process, several on this machine, or the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from bnrecon.reproduction.executors.in_process import InProcess
from bnrecon.reproduction.executors.local_processes import LocalProcesses
from bnrecon.reproduction.outcome import Outcome, Started
from bnrecon.reproduction.work import Work

__all__ = ["Executor", "InProcess", "LocalProcesses"]


class Executor(Protocol):
    """Computes work; the engine decides what, and an executor only where."""

    name: str  # who computes, in words
    processes: int  # how many pieces are computed at once; 0 where that is not known

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """Compute the first stage, then the next; yield each start and each outcome.

        Work that fails stops nothing else. Closing the iterator stops what is being computed at its
        next safe point.

        Raises:
            Interrupted: work was stopped from outside, or by a time limit.
        """
