"""The memory and processors that this process may use under all limits.

These are the limits of the machine, of Slurm, and of Linux control groups (jobs and containers).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import psutil

from bnrecon.runtime.malloc import return_freed_memory


def available_host_memory(
    proc: Path = Path("/proc"), environment: Mapping[str, str] = os.environ
) -> int:
    """Bytes that this process can still allocate before it reaches the first of all limits.

    The limits are the machine's available memory; those of the process's control group and of all
    groups above it (versions 1 and 2; cached files not in use count as free); ``ulimit -v`` and
    ``ulimit -d``; and the memory that Slurm granted the job on this node, less what this process
    uses. Freed memory is first returned to the system, so that it counts as free.

    >>> available_host_memory() > 0
    True
    """
    return_freed_memory()
    used = psutil.Process().memory_info()
    of_groups = [free for folder in groups("memory", proc) for free in _group(folder)]
    limits = [*of_groups, *_process_limits(used), *_slurm(used.rss, environment)]
    return max(0, min([psutil.virtual_memory().available, *limits]))


def _group(folder: Path) -> Iterator[int]:
    """The bytes left under a group's limits, if it has any."""
    statistics = dict(line.split() for line in lines(folder / "memory.stat"))
    for limit, usage, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.high", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed = lines(folder / limit)
        if allowed in ([], ["max"]):  # version 1 writes a number beyond all memory
            continue
        # Version 1 reports the lowest limit of the groups above, which a container may not see.
        above = int(statistics.get("hierarchical_memory_limit", allowed[0]))
        used = int("".join(lines(folder / usage)) or 0)
        yield min(int(allowed[0]), above) - used + int(statistics.get(cached, 0))


def _process_limits(used: Any) -> Iterator[int]:
    """The bytes left under ``ulimit -v`` and ``ulimit -d``, if the shell has set them."""
    try:
        import resource
    except ImportError:  # Windows has no ulimit
        return
    for limit, taken in (
        (resource.RLIMIT_AS, used.vms),
        (resource.RLIMIT_DATA, getattr(used, "data", used.vms)),  # "data" only on Linux
    ):
        allowed, _ = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY:
            yield allowed - taken


def _slurm(resident: int, environment: Mapping[str, str]) -> Iterator[int]:
    """The bytes that the job was granted here (0 megabytes: all), less those of this process."""

    def number(name: str) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdecimal() else 0

    by_cores = number("SLURM_MEM_PER_CPU") * number("SLURM_CPUS_ON_NODE")
    by_gpus = number("SLURM_MEM_PER_GPU") * number("SLURM_GPUS_ON_NODE")
    for megabytes in (number("SLURM_MEM_PER_NODE"), by_cores, by_gpus):
        if megabytes > 0:
            yield megabytes * 2**20 - resident


def groups(controller: str, proc: Path = Path("/proc")) -> Iterator[Path]:
    """The visible folders of the process's group and of the groups above it.

    In version 1 each ``controller``, such as ``memory``, has its groups; version 2's have all.
    """
    for folder, mount in _process_group(controller, proc):
        for level in (folder, *folder.parents):
            yield level
            if level == mount:
                break


def _process_group(controller: str, proc: Path) -> Iterator[tuple[Path, Path]]:
    """The process's group and its mount: of version 2, of the controller, or of both."""
    paths: dict[str, PurePosixPath] = {}
    for line in lines(proc / "self/cgroup"):  # number:controllers:path; version 2 names none
        _, controllers, group = line.split(":", 2)
        names = controllers.split(",")
        paths |= {name: PurePosixPath(group) for name in ("", controller) if name in names}
    for line in lines(proc / "self/mountinfo"):  # ... root mount-point ... - type source options
        before, _, after = line.partition(" - ")
        (kind, _, options), (root, point) = after.split(" ", 2), before.split(" ")[3:5]
        name = {"cgroup2": "", "cgroup": controller}.get(kind)
        if name not in paths or (kind == "cgroup" and controller not in options.split(",")):
            continue
        mount, path = Path(point), paths[name]
        # In a container the path may be the host's, or above its namespace: then use the mount.
        seen = path.is_relative_to(root) and ".." not in path.parts
        yield mount / (path.relative_to(root) if seen else ""), mount


def processor_limits(proc: Path = Path("/proc")) -> Iterator[int]:
    """The numbers of processors whose time the groups allow, rounded up to at least one."""
    for folder in groups("cpu", proc):
        quota = " ".join(lines(folder / "cpu.max")).split()  # "150000 100000", or "max 100000"
        for name in ("quota", "period"):  # version 1; -1 for no limit
            quota += lines(folder / f"cpu.cfs_{name}_us")
        if len(quota) == 2 and quota[0].isdecimal() and int(quota[1]):
            yield max(1, math.ceil(int(quota[0]) / int(quota[1])))


def lines(path: Path) -> list[str]:
    """A file's lines; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
