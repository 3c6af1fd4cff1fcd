"""How much memory this process may allocate: under the machine's and all other limits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from bnrecon.runtime import control_groups
from bnrecon.runtime.malloc import return_freed_memory


def available_host_memory(
    proc: Path = Path("/proc"), environment: Mapping[str, str] = os.environ
) -> int:
    """Bytes that this process can still allocate before it reaches the first of all limits.

    These are the machine's available memory; the limits of the process's control group and of all
    groups above it (versions 1 and 2; cached files not in use count as free); ``ulimit -v`` and
    ``ulimit -d``; and what Slurm granted the job on this node, of which only this process's own
    share is known to be taken. Memory that was freed is given back first: it counts as free.

    >>> available_host_memory() > 0
    True
    """
    return_freed_memory()
    used = psutil.Process().memory_info()
    groups = [left for folder in control_groups.groups("memory", proc) for left in _group(folder)]
    limits = [*groups, *_process_limits(used), *_slurm(used.rss, environment)]
    return max(0, min([psutil.virtual_memory().available, *limits]))


def _group(folder: Path) -> Iterator[int]:
    """What is left under a group's limits; nothing where it has none."""
    statistics = dict(line.split() for line in control_groups.lines(folder / "memory.stat"))
    for limit, usage, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.high", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed = control_groups.lines(folder / limit)
        if allowed in ([], ["max"]):  # version 1 writes a number beyond all memory
            continue
        # Version 1 tells the least limit of the groups above, which a container may not see.
        above = int(statistics.get("hierarchical_memory_limit", allowed[0]))
        used = int("".join(control_groups.lines(folder / usage)) or 0)
        yield min(int(allowed[0]), above) - used + int(statistics.get(cached, 0))


def _process_limits(used: Any) -> Iterator[int]:
    """What is left under ``ulimit -v`` and ``ulimit -d``, where the shell has set them."""
    try:
        import resource
    except ImportError:  # Windows has no ulimit
        return
    for limit, taken in (
        (resource.RLIMIT_AS, used.vms),
        (resource.RLIMIT_DATA, getattr(used, "data", used.vms)),  # "data" on Linux alone
    ):
        allowed, _ = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY:
            yield allowed - taken


def _slurm(resident: int, environment: Mapping[str, str]) -> Iterator[int]:
    """What the job was granted here (megabytes, 0 for all), less what this process holds."""

    def number(name: str) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdecimal() else 0

    by_cores = number("SLURM_MEM_PER_CPU") * number("SLURM_CPUS_ON_NODE")
    by_gpus = number("SLURM_MEM_PER_GPU") * number("SLURM_GPUS_ON_NODE")
    for megabytes in (number("SLURM_MEM_PER_NODE"), by_cores, by_gpus):
        if megabytes > 0:
            yield megabytes * 2**20 - resident
