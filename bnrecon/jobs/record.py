"""Submissions to a cluster: their records, the jobs' reports and progress, and cancelling them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bnrecon.jobs.queues import Queue, open_queue
from bnrecon.jobs.work import Batch, Outcome, title
from bnrecon.reporting.inventory import subfolders
from bnrecon.runtime import files, locks
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import RunError, UserError

logger = logging.getLogger(__name__)

JOBS = "jobs"  # the folder of all submissions of a batch
RECORD = "submission.json"


@dataclass(frozen=True)
class Reports:
    """Reports of jobs: a small file when they start an item of work, another when it ends.

    A result counts only if it is in the run's or the task's folder.
    """

    folder: Path

    def start(self, key: str) -> None:
        """Report that a job starts an item of work."""
        files.write_json(self._file("started", key), {"key": key})

    def end(self, outcome: Outcome) -> None:
        """Report the outcome of an item of work."""
        files.write_json(self._file("outcomes", outcome.key), dataclasses.asdict(outcome))

    def started(self, keys: Iterable[str]) -> set[str]:
        """The keys of work that a job has started."""
        return set(self._reported("started", keys))

    def outcomes(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """The reported outcomes by key; a damaged report does not count."""
        outcomes = {}
        for key, path in self._reported("outcomes", keys).items():
            with contextlib.suppress(files.Damaged):
                outcomes[key] = files.read_json(path, lambda content: Outcome(**content))
        return outcomes

    def _reported(self, kind: str, keys: Iterable[str]) -> dict[str, Path]:
        """The existing files by key, from one listing of their folder."""
        names: set[str] = set()
        with contextlib.suppress(OSError):
            names = {path.name for path in (self.folder / kind).iterdir()}
        return {key: path for key in keys if (path := self._file(kind, key)).name in names}

    def _file(self, kind: str, key: str) -> Path:
        # A key may be as long as a file name can be.
        return self.folder / kind / f"{content_key({'key': key})}.json"


@dataclass(frozen=True)
class Submission:
    """The work that a command submitted to a cluster: ``submission.json`` in its own folder."""

    folder: Path  # holds the record, the jobs' logs and their reports
    scale: str  # see ``Batch``
    cluster: str  # ``"slurm"`` or ``"local"``
    command: str  # the command that continues it
    host: str  # the machine of the command
    # The keys of each job's work, by the cluster's number of the job
    jobs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # The keys whose outcome was reported to the user, or which are no longer waited for
    collected: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the study's or the sweep's folder."""
        return self.folder.parent.parent.name

    @property
    def keys(self) -> list[str]:
        """The keys of all its work."""
        return [key for keys in self.jobs.values() for key in keys]

    @property
    def numbers(self) -> list[str]:
        """The numbers of all jobs, an array's as one."""
        return list(dict.fromkeys(job.partition("_")[0] for job in self.jobs))

    @property
    def reports(self) -> Reports:
        """The jobs' reports."""
        return Reports(self.folder)

    def done(self) -> dict[str, Outcome]:
        """The outcomes of its jobs that no command has collected, by key."""
        outcomes = self.reports.outcomes(key for key in self.keys if key not in self.collected)
        return {key: outcome for key, outcome in outcomes.items() if outcome.kind == "done"}

    def queue(self) -> Queue:
        """The queue of its jobs.

        Raises:
            UserError: the cluster cannot be reached from here.
        """
        if self.cluster == "local" and self.host != socket.gethostname():
            raise UserError(
                f"{self.name} is computed by processes of {self.host} (cluster=local): run the "
                f"command there; or, if they have ended, remove {self.folder}"
            )
        return open_queue(self.cluster, self.folder)

    def with_jobs(self, jobs: Mapping[str, tuple[str, ...]]) -> Submission:
        """Add jobs, and write the record."""
        return replace(self, jobs={**self.jobs, **jobs})._written()

    def collect(self, keys: Iterable[str]) -> Submission:
        """Stop waiting for some work; write the record if that is new."""
        collected = self.collected.union(keys)
        return replace(self, collected=collected)._written() if collected - self.collected else self

    def _written(self) -> Submission:
        content = dataclasses.asdict(self) | {"collected": sorted(self.collected)}
        del content["folder"]
        files.write_json(self.folder / RECORD, content)
        return self


