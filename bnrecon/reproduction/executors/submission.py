"""What a study has given to a cluster: which jobs compute which work, and how far they are."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bnrecon.config.cluster_settings import ClusterSettings
from bnrecon.reproduction.executors.queues import Queue, open_queue
from bnrecon.reproduction.executors.reports import Reports, utc
from bnrecon.runtime import files, locks
from bnrecon.runtime.errors import RunError, UserError

__all__ = [
    "JOBS",
    "Array",
    "State",
    "Submission",
    "all_submissions",
    "handing_out",
    "new_submission",
    "read",
]

logger = logging.getLogger(__name__)

JOBS = "jobs"  # the folder of all submissions of a study
RECORD = "submission.json"


@dataclass(frozen=True)
class Array:
    """Jobs that were given to the cluster at once.

    Args:
        name: what the cluster calls them.
        bundles: the keys of the work that each job computes.
        jobs: the cluster's number of each job; empty until it has given them.
    """

    name: str
    bundles: tuple[tuple[str, ...], ...]
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Submission:
    """What a command gave to a cluster: the ``submission.json`` in a folder of its own.

    Args:
        folder: holds the record, the logs of the jobs and what they report.
        study: the study's name.
        scale: its scale.
        cluster: ``"slurm"`` or ``"local"``.
        command: what continues it.
        submitted: when (ISO 8601, UTC).
        host: the machine of the command.
        targets: jobs that train targets, which the others wait for.
        tasks: the other jobs.
        cancelled: whether ``bnrecon cancel`` was given since.
    """

    folder: Path
    study: str
    scale: str
    cluster: str
    command: str
    submitted: str
    host: str
    targets: tuple[Array, ...] = ()
    tasks: tuple[Array, ...] = ()
    cancelled: bool = False

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All jobs, in the order in which they were given."""
        return (*self.targets, *self.tasks)

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """The keys that each job computes, by the cluster's number of the job."""
        return {
            job: keys
            for array in self.arrays
            for job, keys in zip(array.jobs, array.bundles, strict=False)
        }

    @property
    def keys(self) -> list[str]:
        """All work that is computed, or was."""
        return [key for array in self.arrays for keys in array.bundles for key in keys]

    @property
    def numbers(self) -> list[str]:
        """The numbers of all jobs, an array's as one."""
        return list(dict.fromkeys(job.partition("_")[0] for job in self.jobs))

    def queue(self, settings: ClusterSettings | None = None) -> Queue:
        """Where its jobs wait and run.

        Args:
            settings: what jobs ask for; not needed to look at them.

        Raises:
            UserError: the cluster cannot be asked from here.
        """
        if self.cluster == "local" and self.host != socket.gethostname():
            raise UserError(
                f"{self.study} is computed by processes of {self.host} (cluster=local): give the "
                f"command there; or, if they have ended, remove {self.folder}"
            )
        return open_queue(self.cluster, self.folder, settings)

    def given(self, name: str, jobs: Sequence[str]) -> Submission:
        """With the numbers of the jobs of one array."""

        def numbered(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return tuple(
                replace(array, jobs=tuple(jobs)) if array.name == name else array
                for array in arrays
            )

        return replace(self, targets=numbered(self.targets), tasks=numbered(self.tasks))

    def recovered(self, queue: Queue) -> Submission:
        """With the numbers of jobs that were given by a command that was killed while it did."""
        whole = self
        for array in self.arrays:
            if not array.jobs and (jobs := queue.find(array.name, len(array.bundles))):
                whole = whole.given(array.name, jobs)
        if whole != self:
            whole.write()
        return whole

    @property
    def reports(self) -> Reports:
        """What the jobs say."""
        return Reports(self.folder)

    def write(self) -> None:
        """Write the record."""
        content = dataclasses.asdict(self)
        del content["folder"]
        files.write_json(self.folder / RECORD, content)


def new_submission(study_folder: Path, scale: str, cluster: str, command: str) -> Submission:
    """A submission with a folder of its own, and no jobs yet."""
    name = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = (study_folder / JOBS / name).absolute()
    host = socket.gethostname()
    return Submission(folder, study_folder.name, scale, cluster, command, utc(), host)


@contextlib.contextmanager
def handing_out(study_folder: Path) -> Iterator[None]:
    """Keep other commands on this machine from giving or ending a study's jobs within the block."""
    claim = study_folder / ".locks" / "submission"
    waiting = "waiting for another command, which gives jobs of this study or ends them"
    with locks.lock_file(claim, lambda: waiting, required=False):
        yield


def all_submissions(study_folder: Path) -> list[Submission]:
    """The submissions of a study, the oldest first; a damaged record is named and left."""
    return list(_read_all(study_folder))


def _read_all(study_folder: Path) -> Iterator[Submission]:
    try:
        places = sorted(path for path in (study_folder / JOBS).iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for place in places:
        try:
            yield _read(place.absolute())
        except FileNotFoundError:
            continue
        except files.Damaged as error:
            logger.warning(
                "%s; which jobs it names is not known: end those that still run yourself, then "
                "remove %s",
                error,
                place,
            )


def _read(place: Path) -> Submission:
    content = files.read_json(place / RECORD)
    try:
        for stage in ("targets", "tasks"):
            content[stage] = tuple(
                Array(
                    str(array["name"]),
                    tuple(tuple(map(str, keys)) for keys in array["bundles"]),
                    tuple(map(str, array["jobs"])),
                )
                for array in content[stage]
            )
        return Submission(folder=place, **content)
    except (AttributeError, KeyError, TypeError) as error:
        path = place / RECORD
        raise files.Damaged(f"{path} was written by another version of bnrecon ({error})") from None


@dataclass(frozen=True)
class State:
    """How far a submission is.

    Args:
        submission: what was given.
        finished: pieces of work that were computed.
        failed: pieces that failed, and pieces whose job ended before they were computed.
        running: pieces that a job is at.
        queued: pieces that wait for their job, or in it.
        jobs: number of jobs that are ``"queued"``, ``"running"`` or ``"ended"``; empty where the
            cluster was not asked.
        problem: why it could not be asked, in one line.
    """

    submission: Submission
    finished: int
    failed: int
    running: int
    queued: int
    jobs: dict[str, int]
    problem: str = ""


def read(study_folder: Path) -> list[State]:
    """How far the submissions of a study are, the last one first.

    Left out are those that were cancelled, and those that are over and whose failures the user was
    told.
    """
    found = [state(each) for each in reversed(all_submissions(study_folder)) if not each.cancelled]
    return [each for each in found if not _is_over(each)]


def _is_over(found: State) -> bool:
    told = found.submission.reports.told(found.submission.keys)
    return not (found.queued or found.running) and found.failed <= len(told)


def state(submission: Submission) -> State:
    """How far a submission is; the cluster is asked only while work is open."""
    reports, keys = submission.reports, submission.keys
    ended, started = reports.ended(keys), reports.started(keys)
    states: dict[str, str] = {}
    problem = ""
    if len(ended) < len(set(keys)):
        try:
            states = submission.queue().states(submission.jobs)
        except (UserError, RunError) as error:
            problem = str(error)
    counts: Counter[str] = Counter()
    for job, work in submission.jobs.items():
        for key in work:
            if key in ended:
                outcome = reports.outcome(key)
                counts["finished" if outcome and outcome.kind == "done" else "failed"] += 1
            elif states.get(job) == "ended":
                counts["failed"] += 1
            else:
                counts["running" if key in started else "queued"] += 1
    return State(
        submission,
        finished=counts["finished"],
        failed=counts["failed"],
        running=counts["running"],
        queued=counts["queued"],
        jobs=dict(Counter(states.values())),
        problem=problem,
    )
