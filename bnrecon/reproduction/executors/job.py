"""A job of a study on a cluster: it plans the study again, and computes its own share of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bnrecon.reproduction.executors.reports import Reports
from bnrecon.reproduction.outcome import Kind, Outcome
from bnrecon.runtime import interruption, locks
from bnrecon.runtime.errors import Interrupted, UserError

if TYPE_CHECKING:
    import submitit

    from bnrecon.reproduction.work import Work

__all__ = ["StudyJob"]


@dataclass(frozen=True)
class StudyJob:
    """What submitit stores and calls: words alone, so that no object of ours is pickled.

    Args:
        words: the study's name, parts and options, as on the command line.
        keys: the work of this job.
        folder: the submission's folder.
        targets: the keys of all targets that jobs before this one train.
        after: processes of this machine to wait for.
        threads: how many to compute with.
        gpu: the GPU as ``CUDA_VISIBLE_DEVICES`` names it; ``None`` for what the job is given.
        alone: whether the leading command alone sees to it that no two jobs do the same. File
            locks do not hold on the file systems of clusters.
    """

    words: tuple[str, ...]
    keys: tuple[str, ...]
    folder: str
    targets: tuple[str, ...]
    after: tuple[str, ...]
    threads: int
    gpu: str | None
    alone: bool

    def __call__(self) -> None:
        """Compute the work; what is done is skipped, so that a job can be queued again."""
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's, for a time limit
        try:
            with interruption.handle_signals(postpone=True):
                self._compute_all()
        except (Interrupted, KeyboardInterrupt):
            if interruption.received_signal() == signal.SIGUSR2 and callable(requeue):
                self._queue_again(requeue)
            raise

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What submitit queues again at a time limit: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)

    def _queue_again(self, requeue: Callable[..., Any]) -> None:
        """Have submitit queue this job again, which ends this process, or say why it does not."""
        from submitit.core.utils import UncompletedJobError

        try:
            requeue(signal.SIGUSR2, None)
        except UncompletedJobError:
            self._fail_all("its job came to its time limit too often; give more by slurm.time=")
            raise

    @property
    def _reports(self) -> Reports:
        return Reports(Path(self.folder))

    @property
    def _log(self) -> Path:
        import submitit

        return Path(self.folder) / f"{submitit.JobEnvironment().job_id}.log"

    def _compute_all(self) -> None:
        import torch

        from bnrecon.reproduction.executors.computation import details_to

        if self.gpu is not None:  # before CUDA starts, which it does when it is first used
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        torch.set_num_threads(self.threads)
        try:
            work = self._plan()  # which loads the libraries
        except Exception as error:  # whatever it is, the user is told of every piece
            self._fail_all(
                f"it could not be planned in its job: {error}",
                "mistake" if isinstance(error, UserError) else "failed",
            )
            raise
        interruption.finish_loading()
        while any(self._is_running(number) for number in self.after):
            time.sleep(1)
        ended = self._reports.ended(self.keys)
        with details_to(self._log), self._exclusively():
            for key in self.keys:
                if key not in ended:
                    self._reports.end(self._compute(key, work.get(key)))

    def _is_running(self, number: str) -> bool:
        """Whether this process is a job of the study; its number may be another one's by now."""
        jobs = str(Path(self.folder).parent)
        try:
            process = psutil.Process(int(number))
            ours = any(jobs in word for word in process.cmdline())
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:  # it has ended, or is another user's
            return False

    def _plan(self) -> dict[str, Work]:
        """All work of the study by key, and the targets that it reads."""
        from bnrecon.reproduction import engine, request
        from bnrecon.reproduction.shared_targets import TargetWork, target_key

        # A study's folder is named as the study; the registry is in a package above this one.
        study = importlib.import_module(f"bnrecon.studies.{self.words[0]}.study").STUDY
        parts = engine.plan(study, request.read(self.words[0], self.words[1:]))
        found: dict[str, Work] = {item.key: item for part in parts for item in part.work}
        for item in list(found.values()):
            if (config := item.target) is not None:
                found.setdefault(target_key(config), TargetWork(item, config))
        return found

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        if self.alone:
            with locks.left_out():
                yield
        else:
            yield

    def _compute(self, key: str, item: Work | None) -> Outcome:
        from bnrecon.reproduction.executors.computation import compute

        if item is None:
            reason = "the study has no such work here; were its files or bnrecon changed since?"
            return Outcome(key, key, "failed", reason, 0.0, str(self._log))
        if (untried := self._missing_target(item)) is not None:
            return Outcome(key, item.label, "failed", untried, 0.0, str(self._log))
        self._reports.start(key)
        started = time.monotonic()
        claims = Path(self.folder).parent.parent / ".locks"
        try:
            outcome = compute(item, claims, self._log, lambda: f"waiting for {item.label}")
        except Interrupted as error:
            if interruption.received_signal() is not None:
                raise
            spent = time.monotonic() - started  # a time limit of its own, train.time_limit
            return Outcome(key, item.label, "failed", str(error), spent, str(self._log))
        assert outcome is not None, "it waits for others"
        return outcome

    def _missing_target(self, item: Work) -> str | None:
        """Why work is not tried: the job that was to train its target has not."""
        from bnrecon.reproduction.shared_targets import TargetWork, target_key

        if (config := item.target) is None or target_key(config) not in self.targets:
            return None
        if TargetWork(item, config).is_finished():
            return None
        outcome = self._reports.outcome(target_key(config))
        if outcome is None:
            return "not tried: the job that was to train its target ended before"
        return f"not tried: {outcome.label} failed ({outcome.gist}); see {outcome.log}"

    def _fail_all(self, reason: str, kind: Kind = "failed") -> None:
        """Say of all work that is left that it failed."""
        line = " ".join(reason.splitlines())
        ended = self._reports.ended(self.keys)
        for key in self.keys:
            if key not in ended:
                self._reports.end(Outcome(key, key, kind, line, 0.0, str(self._log)))
