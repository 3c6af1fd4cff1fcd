"""The command in another process, and its output."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bnrecon.runtime import files

SMALLEST = ("scale=smoke", "target.groups=[1]", "train.epochs=1")
TWO_SEEDS = ("scale=smoke", "seeds=[0,1]")
# Processes that all use all cores mostly wait for each other's threads.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ENVIRONMENT = os.environ | ONE_THREAD


def folder_of(out):
    """The run's folder, printed on the last line of a run."""
    return Path(out.strip().splitlines()[-1])


def result_of(out):
    return files.read_json(folder_of(out) / "result.json")


def run(line, env=ENVIRONMENT, **settings):
    """Run a command to its end, with text output."""
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, **settings)


def start(*words, command="run", **settings):
    """Start ``bnrecon COMMAND WORDS`` in another process."""
    line = [sys.executable, "-P", "-m", "bnrecon", command, *words]
    environment = os.environ | ONE_THREAD  # a test may have changed it
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environment, **streams, **settings)


def succeeded(*words, command="run"):
    """Standard output and error of ``bnrecon COMMAND WORDS``, which has to succeed."""
    code, out, err = finish(start(*words, command=command))
    assert code == 0, err
    return out, err


def finish(process, timeout=240):
    """Wait for a process; return exit code, standard output and standard error."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_until(condition, seconds=120):
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def has_ended(number):
    """Whether a process has ended, even if it is not reaped yet."""
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
