"""The jobs of a sweep that submitit runs: which go on, how they ended, and the wait for them."""

from __future__ import annotations

import logging
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import filter_overrides

from bnrecon.cli import exit_codes
from bnrecon.runtime import files

if TYPE_CHECKING:
    import submitit

    from bnrecon.cli.sweeps import Sweep

__all__ = ["find", "remember", "running", "wait_for"]

logger = logging.getLogger(__name__)


FILE = "submitted.json"  # in the sweep's folder: the jobs of Slurm, for a later command


POLL = 10  # seconds between two questions to Slurm


PATIENCE = 15  # seconds until what another machine wrote is taken to be missing


# What Slurm says of jobs that it ended, and what that means here.
ENDS = {
    "OUT_OF_MEMORY": "it needed more memory than it was given; see hydra.launcher.mem_gb",
    "CANCELLED": "it was cancelled; rerun the command to resume",
    "TIMEOUT": "it reached its time limit; rerun the command to resume",
    "NODE_FAIL": "its node failed; rerun the command to resume",
    "PREEMPTED": "it was preempted; rerun the command to resume",
}


def remember(sweep: Sweep) -> None:
    """Have a later command wait for these jobs of Slurm instead of submitting them again."""
    assert sweep.folder is not None
    folder = str(next(iter(sweep.submitted.values())).paths.folder)
    jobs = {str(number): job.job_id for number, job in sweep.submitted.items()}
    files.write_json(sweep.folder / FILE, {"folder": folder, "jobs": jobs})


def find(folder: Path) -> dict[int, submitit.Job]:
    """The jobs of Slurm that an earlier command submitted, if any of them has not ended."""
    import submitit

    try:
        found = files.read_json(folder / FILE)
    except (OSError, ValueError):
        return {}
    jobs: dict[int, submitit.Job] = {
        int(number): submitit.SlurmJob(found["folder"], job)
        for number, job in found["jobs"].items()
    }
    return jobs if running(jobs, slurm=True) else {}


def running(jobs: dict[int, submitit.Job], slurm: bool) -> set[int]:
    """The numbers of the jobs that wait or run; all, where Slurm does not answer."""
    if not slurm:
        return {number for number, job in jobs.items() if not job.done()}
    queued = _ask("squeue", "--me", "--noheader", "--array", "--format=%i")
    return {number for number, job in jobs.items() if queued is None or job.job_id in queued}


def wait_for(sweep: Sweep, wanted: dict[int, list[str]]) -> None:
    """Wait until jobs have ended, and see to it that each has a record.

    Args:
        sweep: the sweep, which holds the jobs.
        wanted: the numbers of the jobs, with their overrides.
    """
    slurm = sweep.launcher == "submitit_slurm"
    left, asked = dict(wanted), time.monotonic()
    while left:
        time.sleep(1)
        ended = {number for number in left if sweep.has_record(number)}
        if not slurm or time.monotonic() - asked > POLL:
            ended |= left.keys() - running(sweep.submitted, slurm)
            asked = time.monotonic()
        for number in sorted(ended):
            _settle(sweep, number, left.pop(number), slurm)
            logger.info("ended: %d of %d", len(wanted) - len(left), len(wanted))


def _settle(sweep: Sweep, number: int, overrides: list[str], slurm: bool) -> None:
    """Record how a job ended, where it could not do so itself."""
    assert sweep.folder is not None
    job, state = sweep.submitted[number], ""
    end = time.monotonic() + (PATIENCE if slurm else 0)
    while not (recorded := sweep.has_record(number)):  # files and accounting may be late
        state = _state(job.job_id) if slurm else str(job.state)
        if state in ENDS or time.monotonic() >= end:
            break
        time.sleep(1)
    left_by_signal = (sweep.folder / f"job-{number}.json").exists()
    if recorded or (left_by_signal and state not in ENDS):
        return
    code = exit_codes.INTERRUPTED if state == "CANCELLED" else exit_codes.FAILED
    error = ENDS.get(state, f"it ended without a result ({state or 'its state is not known'})")
    record: dict[str, Any] = {"overrides": list(filter_overrides(overrides)), "folder": None}
    record |= {"code": code, "error": error}
    files.write_json(sweep.folder / f"job-{number}.json", record)


def _state(job: str) -> str:
    """How a job of Slurm ended; that its memory ran out may be said of a step alone."""
    lines = _ask("sacct", "--noheader", "--parsable2", "--format=State", f"--jobs={job}") or []
    states = [line for line in lines if line.isupper()]  # CANCELLED by 1000
    return next((state for state in ENDS if state in states), states[0] if states else "")


def _ask(*command: str) -> list[str] | None:
    """The words that one of Slurm's commands prints; ``None`` where it does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split() if done.returncode == 0 else None
