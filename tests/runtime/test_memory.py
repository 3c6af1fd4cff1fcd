"""Real control groups: a process in one is told its group's memory and processors."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import ENVIRONMENT

ROOT = Path("/sys/fs/cgroup")
LIMIT = 1_500_000_000
ASK = """
from bnrecon.runtime.hardware import processor_count
from bnrecon.runtime.memory import available_host_memory
print(available_host_memory(), processor_count())
"""


@pytest.fixture
def groups():
    """Groups of this machine with 1.5 GB and one processor's time, where it lets us make them."""
    name, made = f"bnrecon-test-{os.getpid()}", []
    limits = {
        "memory/memory.limit_in_bytes": LIMIT,
        "cpu/cpu.cfs_quota_us": 100_000,
        "memory.max": LIMIT,
        "cpu.max": "100000 100000",
    }
    try:
        for path, value in limits.items():
            controller, _, file = path.rpartition("/")
            if (ROOT / controller / "cgroup.procs").exists():
                folder = ROOT / controller / name
                if folder not in made:
                    folder.mkdir()
                    made.append(folder)
                (folder / file).write_text(str(value))
    except OSError as error:
        reason = f"no control groups can be made here: {error}"
    else:
        reason = "" if made else "there are no control groups here"
    try:
        if reason:
            pytest.skip(reason)
        yield made
    finally:
        for folder in made:
            inner = folder / "inner"
            for group in (inner, folder):
                end = time.monotonic() + 10
                while group.exists() and time.monotonic() < end:  # until its processes are gone
                    with contextlib.suppress(OSError):
                        group.rmdir()


def ask(groups, *before):
    """Memory and processors as a process in these groups is told them."""
    enter = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in groups)
    line = ["bash", "-c", f'{enter}; exec "$@"', "bash", *before, sys.executable, "-P", "-c", ASK]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="control groups are of Linux")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("namespace", [False, True])
def test_a_process_is_told_what_its_group_allows(groups, nested, namespace):
    own = groups
    if nested:
        own = [folder / "inner" for folder in groups]
        for folder in own:
            folder.mkdir()
    before = ("unshare", "--cgroup") if namespace else ()
    if namespace and subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("no namespace of control groups can be made here")
    memory, processors = ask(own, *before)
    assert 0 < memory < LIMIT
    assert processors == 1
