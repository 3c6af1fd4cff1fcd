"""Queues of jobs: Slurm, or processes of this machine that outlive the command.

A job is ``"queued"``, ``"running"`` or ``"ended"``; it reports itself what it has computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import psutil

from bnrecon.config.cluster_settings import ClusterSettings
from bnrecon.runtime import files
from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.extras import install_command

if TYPE_CHECKING:
    from bnrecon.jobs.job import Job

COMMANDS = ("sbatch", "srun", "sacct", "squeue", "scancel", "scontrol")
MOST_JOBS = 1000  # in an array, by Slurm's default

# Explanations of the states in which Slurm ends jobs; other states are shown as they are.
REASONS = {
    "OUT_OF_MEMORY": "it ran out of memory; raise slurm.mem=",
    "TIMEOUT": "it reached its time limit before a safe point; raise slurm.time=",
    "CANCELLED": "it was cancelled",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "it was preempted, and this partition does not queue such jobs again",
}


def open_queue(cluster: str, folder: Path, settings: ClusterSettings | None = None) -> Queue:
    """The queue of a submission's folder, ``"slurm"`` or ``"local"``; submitting needs settings.

    Raises:
        UserError: submitit or Slurm's commands are missing.
    """
    return LocalQueue(folder) if cluster == "local" else SlurmQueue(folder, settings)


def log_of(folder: Path, job: str) -> Path:
    """The file with the output of a job's process, as submitit names it."""
    return folder / f"{job}_0_log.out"


