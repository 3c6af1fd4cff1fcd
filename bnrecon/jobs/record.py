"""What was given to a cluster, what its jobs report, how far they are, and how to end them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bnrecon.jobs.queues import Queue, open_queue
from bnrecon.jobs.work import Batch, Outcome, title
from bnrecon.runtime import files, locks
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import RunError, UserError

logger = logging.getLogger(__name__)

JOBS = "jobs"  # the folder of all submissions of a batch
RECORD = "submission.json"


@dataclass(frozen=True)
class Reports:
    """What jobs say: a small file when they begin with a piece of work, another at its end.

    A result counts only if it is stored where it belongs.
    """

    folder: Path

    def start(self, key: str) -> None:
        """A job begins with a piece of work."""
        files.write_json(self._file("started", key), {"key": key})

    def end(self, outcome: Outcome) -> None:
        """A piece of work has ended."""
        files.write_json(self._file("outcomes", outcome.key), dataclasses.asdict(outcome))

    def started(self, keys: Iterable[str]) -> set[str]:
        """Those that a job has begun with."""
        return set(self._reported("started", keys))

    def outcomes(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """What became of those of which a job has said so; a damaged report counts for none."""
        outcomes = {}
        for key, path in self._reported("outcomes", keys).items():
            with contextlib.suppress(files.Damaged):
                outcomes[key] = files.read_json(path, lambda content: Outcome(**content))
        return outcomes

    def _reported(self, kind: str, keys: Iterable[str]) -> dict[str, Path]:
        """The files that there are, by one look at their folder."""
        names: set[str] = set()
        with contextlib.suppress(OSError):
            names = {path.name for path in (self.folder / kind).iterdir()}
        return {key: path for key in keys if (path := self._file(kind, key)).name in names}

    def _file(self, kind: str, key: str) -> Path:
        # A key may itself be as long as a file's name can be.
        return self.folder / kind / f"{content_key({'key': key})}.json"


@dataclass(frozen=True)
class Submission:
    """What a command gave to a cluster: the ``submission.json`` in a folder of its own."""

    folder: Path  # holds the record, the logs of the jobs and what they report
    scale: str  # see ``Batch``
    cluster: str  # ``"slurm"`` or ``"local"``
    command: str  # what continues it
    host: str  # the machine of the command
    # The keys of the work that each job computes, by the cluster's number of the job
    jobs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # The keys of which a command has told the user what became of them, or that are not to be
    # waited for any more
    collected: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The folder's name of the study or the sweep."""
        return self.folder.parent.parent.name

    @property
    def keys(self) -> list[str]:
        """All work that is computed, or was."""
        return [key for keys in self.jobs.values() for key in keys]

    @property
    def numbers(self) -> list[str]:
        """The numbers of all jobs, an array's as one."""
        return list(dict.fromkeys(job.partition("_")[0] for job in self.jobs))

    @property
    def reports(self) -> Reports:
        """What the jobs say."""
        return Reports(self.folder)

    def done(self) -> dict[str, Outcome]:
        """What its jobs have computed and nobody has collected, by key."""
        outcomes = self.reports.outcomes(key for key in self.keys if key not in self.collected)
        return {key: outcome for key, outcome in outcomes.items() if outcome.kind == "done"}

    def queue(self) -> Queue:
        """Where its jobs wait and run.

        Raises:
            UserError: the cluster cannot be asked from here.
        """
        if self.cluster == "local" and self.host != socket.gethostname():
            raise UserError(
                f"{self.name} is computed by processes of {self.host} (cluster=local): run the "
                f"command there; or, if they have ended, remove {self.folder}"
            )
        return open_queue(self.cluster, self.folder)

    def with_jobs(self, jobs: Mapping[str, tuple[str, ...]]) -> Submission:
        """With more jobs; the record is written."""
        return replace(self, jobs={**self.jobs, **jobs})._written()

    def collect(self, keys: Iterable[str]) -> Submission:
        """Without waiting for some work any more; the record is written where that is new."""
        collected = self.collected.union(keys)
        return replace(self, collected=collected)._written() if collected - self.collected else self

    def _written(self) -> Submission:
        content = dataclasses.asdict(self) | {"collected": sorted(self.collected)}
        del content["folder"]
        files.write_json(self.folder / RECORD, content)
        return self


def new_submission(batch: Batch, cluster: str) -> Submission:
    """A submission with a folder of its own, and no jobs yet."""
    name = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = (batch.folder / JOBS / name).absolute()
    return Submission(folder, batch.scale, cluster, batch.command, socket.gethostname())


@contextlib.contextmanager
def handing_out(folder: Path) -> Iterator[None]:
    """Keep other commands on this machine from giving or ending a batch's jobs within the block."""
    waiting = "waiting for another command that submits or ends jobs of this study"
    with locks.lock_file(folder / ".locks" / "submission", lambda: waiting, required=False):
        yield


def submissions(folder: Path, scale: str | None = None) -> list[Submission]:
    """What somebody still waits for, of this scale if it is given, the oldest first.

    A damaged record is named and left.
    """
    try:  # one that cannot be entered is named, too
        folders = sorted(path for path in (folder / JOBS).iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    read = [_read(each.absolute()) for each in folders]
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
    """How far a submission is."""

    submission: Submission  # what was given
    finished: int  # pieces of work that were computed
    failed: int  # pieces that failed, and pieces whose job ended before they were computed
    running: int  # pieces that a job is at
    queued: int  # pieces that wait for their job, or in it
    # Number of jobs that are ``"queued"``, ``"running"`` or ``"ended"``; empty where the
    # cluster was not asked
    jobs: dict[str, int]
    problem: str = ""  # why it could not be asked, in one line


def states(folder: Path, scale: str | None = None) -> list[State]:
    """How far the submissions are that somebody still waits for, the last one first."""
    return [state(each) for each in reversed(submissions(folder, scale))]


def state(submission: Submission) -> State:
    """How far a submission is; the cluster is asked only while work is open."""
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
    """End jobs that wait or run; those that run stop at their next safe point.

    What they have finished stays, and what they have begun goes on from its checkpoint when it is
    computed again.

    Returns:
        A line on each submission of which jobs were ended.

    Raises:
        UserError: the cluster cannot be asked from here.
        RunError: it does not answer.
    """
    if not (folder / JOBS).is_dir():
        return []
    lines = []
    with handing_out(folder):  # a command may be giving jobs just now
        for submission in submissions(folder, scale):
            queue = submission.queue()
            job_states = queue.states(submission.jobs)
            living = [job for job, state in job_states.items() if state != "ended"]
            if not living:
                continue
            finished = state(submission).finished
            queue.cancel(living)
            submission.collect(submission.keys)
            counts = Counter(job_states[job] for job in living)
            told = ", ".join(f"{counts[name]} {name}" for name in sorted(counts, reverse=True))
            lines.append(
                f"cancelled of {title(submission.name, submission.scale)}: {told} "
                f"(jobs {', '.join(submission.numbers)}); {finished} of "
                f"{len(set(submission.keys))} tasks are computed, and stay"
            )
    return lines
