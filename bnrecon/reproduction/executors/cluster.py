"""The jobs of a cluster compute a study's work; this process hands it out, and alone collects."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from bnrecon.reproduction.cluster_options import ClusterOptions
from bnrecon.reproduction.executors import bundles
from bnrecon.reproduction.executors.job import StudyJob
from bnrecon.reproduction.executors.local_processes import gpu_name
from bnrecon.reproduction.executors.queues import MOST_JOBS, Queue, open_queue
from bnrecon.reproduction.executors.submission import (
    Array,
    Submission,
    all_submissions,
    handing_out,
    new_submission,
)
from bnrecon.reproduction.executors.watch import Wanted, Watch
from bnrecon.reproduction.outcome import Detached, Outcome, Started
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.work import Work
from bnrecon.runtime.errors import RunError, UserError, shorten

__all__ = ["Cluster"]

logger = logging.getLogger(__name__)


class Cluster:
    """Gives work to a cluster's jobs, unless an earlier command has, and waits for them.

    Args:
        request: what is asked, which a job plans again.
        options: what is asked of the cluster.
        seconds: how long a piece of work takes, by part, as far as it is known.
        device: where this machine's processes compute.

    Raises:
        UserError: the cluster cannot be used from here.
    """

    processes = 0  # as many as the cluster runs at once

    def __init__(
        self,
        request: StudyRequest,
        options: ClusterOptions,
        seconds: Mapping[str, float],
        device: torch.device | None = None,
    ) -> None:
        self._request, self._options, self._seconds = request, options, seconds
        self._device = device
        self.name = self._open(options.name, request.folder).place

    def _open(self, cluster: str, folder: Path) -> Queue:
        return open_queue(cluster, folder, self._options.settings)

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

    def _hand_out(self, stages: Sequence[Sequence[Work]]) -> dict[str, Wanted]:
        """The work with the jobs that compute it: of earlier commands, or given now."""
        with handing_out(self._request.folder):
            wanted = self._attach({item.key: item for stage in stages for item in stage})
            if wanted:
                logger.info("jobs of an earlier command compute %d of them", len(wanted))
            left = [[item for item in stage if item.key not in wanted] for stage in stages]
            if any(left):
                submission = self._submit(left, wanted)
                items = {item.key: item for stage in left for item in stage}
                wanted |= _with_jobs(submission, items)
        return wanted

    def _attach(self, items: Mapping[str, Work]) -> dict[str, Wanted]:
        """The work that jobs of earlier commands compute, or whose failure nobody was told of."""
        found: dict[str, Wanted] = {}
        for recorded in all_submissions(self._request.folder):  # the last one counts
            if recorded.cancelled or recorded.scale != self._request.scale:
                continue
            settled = _settled(recorded, items)
            found = {key: each for key, each in found.items() if key not in settled}
            left = {key: items[key] for key in recorded.keys if key in items.keys() - settled}
            if left:
                submission = recorded.recovered(recorded.queue(self._options.settings))
                found |= _with_jobs(submission, left)
        return found

    def _submit(
        self, stages: Sequence[Sequence[Work]], attached: Mapping[str, Wanted]
    ) -> Submission:
        """Give the work of each stage to jobs of its own; the second ones wait for the first."""
        request = self._request
        empty = new_submission(request.folder, request.scale, self._options.name, request.command)
        queue = self._open(empty.cluster, empty.folder)
        targets, tasks = (self._arrays(stage, empty, number) for number, stage in enumerate(stages))
        submission = dataclasses.replace(empty, targets=targets, tasks=tasks)
        submission.write()  # before the jobs, which a killed command would leave unknown
        first = {key for array in targets for keys in array.bundles for key in keys}
        first |= {key for key in attached if key.startswith("target-")}
        before = [each.job for key, each in attached.items() if key in first]
        try:
            for array in targets:
                submission = self._give(queue, submission, array, (), before=())
            before += submission.jobs
            for array in tasks:
                submission = self._give(queue, submission, array, tuple(sorted(first)), before)
        except (UserError, RunError):
            if submission.jobs:
                logger.warning("%s; they go on", _given(submission, queue))
            else:  # nothing was taken
                shutil.rmtree(submission.folder)
            raise
        logger.info("%s", _given(submission, queue))
        return submission

    def _arrays(
        self, stage: Sequence[Work], submission: Submission, number: int
    ) -> tuple[Array, ...]:
        if submission.cluster == "local":
            shares = bundles.share(stage, self._request.jobs)
        else:
            minutes = self._options.minutes_per_job
            shares = bundles.bundle(stage, self._seconds, submission.scale, minutes)
        token = submission.folder.name.rpartition("-")[2]
        keys = [tuple(item.key for item in share) for share in shares]
        return tuple(
            Array(
                f"bnrecon-{submission.study}-{token}-{number}-{start // MOST_JOBS}",
                tuple(keys[start : start + MOST_JOBS]),
            )
            for start in range(0, len(keys), MOST_JOBS)
        )

    def _give(
        self,
        queue: Queue,
        submission: Submission,
        array: Array,
        targets: tuple[str, ...],
        before: Sequence[str],
    ) -> Submission:
        """Give the jobs of one array, and write their numbers down at once."""
        request, local = self._request, submission.cluster == "local"
        threads = max(1, torch.get_num_threads() // request.jobs)
        jobs = [
            StudyJob(
                words=tuple(request.alone),
                keys=keys,
                folder=str(submission.folder),
                targets=targets,
                after=tuple(before) if local else (),
                threads=threads if local else self._options.settings.cpus,
                gpu=None if self._device is None else gpu_name(number, self._device),
                alone=not local,
            )
            for number, keys in enumerate(array.bundles)
        ]
        given = submission.given(array.name, queue.submit(jobs, array.name, before))
        given.write()
        return given

    def _collect(self, wanted: dict[str, Wanted]) -> Iterator[Started | Outcome]:
        """Wait for all work; what is yielded is taken out of ``wanted``."""
        watches = [Watch(each, each.queue(self._options.settings)) for each in _submissions(wanted)]
        while wanted:
            for watch in watches:
                for event in watch.look(wanted):
                    yield event
                    if isinstance(event, Outcome):
                        del wanted[event.key]
                        if event.kind != "done":
                            watch.submission.reports.tell(event.key)
            if wanted:
                time.sleep(1)

    def _where(self, wanted: Mapping[str, Wanted], again: str) -> str:
        """Where the jobs are, how to look at them and how to stop them."""
        lines = [
            f"{_count(each)} (cluster={each.cluster}): {shorten(each.numbers, 10)}\n"
            f"logs: {each.folder}"
            for each in _submissions(wanted)
        ]
        study = self._request.folder.name
        lines.append(
            f"they go on until they are done; bnrecon status shows them, bnrecon cancel {study} "
            f"stops them, {again} waits for them and prints the tables"
        )
        return "\n".join(lines)


def _settled(submission: Submission, items: Mapping[str, Work]) -> set[str]:
    """The work that is to be computed anew: its failure is known, or its result was removed."""
    reports = submission.reports
    settled = reports.told(submission.keys)
    for key in reports.ended(items.keys() & set(submission.keys)):
        outcome = reports.outcome(key)
        if outcome is not None and outcome.kind == "done" and not items[key].is_finished():
            settled.add(key)
    return settled


def _living(wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    """The work whose jobs wait or run, or of which that cannot be told now."""
    ended: set[str] = set()
    for submission in _submissions(wanted):
        with contextlib.suppress(RunError):  # a controller that does not answer; they may go on
            states = submission.queue().states(submission.jobs)
            ended |= {job for job, state in states.items() if state == "ended"}
    return {key: each for key, each in wanted.items() if each.job not in ended}


def _submissions(wanted: Mapping[str, Wanted]) -> list[Submission]:
    """The submissions of this work, each once."""
    return list({each.submission.folder: each.submission for each in wanted.values()}.values())


def _with_jobs(submission: Submission, items: Mapping[str, Work]) -> dict[str, Wanted]:
    """Those of ``items`` that the submission's jobs compute."""
    return {
        key: Wanted(items[key], submission, job)
        for job, keys in submission.jobs.items()
        for key in keys
        if key in items
    }


def _given(submission: Submission, queue: Queue) -> str:
    numbers = shorten(submission.numbers, 10)
    count = _count(submission)
    return f"{count} given to {queue.place}: {numbers}\nlogs: {submission.folder}"


def _count(submission: Submission) -> str:
    count = len(submission.jobs)
    return f"{count} job{'' if count == 1 else 's'}"
