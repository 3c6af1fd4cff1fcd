"""The command in a process of its own, and what it prints."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bnrecon.runtime import files

SMALLEST = ("scale=smoke", "target.groups=[1]", "train.epochs=1")
TWO_SEEDS = ("scale=smoke", "seeds=[0,1]")
# Processes that each want all cores wait for each other's threads most of the time.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ENVIRONMENT = os.environ | ONE_THREAD


def folder_of(out):
    """The run's folder, which is the last line that a run prints."""
    return Path(out.strip().splitlines()[-1])


def result_of(out):
    return files.read_json(folder_of(out) / "result.json")


def run(line, env=ENVIRONMENT, **settings):
    """Run a command to its end; its output is text."""
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, **settings)


def start(*words, command="run", **settings):
    """Start ``bnrecon COMMAND WORDS`` in a process of its own."""
    line = [sys.executable, "-P", "-m", "bnrecon", command, *words]
    environment = os.environ | ONE_THREAD  # as a test may have changed it
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environment, **streams, **settings)


def succeeded(*words, command="run"):
    """Standard output and error of ``bnrecon COMMAND WORDS``, run to its end without a failure."""
    code, out, err = finish(start(*words, command=command))
    assert code == 0, err
    return out, err


def finish(process, timeout=240):
    """Wait for a process; return exit code, standard output and standard error."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_until(condition, seconds=120):
    """Whether a condition comes true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def has_ended(number):
    """Whether a process is no longer there, or has not been waited for yet."""
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
