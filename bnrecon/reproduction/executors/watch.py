"""What jobs of a cluster have done since one last looked, and which ended without reporting."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bnrecon.reproduction.executors.queues import Queue
from bnrecon.reproduction.executors.submission import Submission
from bnrecon.reproduction.outcome import Outcome, Started
from bnrecon.reproduction.work import Work
from bnrecon.runtime.errors import RunError

__all__ = ["Wanted", "Watch"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """Work that some job computes."""

    item: Work
    submission: Submission
    job: str


class Watch:
    """Looks at a submission: what its jobs report, and which have ended without reporting."""

    def __init__(self, submission: Submission, queue: Queue) -> None:
        self.submission, self._queue = submission, queue
        self._started: set[str] = set()
        self._ended: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def look(self, wanted: Mapping[str, Wanted]) -> Iterator[Started | Outcome]:
        """What is new since the last look."""
        mine = {
            key: each
            for key, each in wanted.items()
            if each.submission.folder == self.submission.folder
        }
        if not mine:
            return
        reports = self.submission.reports
        for key in sorted(reports.started(mine) - self._started):
            self._started.add(key)
            yield Started(key)
        states = self._states({each.job for each in mine.values()})
        for job, state in states.items():
            if state != "ended":  # one that was queued again
                self._ended.pop(job, None)
        over = {job for job, state in states.items() if state == "ended" and self._is_over(job)}
        ended = reports.ended(mine)  # after the states: a report comes before its job's end
        for key, each in mine.items():
            if key in ended and (outcome := reports.outcome(key)) is not None:
                yield dataclasses.replace(outcome, label=each.item.label)
            elif each.job in over:
                yield self._lost(key, each)

    def _states(self, jobs: set[str]) -> dict[str, str]:
        try:
            return self._queue.states(sorted(jobs))
        except RunError as error:  # a controller that restarts; the jobs go on
            logger.warning("%s; looking again", error)
            return {}

    def _is_over(self, job: str) -> bool:
        """Whether a job ended long enough ago for its last words to be seen here."""
        first = self._ended.setdefault(job, time.monotonic())
        return time.monotonic() - first >= self._queue.grace

    def _lost(self, key: str, each: Wanted) -> Outcome:
        """The outcome of work whose job has ended without reporting it."""
        if each.item.is_finished():
            return Outcome(key, each.item.label, "done", "done", 0.0, str(self._log(each.job)))
        if each.job not in self._reasons:
            self._reasons[each.job] = self._queue.reason(each.job)
        why = f"job {each.job}: {self._reasons[each.job]}"
        gist = why if key in self._started else f"not tried; {why}"
        return Outcome(key, each.item.label, "failed", gist, 0.0, str(self._log(each.job)))

    def _log(self, job: str) -> Path:
        return self.submission.folder / f"{job}_0_log.out"