class SlurmQueue:
    """Slurm, through submitit; Slurm's accounting says how jobs ended."""

    name = "Slurm"
    grace = 15.0  # seconds until another machine sees a file

    def __init__(self, folder: Path, settings: ClusterSettings | None = None) -> None:
        try:
            import submitit.slurm.slurm
        except ImportError:
            raise UserError(f"cluster=slurm needs submitit: {install_command('slurm')}") from None
        if missing := [name for name in COMMANDS if shutil.which(name) is None]:
            raise UserError(
                f"cluster=slurm: {', '.join(missing)} not found; run the command on a machine of "
                "the cluster, or use cluster=local"
            )
        logging.getLogger("submitit").setLevel(logging.ERROR)
        self._folder, self._settings = folder, settings or ClusterSettings()
        self._watcher = submitit.slurm.slurm.SlurmInfoWatcher(delay_s=60)

    def submit(self, jobs: Sequence[Job], name: str, after: Iterable[str]) -> list[str]:
        """Submit jobs to run once those of ``after`` have ended; return their numbers.

        Raises:
            UserError: Slurm refuses them.
        """
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            _call("sacct", "-n", "-X", "-o", "JobID", "-j", "1")
        except RunError as error:  # without it the end of a job remains unknown
            raise UserError(
                f"cluster=slurm needs Slurm's accounting, which does not answer here ({error}); "
                "run the command on a machine of the cluster, or use cluster=local"
            ) from None
        executor = submitit.SlurmExecutor(self._folder, max_num_timeout=self._settings.requeues)
        executor.update_parameters(**self._parameters(name, after))
        try:
            with environment(PYTHONSAFEPATH="1"):
                return [job.job_id for job in executor.submit_array(list(jobs))]
        except (FailedJobError, FailedSubmissionError) as error:
            raise UserError(f"Slurm refused the jobs: {_gist(str(error))}") from None

    def _parameters(self, name: str, after: Iterable[str]) -> dict[str, object]:
        settings = self._settings
        minutes = settings.time or 60
        first = sorted({job.partition("_")[0] for job in after}, key=int)
        parameters: dict[str, object] = {
            "job_name": name,
            "partition": settings.partition,
            "account": settings.account,
            "qos": settings.qos,
            "mem": settings.mem,
            "time": minutes,
            "cpus_per_task": settings.cpus,
            "gpus_per_node": settings.gpus or None,
            "array_parallelism": settings.array_parallelism,
            "setup": list(settings.setup) or None,
            "dependency": f"afterany:{':'.join(first)}" if first else None,
            # Time to reach a safe point before the limit.
            "signal_delay_s": min(120, minutes * 15),
            "stderr_to_stdout": True,
            # Slurm 22.05 and later do not pass sbatch's value on to srun.
            "srun_args": [f"--cpus-per-task={settings.cpus}"],
            "additional_parameters": {"requeue": True},
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def states(self, jobs: Iterable[str]) -> dict[str, str]:
        """The state of each job."""
        return {job: self._state(job) for job in jobs}

    def _state(self, job: str) -> str:
        state = self._watcher.get_state(job).partition(" ")[0].upper()
        # Slurm requeues these, unless the cluster's configuration forbids it.
        if state in ("PREEMPTED", "NODE_FAIL"):
            queued = _call("squeue", "--noheader", "--format=%A", "--jobs", job, check=False)
            return "queued" if queued.strip() else "ended"
        if self._watcher.is_done(job, mode="cache"):
            return "ended"
        return "running" if state in ("RUNNING", "COMPLETING") else "queued"

    def reason(self, job: str) -> str:
        """How an unfinished job ended; the state of its step says more than the job's."""
        lines = _call("sacct", "-n", "-P", "-j", job, "-o", "State,ExitCode", check=False)
        states = [line.split("|")[0].partition(" ")[0] for line in lines.splitlines()]
        for state, reason in REASONS.items():
            if state in states:
                return f"{reason} ({state})"
        return f"its process ended ({states[0] if states else 'state unknown'})"

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs, running ones at their next safe point; one number names a whole array."""
        _call("scancel", *dict.fromkeys(job.partition("_")[0] for job in jobs), check=False)


class LocalQueue:
    """Processes of this machine that start at once and outlive the command and its terminal."""

    name = "this machine"
    grace = 1.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def submit(self, jobs: Sequence[Job], name: str, _after: Iterable[str]) -> list[str]:
        """Start all of them, or none: they wait for each other's targets by file locks.

        Raises:
            UserError: one cannot be started.
        """
        numbers: list[str] = []
        try:
            for number, job in enumerate(jobs):
                numbers.append(self._start(job, f"{name}-{number}"))
        except OSError as error:
            self.cancel(numbers)  # they would not be recorded
            reason = error.strerror or error
            raise UserError(
                f"cluster=local: process {len(numbers) + 1} of {len(jobs)} cannot be started "
                f"({reason})"
            ) from None
        return numbers

    def _start(self, job: Job, name: str) -> str:
        request, log = self._folder / f"{name}.json", self._folder / f"{name}.out"
        files.write_json(request, dataclasses.asdict(job))
        variables = {"PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
        with log.open("wb") as output, environment(**variables):
            process = subprocess.Popen(
                [sys.executable, "-m", "bnrecon.jobs.job", request],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process.returncode = 0  # avoids a warning that it still runs
        log.rename(log_of(self._folder, str(process.pid)))
        return str(process.pid)

    def states(self, jobs: Iterable[str]) -> dict[str, str]:
        """The state of each job."""
        return {job: "ended" if self._process(job) is None else "running" for job in jobs}

    def reason(self, job: str) -> str:
        """How an unfinished job ended."""
        return f"process {job} was killed (by somebody, or for lack of memory)"

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs at their next safe point."""
        for job in jobs:
            if (process := self._process(job)) is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)

    def _process(self, job: str) -> psutil.Process | None:
        """The process of a job, unless it has ended; another may have its number by now."""
        with contextlib.suppress(psutil.Error, ValueError):
            process = psutil.Process(int(job))
            # Compare the unique folder name: paths may contain links.
            ours = any(self._folder.name in word for word in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


Queue: TypeAlias = SlurmQueue | LocalQueue


def _call(*command: str, check: bool = True) -> str:
    """The output of a Slurm command; ``RunError`` if it fails or does not answer."""
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
    """The most informative line of an error: Slurm's message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return (errors or lines or ["no reason was given"])[0]
