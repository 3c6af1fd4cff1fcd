"""Freed memory is kept during a training and counts as free, and is released after it."""

import platform
import sys

import pytest
from processes import run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc's malloc"),
]

MB = 10**6
BEFORE = """
import resource
import psutil
import torch
from bnrecon.runtime.malloc import keep_freed_memory
from bnrecon.runtime.limits import available_host_memory

kept = []


def free():
    return available_host_memory(environment={"SLURM_MEM_PER_NODE": "3000"})


def compute():
    "240 MB are used and freed; what was allocated after them stays."
    large = torch.ones(60_000_000)
    kept.append(torch.ones(30_000))
    del large


compute()
"""


def printed(code):
    """The numbers that another process prints."""
    done = run([sys.executable, "-c", BEFORE + code])
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


def test_memory_freed_by_a_training_counts_as_free():
    """Also during the training, while the page tables show it as taken."""
    before, held, during, after = printed(
        """
with keep_freed_memory():
    before = free()
    for _ in range(3):
        compute()
    held = psutil.Process().memory_info().rss
    during = free()
    held -= psutil.Process().memory_info().rss
print(before, held, during, free())
"""
    )
    assert held > 200 * MB
    assert abs(during - before) < 10 * MB
    assert abs(after - before) < 10 * MB


def test_nothing_is_kept_after_a_training():
    """Not even in the data segment, which ``ulimit -d`` limits."""
    before, after = printed(
        """
with keep_freed_memory():
    torch.ones(1000)
limit = psutil.Process().memory_info().data + 2_000_000_000
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = free()
for _ in range(3):
    compute()
print(before, free())
"""
    )
    assert before <= 2000 * MB
    assert abs(after - before) < 10 * MB
