"""The jobs of a cluster compute work; this process hands it out, and alone collects."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import shlex
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from bnrecon.jobs.job import Job
from bnrecon.jobs.local_processes import gpu_name
from bnrecon.jobs.options import ClusterOptions
from bnrecon.jobs.queues import MOST_JOBS, Queue, log_of, open_queue
from bnrecon.jobs.record import Submission, handing_out, new_submission, submissions
from bnrecon.jobs.work import Batch, Detached, Outcome, Started, Work
from bnrecon.runtime import interruption
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.shipped import USUAL

__all__ = ["Cluster", "bundle"]

logger = logging.getLogger(__name__)

# Of a piece of work of which nothing is known: it is better to take it for long than for short.
GUESSED = {"smoke": 5.0, "laptop": 300.0, "paper": 6 * 3600.0}


@dataclass(frozen=True)
class _Wanted:
    """Work that some job computes."""

    item: Work
    submission: Submission
    job: str


class Cluster:
    """Gives work to a cluster's jobs, unless an earlier command has, and waits for them.

    Args:
        batch: what the work is of, which a job plans again.
        options: what is asked of the cluster.
        processes: how many processes of this machine share the work, for ``cluster=local``.
        seconds: how long a piece of work takes, by part, as far as it is known.
        device: where this machine's processes compute.

    Raises:
        UserError: the cluster cannot be used from here.
    """

    processes = 0  # as many as the cluster runs at once

    def __init__(
        self,
        batch: Batch,
        options: ClusterOptions,
        processes: int = 1,
        seconds: Mapping[str, float] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._batch, self._options, self._seconds = batch, options, seconds or {}
        self._shares, self._device = processes, device
        self.name = open_queue(options.name, batch.folder, options.settings).name

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``Executor.run``. Closing it leaves the jobs to go on, and says so.

        Raises:
            UserError: the cluster refuses the jobs.
            Detached: they are given, and nobody is to wait for them.
        """
        wanted = self._hand_out(stages)
        if self._options.detach and (living := _living(wanted)):
            raise Detached(self._where(living, "the same command without --detach"))
        try:
            yield from self._collect(wanted)
        except BaseException:
            if wanted:
                logger.warning("%s", self._where(wanted, "the same command"))
            raise

    def _hand_out(self, stages: Sequence[Sequence[Work]]) -> dict[str, _Wanted]:
        """The work with the jobs that compute it: of earlier commands, or given now."""
        with handing_out(self._batch.folder):
            wanted = self._attach({item.key: item for stage in stages for item in stage})
            if wanted:
                logger.info("jobs of an earlier command compute %d of them", len(wanted))
            targets, tasks = ([i for i in stage if i.key not in wanted] for stage in stages)
            if items := {item.key: item for item in (*targets, *tasks)}:
                with interruption.StopRequest():  # one that comes in between is kept
                    submission = self._submit(targets, tasks, wanted)
                wanted |= _with_jobs(submission, items)
        return wanted

    def _attach(self, items: Mapping[str, Work]) -> dict[str, _Wanted]:
        """The work that jobs of earlier commands compute, or whose failure nobody was told of."""
        wanted: dict[str, _Wanted] = {}
        for submission in submissions(self._batch.folder, self._batch.scale):  # the last one counts
            settled = {  # it is finished, or its result was removed
                key for key in submission.done() if key not in items or not items[key].is_finished()
            }
            submission = submission.collect(settled)
            collected = submission.collected
            waiting = {key: item for key, item in items.items() if key not in collected}
            if attached := _with_jobs(submission, waiting):
                submission.queue(self._options.settings)  # which may not be asked from here
                wanted |= attached
        return wanted

    def _submit(
        self, targets: Sequence[Work], tasks: Sequence[Work], attached: Mapping[str, _Wanted]
    ) -> Submission:
        """Give the work to jobs; those of tasks wait for those that train targets.

        Processes of this machine do both: file locks have them wait for each other's targets.
        """
        submission = new_submission(self._batch, self._options.name)
        queue = open_queue(submission.cluster, submission.folder, self._options.settings)
        training = {key: each.job for key, each in attached.items() if key.startswith("target-")}
        first = (*training, *(item.key for item in targets))
        stages = [self._bundles(targets), self._bundles(tasks)]
        if submission.cluster == "local":
            shares = zip(_share(targets, self._shares), _share(tasks, self._shares), strict=True)
            stages, first = [[[*some, *others] for some, others in shares if some or others]], ()
        names = (f"bnrecon-{submission.folder.name}-{number}" for number in itertools.count())
        try:
            for number, bundles in enumerate(stages):
                after = (*training.values(), *submission.jobs) if number else ()
                for start in range(0, len(bundles), MOST_JOBS):
                    chunk = bundles[start : start + MOST_JOBS]
                    jobs = self._jobs(chunk, submission, first if number else ())
                    numbers = queue.submit(jobs, next(names), after)
                    keys = [job.keys for job in jobs]
                    submission = submission.with_jobs(dict(zip(numbers, keys, strict=True)))
        except (UserError, RunError):
            if submission.jobs:
                logger.warning("%s; they go on", _given(submission, queue))
            else:  # nothing was taken
                shutil.rmtree(submission.folder, ignore_errors=True)
            raise
        logger.info("%s", _given(submission, queue))
        return submission

    def _bundles(self, stage: Sequence[Work]) -> list[list[Work]]:
        guess = GUESSED.get(self._batch.scale, GUESSED["laptop"])
        return bundle(stage, self._seconds, guess, self._options.minutes_per_job)

    def _jobs(
        self, bundles: Sequence[Sequence[Work]], submission: Submission, targets: tuple[str, ...]
    ) -> list[Job]:
        local = submission.cluster == "local"
        threads = max(1, torch.get_num_threads() // self._shares)
        return [
            Job(
                planner=self._batch.planner,
                words=self._batch.words,
                keys=tuple(item.key for item in bundle),
                folder=str(submission.folder),
                targets=targets,
                threads=threads if local else self._options.settings.cpus,
                gpu=None if self._device is None else gpu_name(number, self._device),
                locks=local,
            )
            for number, bundle in enumerate(bundles)
        ]

    def _collect(self, wanted: dict[str, _Wanted]) -> Iterator[Started | Outcome]:
        """Wait for all work; what is yielded is taken out of ``wanted``."""
        watches = [_Watch(each, each.queue(self._options.settings)) for each in _distinct(wanted)]
        while wanted:
            for watch in watches:
                told = []
                try:
                    for event in watch.look(wanted):
                        if isinstance(event, Outcome):
                            told.append(event.key)
                            del wanted[event.key]
                        yield event
                finally:
                    watch.submission = watch.submission.collect(told)
            if wanted:
                time.sleep(1)

    def _where(self, wanted: Mapping[str, _Wanted], again: str) -> str:
        """Where the jobs are, how to look at them and how to stop them."""
        folder = self._batch.folder
        outputs = folder.parent.parent
        option = "" if outputs == USUAL else f" {shlex.quote(f'outputs={outputs}')}"
        lines = [
            f"{_count(each)} (cluster={each.cluster}): {shorten(each.numbers, 10)}\n"
            f"logs: {each.folder}"
            for each in _distinct(wanted)
        ]
        lines.append(
            f"they go on until they are done; bnrecon status{option} shows them, bnrecon cancel "
            f"{folder.name}{option} stops them, {again} waits for them and prints the tables"
        )
        return "\n".join(lines)


class _Watch:
    """Looks at a submission: what its jobs report, and which have ended without reporting."""

    def __init__(self, submission: Submission, queue: Queue) -> None:
        self.submission, self._queue = submission, queue
        self._started: set[str] = set()
        self._ended: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def look(self, wanted: Mapping[str, _Wanted]) -> Iterator[Started | Outcome]:
        """What is new since the last look."""
        folder = self.submission.folder
        mine = {key: each for key, each in wanted.items() if each.submission.folder == folder}
        if not mine:
            return
        reports = self.submission.reports
        for key in sorted(reports.started(mine) - self._started):
            self._started.add(key)
            yield Started(key)
        over = self._jobs_over({each.job for each in mine.values()})
        ended = reports.ended(mine)  # after the states: a report comes before its job's end
        for key, each in mine.items():
            if key in ended and (outcome := reports.outcome(key)) is not None:
                yield dataclasses.replace(outcome, label=each.item.label)
            elif each.job in over:
                yield self._lost(key, each)

    def _jobs_over(self, jobs: set[str]) -> set[str]:
        """The jobs that ended long enough ago for their last words to be seen here."""
        try:
            states = self._queue.states(sorted(jobs))
        except RunError as error:  # a controller that restarts; the jobs go on
            logger.warning("%s; looking again", error)
            return set()
        now = time.monotonic()
        # Without those that were queued again.
        ended = {job: self._ended.get(job, now) for job in jobs if states[job] == "ended"}
        self._ended = ended
        return {job for job, since in ended.items() if now - since >= self._queue.grace}

    def _lost(self, key: str, each: _Wanted) -> Outcome:
        """The outcome of work whose job has ended without reporting it."""
        log = str(log_of(self.submission.folder, each.job))
        if each.item.is_finished():
            return Outcome(key, each.item.label, "done", "done", 0.0, log)
        if each.job not in self._reasons:
            self._reasons[each.job] = self._queue.reason(each.job)
        why = f"job {each.job}: {self._reasons[each.job]}"
        gist = why if key in self._started else f"not tried; {why}"
        return Outcome(key, each.item.label, "failed", gist, 0.0, log)


def bundle(
    work: Sequence[Work], seconds: Mapping[str, float], guess: float, minutes: float
) -> list[list[Work]]:
    """Work in jobs of about ``minutes`` each, in its order, since each job has to load torch first.

    Args:
        work: what is to be computed.
        seconds: how long a piece takes, by part.
        guess: how long it takes where that is not known.
        minutes: what a job is to take; there is at least one piece in each.
    """
    bundles: list[list[Work]] = []
    room = 0.0
    for item in work:
        taken = seconds.get(item.part, guess)
        if not bundles or taken > room:
            bundles.append([])
            room = 60 * minutes
        bundles[-1].append(item)
        room -= taken
    return bundles


def _share(work: Sequence[Work], processes: int) -> list[Sequence[Work]]:
    """Work shared among processes: the k-th takes every k-th piece."""
    return [work[first::processes] for first in range(processes)]


def _living(wanted: Mapping[str, _Wanted]) -> dict[str, _Wanted]:
    """The work whose jobs wait or run, or of which that cannot be told now."""
    ended: set[str] = set()
    for submission in _distinct(wanted):
        with contextlib.suppress(RunError):  # a controller that does not answer; they may go on
            states = submission.queue().states(submission.jobs)
            ended |= {job for job, state in states.items() if state == "ended"}
    return {key: each for key, each in wanted.items() if each.job not in ended}


def _distinct(wanted: Mapping[str, _Wanted]) -> list[Submission]:
    """The submissions of this work, each once."""
    return list({each.submission.folder: each.submission for each in wanted.values()}.values())


def _with_jobs(submission: Submission, items: Mapping[str, Work]) -> dict[str, _Wanted]:
    """Those of ``items`` that the submission's jobs compute."""
    return {
        key: _Wanted(items[key], submission, job)
        for job, keys in submission.jobs.items()
        for key in keys
        if key in items
    }


def _given(submission: Submission, queue: Queue) -> str:
    numbers = shorten(submission.numbers, 10)
    return f"{_count(submission)} given to {queue.name}: {numbers}\nlogs: {submission.folder}"


def _count(submission: Submission) -> str:
    count = len(submission.jobs)
    return f"{count} job{'' if count == 1 else 's'}"
