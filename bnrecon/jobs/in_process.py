"""This process computes one piece of work after the other."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from bnrecon.jobs.computation import compute, details_to
from bnrecon.jobs.outcome import Outcome, Started
from bnrecon.jobs.work import Work

__all__ = ["InProcess"]


class InProcess:
    """Computes in this process; another command on this machine may share the same work.

    Args:
        claims: the folder of the locks that such commands share.
        log: the file that the details are written to; ``None`` to show them.
    """

    name = "this process"
    processes = 1

    def __init__(self, claims: Path, log: Path | None) -> None:
        self._claims, self._log = claims, log

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``Executor.run``; what another command is at comes last."""
        remaining = [item for stage in stages for item in stage]
        with details_to(self._log):
            for waiting in (None, lambda: "waiting for another process that shares this work"):
                for item in list(remaining):
                    yield Started(item.key)
                    outcome = compute(item, self._claims, self._log, waiting)
                    if outcome is not None:
                        remaining.remove(item)
                        yield outcome
