"""Where the jobs of a study wait and run: Slurm, or processes that outlive the command."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from unittest import mock

import psutil

from bnrecon.config.cluster_settings import ClusterSettings
from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.extras import install_command

if TYPE_CHECKING:
    from bnrecon.reproduction.executors.job import StudyJob

__all__ = ["MOST_JOBS", "LocalQueue", "Queue", "SlurmQueue", "open_queue"]

COMMANDS = ("sbatch", "srun", "sacct", "squeue", "scancel", "scontrol")
MOST_JOBS = 1000  # of an array, by Slurm's own default
FOREVER = 60 * 24 * 365  # minutes


class Queue(Protocol):
    """Takes jobs, and says what becomes of them."""

    place: str  # where the jobs run, in words
    grace: float  # seconds that a file may take to be seen from another machine

    def submit(self, jobs: Sequence[StudyJob], name: str, after: Sequence[str]) -> list[str]:
        """Have jobs run once those of ``after`` have ended; return their numbers.

        Raises:
            UserError: they are refused.
        """

    def find(self, name: str, count: int) -> list[str]:
        """The numbers of jobs that were given under this name, if there are any."""

    def states(self, jobs: Iterable[str]) -> dict[str, str]:
        """``"queued"``, ``"running"`` or ``"ended"`` for each job."""

    def reason(self, job: str) -> str:
        """How a job ended, for one that left work undone."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs, those that run at their next safe point."""


def open_queue(cluster: str, folder: Path, settings: ClusterSettings | None = None) -> Queue:
    """The queue of this name.

    Args:
        cluster: ``"slurm"`` or ``"local"``.
        folder: of the submission.
        settings: what jobs ask for; not needed to look at them.

    Raises:
        UserError: submitit or Slurm's commands are missing.
    """
    try:
        import submitit  # noqa: F401  # it is an extra
    except ImportError:
        raise UserError(f"cluster={cluster} needs submitit: {install_command('slurm')}") from None
    logging.getLogger("submitit").setLevel(logging.ERROR)
    if cluster == "local":
        return LocalQueue(folder)
    return SlurmQueue(folder, settings or ClusterSettings())


