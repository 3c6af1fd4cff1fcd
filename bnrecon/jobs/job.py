"""A job of a cluster: it plans a study or a sweep again, and computes its share of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.jobs.record import Reports
from bnrecon.jobs.work import Kind, Outcome
from bnrecon.runtime import files, interruption, locks
from bnrecon.runtime.errors import Interrupted, UserError

if TYPE_CHECKING:
    import submitit

    from bnrecon.jobs.work import Work


@dataclass(frozen=True)
class Job:
    """What submitit stores and calls: only strings, so that no object of bnrecon is pickled."""

    planner: str  # see ``Batch``
    words: tuple[str, ...]  # the planner's argument
    keys: tuple[str, ...]  # the work of this job
    folder: str  # the submission's folder
    targets: tuple[str, ...]  # the keys of all targets that jobs before this one train
    threads: int  # number of threads
    gpu: str | None  # as in ``CUDA_VISIBLE_DEVICES``; ``None``: those that the job has
    # Whether file locks keep two jobs from computing the same. Locks are unreliable on the file
    # systems of clusters, where the leading command ensures it
    locks: bool

    def __call__(self) -> None:
        """Compute the work; what is done is skipped, so that a job can be requeued."""
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's, for a time limit
        try:
            with interruption.handle_signals(postpone=True):
                self._compute_all()
        except (Interrupted, KeyboardInterrupt):
            if interruption.received_signal() == signal.SIGUSR2 and callable(requeue):
                self._queue_again(requeue)
            raise

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What submitit requeues at a time limit: the same job."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)

    def _queue_again(self, requeue: Callable[..., Any]) -> None:
        """Let submitit requeue this job, which ends this process, or report why it does not."""
        from submitit.core.utils import UncompletedJobError

        try:
            requeue(signal.SIGUSR2, None)
        except UncompletedJobError:
            self._fail_all("its job reached its time limit too often; raise slurm.time=")
            raise

    @property
    def _reports(self) -> Reports:
        return Reports(Path(self.folder))

    @property
    def _log(self) -> Path:
        number = str(os.getpid())
        if not self.locks:
            import submitit

            number = submitit.JobEnvironment().job_id
        return Path(self.folder) / f"{number}.log"

    def _compute_all(self) -> None:
        import torch

        from bnrecon.jobs.computation import details_to

        if self.gpu is not None:  # before CUDA's first use
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        torch.set_num_threads(self.threads)
        try:
            module, _, planner = self.planner.partition(":")
            work = getattr(importlib.import_module(module), planner)(self.words)
        except Exception as error:  # whatever it is, report every item as failed
            kind: Kind = "mistake" if isinstance(error, UserError) else "failed"
            self._fail_all(f"it could not be planned in its job: {error}", kind)
            raise
        interruption.finish_loading()
        exclusive = contextlib.nullcontext() if self.locks else locks.disabled()
        with details_to(self._log), exclusive:
            for key in self._remaining():
                self._reports.end(self._compute(key, work))

    def _compute(self, key: str, work: Mapping[str, Work]) -> Outcome:
        from bnrecon.jobs.computation import compute

        if (item := work.get(key)) is None:
            reason = "there is no such work here; were files or bnrecon changed since?"
            return self._failure(key, key, reason)
        if (untried := self._untried(item, work)) is not None:
            return untried
        self._reports.start(key)
        started = time.monotonic()
        locks_folder = Path(self.folder).parent.parent / ".locks"
        try:
            outcome = compute(item, locks_folder, self._log, lambda: f"waiting for {item.label}")
        except Interrupted as error:
            if interruption.received_signal() is not None:
                raise
            spent = time.monotonic() - started  # stopped by train.time_limit
            return Outcome(key, item.label, "failed", str(error), spent, str(self._log))
        assert outcome is not None, "it waits for others"
        return outcome

    def _untried(self, item: Work, work: Mapping[str, Work]) -> Outcome | None:
        """A failure if the job before did not train the work's target, else ``None``."""
        from bnrecon.jobs.work import not_tried, target_key

        if item.target is None:
            return None
        target = target_key(item.target)
        outcome = self._reports.outcomes([target]).get(target)
        if outcome is not None and outcome.kind != "done":
            return not_tried(item, {target: outcome})
        if target in self.targets and outcome is None and not work[target].is_finished():
            reason = "not tried: the job that trains its target ended first"
            return self._failure(item.key, item.label, reason)
        return None

    def _remaining(self) -> list[str]:
        """The keys of work without a reported outcome."""
        reported = self._reports.outcomes(self.keys)
        return [key for key in self.keys if key not in reported]

    def _fail_all(self, reason: str, kind: Kind = "failed") -> None:
        """Report all remaining work as failed."""
        line = " ".join(reason.splitlines())
        for key in self._remaining():
            self._reports.end(self._failure(key, key, line, kind))

    def _failure(self, key: str, label: str, reason: str, kind: Kind = "failed") -> Outcome:
        return Outcome(key, label, kind, reason, 0.0, str(self._log))


if __name__ == "__main__":  # a process of this machine, which outlives its command
    Job(**files.read_json(Path(sys.argv[1])))()
