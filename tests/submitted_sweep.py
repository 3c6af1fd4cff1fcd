"""A sweep in processes of its own: the command in a group, its jobs, and what they log."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import ENVIRONMENT

FOLDER = Path("out/sweeps/one")
SWEEP = ("-m", "scale=smoke", "target.groups=[1]", "outputs=out", f"hydra.sweep.dir={FOLDER}")


@contextlib.contextmanager
def started_sweeps(*options, **environment):
    """Start sweeps as a terminal does: each in a group of processes, which ends with the block."""
    started = []

    def start(*words):
        line = [sys.executable, "-P", "-m", "bnrecon", "run", *SWEEP, *options, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            line, **pipes, env=ENVIRONMENT | environment, start_new_session=True
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def jobs_of(process):
    """The numbers of the jobs that a sweep prints when it submits them."""
    return process.stderr.readline().rpartition(": ")[2].split()


def log_of(job):
    path = FOLDER / "jobs" / f"{job}_0_log.out"
    return path.read_text(encoding="utf-8") if path.exists() else ""