class SlurmQueue:
    """Slurm, through submitit; its accounting says how jobs ended."""

    place, grace = "Slurm", 15.0

    def __init__(self, folder: Path, settings: ClusterSettings) -> None:
        if missing := [name for name in COMMANDS if shutil.which(name) is None]:
            raise UserError(
                f"cluster=slurm: {', '.join(missing)} not found; give the command on a machine of "
                "the cluster, or cluster=local"
            )
        from submitit.slurm.slurm import SlurmInfoWatcher

        self._folder, self._settings = folder, settings
        self._watcher = SlurmInfoWatcher(delay_s=60)

    def submit(self, jobs: Sequence[StudyJob], name: str, after: Sequence[str]) -> list[str]:
        """See ``Queue.submit``."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            _call("sacct", "-n", "-X", "-o", "JobID", "-j", "1")
        except RunError as error:  # without it no end is ever known
            raise UserError(
                f"cluster=slurm needs Slurm's accounting, which does not answer here ({error}); "
                "give the command on a machine of the cluster, or cluster=local"
            ) from None
        executor = submitit.SlurmExecutor(self._folder, max_num_timeout=self._settings.requeues)
        executor.update_parameters(**self._parameters(name, after))
        try:
            with environment(PYTHONSAFEPATH="1"):
                return [job.job_id for job in executor.submit_array(list(jobs))]
        except (FailedJobError, FailedSubmissionError) as error:
            raise UserError(f"Slurm refused the jobs: {_gist(str(error))}") from None

    def _parameters(self, name: str, after: Sequence[str]) -> dict[str, object]:
        given = self._settings
        minutes = given.time or 60
        first = sorted({job.partition("_")[0] for job in after}, key=int)
        parameters: dict[str, object] = {
            "job_name": name,
            "partition": given.partition,
            "account": given.account,
            "qos": given.qos,
            "mem": given.mem,
            "time": minutes,
            "cpus_per_task": given.cpus,
            "gpus_per_node": given.gpus or None,
            "array_parallelism": given.array_parallelism,
            "setup": list(given.setup) or None,
            "dependency": f"afterany:{':'.join(first)}" if first else None,
            # Time to come to a safe point before the limit.
            "signal_delay_s": min(120, minutes * 15),
            "stderr_to_stdout": True,
            # Slurm 22.05 and later do not hand sbatch's on to srun.
            "srun_args": [f"--cpus-per-task={given.cpus}"],
            "additional_parameters": {"requeue": True},
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def find(self, name: str, count: int) -> list[str]:
        """See ``Queue.find``; an array has one number, and its jobs are numbered behind it."""
        lines = _call("squeue", "--noheader", "--name", name, "--format=%A %F %K").split("\n")
        numbers = {line.split()[1] for line in lines if line}
        if len(numbers) != 1:
            return []
        number = numbers.pop()
        return [number] if count == 1 else [f"{number}_{index}" for index in range(count)]

    def states(self, jobs: Iterable[str]) -> dict[str, str]:
        """See ``Queue.states``."""
        return {job: self._state(job) for job in jobs}

    def _state(self, job: str) -> str:
        state = self._watcher.get_state(job).partition(" ")[0].upper()
        # Slurm queues these again, unless the cluster is told not to.
        if state in ("PREEMPTED", "NODE_FAIL"):
            queued = _call("squeue", "--noheader", "--format=%A", "--jobs", job, check=False)
            return "queued" if queued.strip() else "ended"
        if self._watcher.is_done(job, mode="cache"):
            return "ended"
        return "running" if state in ("RUNNING", "COMPLETING") else "queued"

    def reason(self, job: str) -> str:
        """See ``Queue.reason``; the state of a step tells more than that of its job."""
        lines = _call("sacct", "-n", "-P", "-j", job, "-o", "State,ExitCode", check=False)
        states = [line.split("|")[0].partition(" ")[0] for line in lines.splitlines()]
        advice = {
            "OUT_OF_MEMORY": "it ran out of memory; give more by slurm.mem=",
            "TIMEOUT": "its time limit came before a safe point; give more by slurm.time=",
            "CANCELLED": "it was cancelled",
            "NODE_FAIL": "its node failed",
            "PREEMPTED": "it was preempted, and this partition does not queue such jobs again",
        }
        for state, words in advice.items():
            if state in states:
                return f"{words} ({state})"
        return f"its process ended ({states[0] if states else 'state unknown'})"

    def cancel(self, jobs: Sequence[str]) -> None:
        """See ``Queue.cancel``; whole arrays are named by one number."""
        for start in range(0, len(jobs), 200):
            _call("scancel", *jobs[start : start + 200], check=False)


class LocalQueue:
    """Processes of this machine, which start at once and outlive the command."""

    place, grace = "this machine", 1.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def submit(self, jobs: Sequence[StudyJob], name: str, after: Sequence[str]) -> list[str]:
        """See ``Queue.submit``; the jobs themselves wait for others."""
        import submitit

        del name, after
        executor = submitit.LocalExecutor(self._folder, max_num_timeout=0)
        executor.update_parameters(timeout_min=FOREVER, stderr_to_stdout=True)
        with environment(PYTHONSAFEPATH="1"), _apart_from_terminal():
            return [job.job_id for job in executor.submit_array(list(jobs))]

    def find(self, name: str, count: int) -> list[str]:
        """See ``Queue.find``; a process that was not recorded is not looked for."""
        del name, count
        return []

    def states(self, jobs: Iterable[str]) -> dict[str, str]:
        """See ``Queue.states``."""
        return {job: "ended" if self._process(job) is None else "running" for job in jobs}

    def reason(self, job: str) -> str:
        """See ``Queue.reason``."""
        return f"process {job} was ended (by somebody, or for want of memory)"

    def cancel(self, jobs: Sequence[str]) -> None:
        """See ``Queue.cancel``."""
        for job in jobs:
            if (process := self._process(job)) is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)

    def _process(self, job: str) -> psutil.Process | None:
        """The process of a job, unless it has ended; its number may be another one's by now."""
        with contextlib.suppress(psutil.Error, ValueError):
            process = psutil.Process(int(job))
            ours = any(str(self._folder) in word for word in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def _call(*command: str, check: bool = True) -> str:
    """Standard output of one of Slurm's commands.

    Raises:
        RunError: it fails, or does not answer within a minute.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} does not answer; try again later") from None
    except OSError as error:
        raise RunError(f"{command[0]}: {error.strerror}") from None
    if check and done.returncode:
        raise RunError(f"{command[0]} failed: {_gist(done.stderr)}")
    return done.stdout


def _gist(text: str) -> str:
    """The line of an error that says most: Slurm's own, without what is around it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return (own or lines or ["no reason was given"])[0]


@contextlib.contextmanager
def _apart_from_terminal() -> Iterator[None]:
    """Processes started within the block live on without the terminal, whatever it sends.

    submitit starts them in the terminal's group, with its output.
    """
    apart = functools.partial(
        subprocess.Popen,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with mock.patch("submitit.local.local.subprocess.Popen", apart):
        yield


def count_states(states: Iterable[str]) -> str:
    """Jobs by state, in words.

    >>> count_states(["queued", "running", "queued"])
    '1 running, 2 queued'
    """
    counts = Counter(states)
    order = ("running", "queued", "ended")
    return ", ".join(f"{counts[state]} {state}" for state in order if counts[state])
