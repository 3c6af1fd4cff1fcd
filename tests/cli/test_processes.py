"""The processes of a study: how many, and that none is left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import ENVIRONMENT

import bnrecon
from bnrecon.reproduction import workers
from bnrecon.runtime.errors import UserError


def wait_until(condition, seconds=90):
    """Wait for something to become true; the time only limits how long a failure takes."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def find_worker(process):
    """The study's second process, once it has started."""
    for child in psutil.Process(process.pid).children():
        try:
            if workers.START in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


def has_ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="a process is told by its whole command line")
@pytest.mark.parametrize("later", [0, 1])
def test_no_worker_is_left_when_its_parent_is_killed_and_none_runs_the_current_folder(later):
    """The current folder's tqdm.py would be taken for the library if it were on a worker's path."""
    Path("tqdm.py").write_text("open('executed', 'w')\n")
    words = ["study", "random_features", "conditioning", "scale=smoke", "jobs=2", "outputs=out"]
    line = [sys.executable, "-P", "-m", "bnrecon", *words]
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    ) as parent:
        worker = wait_until(lambda: find_worker(parent))
        time.sleep(later)
        assert parent.poll() is None
        assert not has_ended(worker)
        parent.kill()
    assert wait_until(lambda: has_ended(worker))
    assert not Path("executed").exists()
    if not later:  # it ended while it loaded, and did not come to its work first
        written = next(Path("out").rglob("smoke-workers.log")).read_bytes()
        assert written in (b"", b"bnrecon: interrupted before any work began\n")


def test_a_worker_takes_the_same_package_and_nothing_of_the_current_folder():
    Path("bnrecon").mkdir()
    for name in ("bnrecon/__init__.py", "tqdm.py", "torch.py"):
        Path(name).write_text("open('executed', 'w')\n")
    line = [sys.executable, "-P", "-c", workers.START, bnrecon.__file__, "study", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "usage: bnrecon study" in done.stdout
    assert not Path("executed").exists()


def test_more_processes_than_cores_or_memory_carry_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(workers.hardware, "available_memory", lambda device: 10**11)
    workers.require_room(4)
    with pytest.raises(UserError, match=r"jobs=5: this machine .* 4 .*4 cores, 100.0 GB"):
        workers.require_room(5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    workers.require_room(2)
    monkeypatch.setattr(workers.hardware, "available_memory", lambda device: 5 * 10**8)
    workers.require_room(1)
    with pytest.raises(UserError, match=r"jobs=2: this machine .* 1 "):
        workers.require_room(2)
