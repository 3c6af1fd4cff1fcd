"""How much memory this process may allocate: under the machine's and all other limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import psutil

__all__ = ["available_host_memory"]


def available_host_memory(
    proc: Path = Path("/proc"), environment: Mapping[str, str] = os.environ
) -> int:
    """Bytes that this process can still allocate before it reaches the first of all limits.

    These are the machine's available memory; the limits of the process's control group and of all
    groups above it (versions 1 and 2; cached files not in use count as free); ``ulimit -v`` and
    ``ulimit -d``; and what Slurm granted the job on this node, of which only this process's own
    share is known to be taken.

    >>> available_host_memory() > 0
    True
    """
    used = psutil.Process().memory_info()
    limits = [*_control_groups(proc), *_process_limits(used), *_slurm(used.rss, environment)]
    return max(0, min([psutil.virtual_memory().available, *limits]))


def _control_groups(proc: Path) -> Iterator[int]:
    """What is left in each group from the process's own up to the highest that is mounted here."""
    for folder, mount in _group_folders(proc):
        for level in (folder, *folder.parents):
            yield from _group(level)
            if level == mount:
                break


def _group_folders(proc: Path) -> Iterator[tuple[Path, Path]]:
    """The process's own group and its mount: version 2, version 1's memory controller, or both."""
    paths: dict[str, PurePosixPath] = {}
    for line in _lines(proc / "self/cgroup"):  # number:controllers:path; version 2 names none
        _, controllers, group = line.split(":", 2)
        names = controllers.split(",")
        paths |= {name: PurePosixPath(group) for name in ("", "memory") if name in names}
    for line in _lines(proc / "self/mountinfo"):  # ... root mount-point ... - type source options
        before, _, after = line.partition(" - ")
        (kind, _, options), (root, point) = after.split(" ", 2), before.split(" ")[3:5]
        controller = {"cgroup2": "", "cgroup": "memory"}.get(kind)
        if controller not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        mount, path = Path(point), paths[controller]
        # In a container the path may be the host's, or above its namespace: the mount is its group.
        seen = path.is_relative_to(root) and ".." not in path.parts
        yield mount / (path.relative_to(root) if seen else ""), mount


def _group(folder: Path) -> Iterator[int]:
    """What is left under a group's limits; nothing where it has none."""
    for limit, usage, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.high", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed = _lines(folder / limit)
        if allowed in ([], ["max"]):  # version 1 writes a number beyond all memory
            continue
        statistics = dict(line.split() for line in _lines(folder / "memory.stat"))
        used = int("".join(_lines(folder / usage)) or 0) - int(statistics.get(cached, 0))
        yield int(allowed[0]) - used


def _process_limits(used: Any) -> Iterator[int]:
    """What is left under ``ulimit -v`` and ``ulimit -d``, where the shell has set them."""
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
    for megabytes in (number("SLURM_MEM_PER_NODE"), by_cores):
        if megabytes > 0:
            yield megabytes * 2**20 - resident


def _lines(path: Path) -> list[str]:
    """A file's lines; none where it is not there for us to read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
