"""The jobs of a cluster compute work; this process submits it and collects the results."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shlex
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence

import torch

from bnrecon.jobs.job import Job
from bnrecon.jobs.local_processes import gpu_name
from bnrecon.jobs.options import ClusterOptions
from bnrecon.jobs.queues import MOST_JOBS, log_of, open_queue
from bnrecon.jobs.record import Submission, handing_out, new_submission, submissions
from bnrecon.jobs.work import Batch, Detached, Outcome, Started, Work
from bnrecon.reporting.wording import count_of
from bnrecon.runtime import interruption
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.hardware import processor_count
from bnrecon.runtime.shipped import DEFAULT_OUTPUTS

logger = logging.getLogger(__name__)

# Seconds of work without any measurement: too high a guess costs less than too low a one.
GUESSED = {"smoke": 5.0, "laptop": 300.0, "paper": 6 * 3600.0}


class Cluster:
    """Gives work to a cluster's jobs, unless an earlier command has, and waits for them.

    With ``cluster=local``, ``processes`` of this machine share it, on ``device``. ``seconds`` are
    the durations of one item of work, by part, where known.

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
        self._processes, self._device = processes, device
        self.name = open_queue(options.name, batch.folder, options.settings).name

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``Executor.run``. After it is closed the jobs continue, and a message says so.

        Raises:
            UserError: the cluster refuses the jobs.
            Detached: they are submitted, and this command is not to wait for them.
        """
        watches = self._hand_out(stages)
        active = [watch for watch in watches if not watch.has_ended()]
        if self._options.detach and active:
            raise Detached(self._where(active, "the same command without --detach"))
        try:
            while watches:
                for watch in watches:
                    yield from watch.poll()
                watches = [watch for watch in watches if watch.waiting]
                time.sleep(1 if watches else 0)
        except BaseException:
            if watches := [watch for watch in watches if watch.waiting]:
                logger.warning("%s", self._where(watches, "the same command"))
            raise

    def _hand_out(self, stages: Sequence[Sequence[Work]]) -> list[_Watch]:
        """Submit the work that no earlier command's jobs compute; return watches of all jobs."""
        with handing_out(self._batch.folder):
            watches = self._attach({item.key: item for stage in stages for item in stage})
            jobs = {key: job for watch in watches for key, (_, job) in watch.waiting.items()}
            if jobs:
                logger.info("jobs of an earlier command compute %d of them", len(jobs))
            targets, tasks = ([i for i in stage if i.key not in jobs] for stage in stages)
            if items := {item.key: item for item in (*targets, *tasks)}:
                with interruption.StopRequest():  # handle signals after submission
                    submission = self._submit(targets, tasks, jobs)
                watches.append(_Watch(submission, items))
        return watches

    def _attach(self, items: Mapping[str, Work]) -> list[_Watch]:
        """Watch earlier commands' jobs: unfinished work, and failures not reported yet."""
        watches, remaining = [], dict(items)
        for submission in reversed(submissions(self._batch.folder, self._batch.scale)):
            settled = {  # finished, or its result was removed
                key for key in submission.done() if key not in items or not items[key].is_finished()
            }
            submission = submission.collect(settled)
            awaited = remaining.keys() & set(submission.keys) - submission.collected
            if awaited:
                watches.append(_Watch(submission, {key: remaining.pop(key) for key in awaited}))
        return watches

    def _submit(
        self, targets: Sequence[Work], tasks: Sequence[Work], attached: Mapping[str, str]
    ) -> Submission:
        """Submit targets, then tasks that wait for them; ``attached``: earlier jobs by key."""
        submission = new_submission(self._batch, self._options.name)
        queue = open_queue(submission.cluster, submission.folder, self._options.settings)
        training = {key: job for key, job in attached.items() if key.startswith("target-")}
        trained = (*training, *(item.key for item in targets))
        stages = [self._bundles(targets), self._bundles(tasks)]
        if submission.cluster == "local":  # each does both; locks make tasks wait for targets
            count = self._processes
            shares = [[*targets[k::count], *tasks[k::count]] for k in range(count)]
            stages, trained = [[share for share in shares if share]], ()
        names = (f"bnrecon-{submission.folder.name}-{number}" for number in itertools.count())
        try:
            for number, bundles in enumerate(stages):
                after = (*training.values(), *submission.jobs) if number else ()
                for start in range(0, len(bundles), MOST_JOBS):
                    jobs = [
                        self._job(k, bundle, submission, trained if number else ())
                        for k, bundle in enumerate(bundles[start : start + MOST_JOBS])
                    ]
                    numbers = queue.submit(jobs, next(names), after)
                    keys = [job.keys for job in jobs]
                    try:
                        submission = submission.with_jobs(dict(zip(numbers, keys, strict=True)))
                    except OSError:  # a full disk; no command would know of them
                        queue.cancel(numbers)
                        raise
        except (UserError, RunError):
            if submission.jobs:
                logger.warning("%s; they go on", _submitted_message(submission, queue.name))
            else:  # no job was accepted
                shutil.rmtree(submission.folder, ignore_errors=True)
            raise
        logger.info("%s", _submitted_message(submission, queue.name))
        return submission

    def _bundles(self, stage: Sequence[Work]) -> list[list[Work]]:
        guess = GUESSED.get(self._batch.scale, GUESSED["laptop"])
        return bundle(stage, self._seconds, guess, self._options.minutes_per_job)

    def _job(
        self, number: int, work: Sequence[Work], submission: Submission, targets: tuple[str, ...]
    ) -> Job:
        local = submission.cluster == "local"
        share = max(1, min(torch.get_num_threads(), processor_count()) // self._processes)
        return Job(
            planner=self._batch.planner,
            words=self._batch.words,
            keys=tuple(item.key for item in work),
            folder=str(submission.folder),
            targets=targets,
            threads=share if local else self._options.settings.cpus,
            gpu=None if self._device is None else gpu_name(number, self._device),
            locks=local,
        )

    def _where(self, watches: Sequence[_Watch], again: str) -> str:
        """Where the jobs run, and the commands that show and stop them."""
        folder = self._batch.folder
        outputs = folder.parent.parent
        option = "" if outputs == DEFAULT_OUTPUTS else f" {shlex.quote(f'outputs={outputs}')}"
        lines = [_submitted_message(watch.submission) for watch in watches]
        return "\n".join(lines) + (
            f"\nthey go on until they are done; bnrecon status{option} shows them, bnrecon cancel "
            f"{folder.name}{option} stops them, {again} waits for them and prints the tables"
        )


class _Watch:
    """Polls a submission: what its jobs report, and which ended without a report."""

    def __init__(self, submission: Submission, items: Mapping[str, Work]) -> None:
        self.submission, self._queue = submission, submission.queue()
        self.waiting = {  # by key, with its job
            key: (items[key], job)
            for job, keys in submission.jobs.items()
            for key in keys
            if key in items
        }
        self._started: set[str] = set()

    def has_ended(self) -> bool:
        """Whether no job is known to be queued or running."""
        return len(self._ended()) == len({job for _, job in self.waiting.values()})

    def poll(self) -> Iterator[Started | Outcome]:
        """Yield what is new since the last poll; work with an outcome is no longer waited for."""
        reports = self.submission.reports
        for key in sorted(reports.started(self.waiting) - self._started):
            self._started.add(key)
            yield Started(key)
        ended = self._ended()
        outcomes = reports.outcomes(self.waiting)  # after the states: a job reports before it ends
        if any(job in ended and key not in outcomes for key, (_, job) in self.waiting.items()):
            time.sleep(self._queue.grace)  # its report may not be visible here yet
            ended &= self._ended()  # drop those that were requeued
            outcomes = reports.outcomes(self.waiting)
        reasons: dict[str, str] = {}
        collected = []
        try:
            for key, (item, job) in list(self.waiting.items()):
                if key in outcomes:
                    outcome = dataclasses.replace(outcomes[key], label=item.label)
                elif job in ended:
                    if job not in reasons:
                        reasons[job] = self._queue.reason(job)
                    outcome = self._lost(item, job, reasons[job])
                else:
                    continue
                collected.append(key)
                del self.waiting[key]
                yield outcome
        finally:
            self.submission = self.submission.collect(collected)

    def _ended(self) -> set[str]:
        """The jobs of pending work that have ended."""
        try:
            states = self._queue.states(sorted({job for _, job in self.waiting.values()}))
        except RunError as error:  # the controller restarts; the jobs continue
            logger.warning("%s; looking again", error)
            return set()
        return {job for job, state in states.items() if state == "ended"}

    def _lost(self, item: Work, job: str, reason: str) -> Outcome:
        """The outcome of work whose job has ended without reporting it."""
        log = str(log_of(self.submission.folder, job))
        if item.is_finished():
            return Outcome(item.key, item.label, "done", "done", 0.0, log)
        untried = "" if self.submission.reports.started([item.key]) else "not tried; "
        return Outcome(item.key, item.label, "failed", f"{untried}job {job}: {reason}", 0.0, log)


def bundle(
    work: Sequence[Work], seconds: Mapping[str, float], guess: float, minutes: float
) -> list[list[Work]]:
    """Group work, in order, into jobs of about ``minutes`` each: every job has to load torch first.

    Each job has at least one item. ``seconds`` are the durations of an item, by part; ``guess`` is
    used where they are unknown.
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


def _submitted_message(submission: Submission, queue: str = "") -> str:
    """How many jobs were submitted, to which cluster, and where they log."""
    jobs = count_of(len(submission.jobs), "job")
    to = f"given to {queue}" if queue else f"(cluster={submission.cluster})"
    return f"{jobs} {to}: {shorten(submission.numbers, 10)}\nlogs: {submission.folder}"