def new_submission(batch: Batch, cluster: str) -> Submission:
    """A submission with a new folder, and no jobs yet."""
    name = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = (batch.folder / JOBS / name).absolute()
    return Submission(folder, batch.scale, cluster, batch.command, socket.gethostname())


def handing_out(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Keep other commands on this machine from submitting or ending a batch's jobs in the block."""
    waiting = "waiting for another command that submits or ends jobs of this study"
    return locks.lock_file(folder / ".locks" / "submission", lambda: waiting, required=False)


def submissions(folder: Path, scale: str | None = None) -> list[Submission]:
    """The submissions with uncollected work, of one ``scale`` or all, the oldest first.

    A damaged record is reported and skipped.
    """
    read = [_read(each.absolute()) for each in subfolders(folder / JOBS)]
    return [
        submission
        for submission in read
        if submission is not None
        and scale in (None, submission.scale)
        and not submission.collected.issuperset(submission.keys)
    ]


def _read(folder: Path) -> Submission | None:
    def submission(content: dict[str, Any]) -> Submission:
        jobs = {job: tuple(keys) for job, keys in content.pop("jobs").items()}
        return Submission(
            folder, jobs=jobs, collected=frozenset(content.pop("collected")), **content
        )

    try:
        return files.read_json(folder / RECORD, submission)
    except FileNotFoundError:
        return None
    except files.Damaged as error:
        advice = "end its running jobs yourself, then remove"
        logger.warning("%s; %s %s", error, advice, folder)
        return None


@dataclass(frozen=True)
class State:
    """The progress of a submission; its numbers are those of items of work."""

    submission: Submission
    finished: int  # computed
    failed: int  # failed, or the job ended before it computed them
    running: int  # being computed by a job
    queued: int  # wait for their job, or in it
    # Number of jobs that are ``"queued"``, ``"running"`` or ``"ended"``; empty if the cluster was
    # not asked
    jobs: dict[str, int]
    problem: str = ""  # why it could not be asked, in one line


def states(folder: Path, scale: str | None = None) -> list[State]:
    """The progress of submissions with uncollected work, the newest first."""
    return [state(each) for each in reversed(submissions(folder, scale))]


def state(submission: Submission) -> State:
    """The progress of a submission; the cluster is asked only while work is unfinished."""
    outcomes = submission.reports.outcomes(submission.keys)
    started = submission.reports.started(submission.keys)
    job_states: dict[str, str] = {}
    problem = ""
    if not outcomes.keys() >= set(submission.keys):
        try:
            job_states = submission.queue().states(submission.jobs)
        except (UserError, RunError) as error:
            problem = str(error)
    counts = dict.fromkeys(("finished", "failed", "running", "queued"), 0)
    for job, keys in submission.jobs.items():
        for key in keys:
            if key in outcomes:
                counts["finished" if outcomes[key].kind == "done" else "failed"] += 1
            elif job_states.get(job) == "ended":
                counts["failed"] += 1
            else:
                counts["running" if key in started else "queued"] += 1
    return State(submission, **counts, jobs=dict(Counter(job_states.values())), problem=problem)


def cancel(folder: Path, scale: str | None = None) -> list[str]:
    """End queued and running jobs; those that run stop at their next safe point.

    Finished work is kept; work in progress continues from its checkpoint when it is computed again.

    Returns:
        A line for each submission with ended jobs.

    Raises:
        UserError: the cluster cannot be reached from here.
        RunError: it does not answer.
    """
    if not (folder / JOBS).is_dir():
        return []
    lines = []
    with handing_out(folder):  # a command may be submitting jobs now
        for submission in submissions(folder, scale):
            queue = submission.queue()
            job_states = queue.states(submission.jobs)
            active = [job for job, state in job_states.items() if state != "ended"]
            if not active:
                continue
            finished = state(submission).finished
            queue.cancel(active)
            submission.collect(submission.keys)
            counts = Counter(job_states[job] for job in active)
            by_state = ", ".join(f"{counts[name]} {name}" for name in sorted(counts, reverse=True))
            lines.append(
                f"cancelled of {title(submission.name, submission.scale)}: {by_state} "
                f"(jobs {', '.join(submission.numbers)}); {finished} of "
                f"{len(set(submission.keys))} tasks are computed, and stay"
            )
    return lines
