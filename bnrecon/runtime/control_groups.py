"""The control groups of Linux that this process is in: what jobs and containers limit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def groups(controller: str, proc: Path = Path("/proc")) -> Iterator[Path]:
    """The folders of the process's own group and of those above it, as far as they are seen here.

    Of version 1 each ``controller``, such as ``memory``, has its own; those of version 2 have all.
    """
    for folder, mount in _own_groups(controller, proc):
        for level in (folder, *folder.parents):
            yield level
            if level == mount:
                break


def _own_groups(controller: str, proc: Path) -> Iterator[tuple[Path, Path]]:
    """The process's own group and its mount: of version 2, of the controller, or of both."""
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
        if ".." in PurePosixPath(root).parts:  # mounted outside the process's namespace
            yield _search(mount), mount
            continue
        # In a container the path may be the host's, or above its namespace: the mount is its group.
        seen = path.is_relative_to(root) and ".." not in path.parts
        yield mount / (path.relative_to(root) if seen else ""), mount


def _search(mount: Path) -> Path:
    """The group that lists this process, or the highest one."""
    own = str(os.getpid())
    found = (folder for folder in mount.glob("**/") if own in lines(folder / "cgroup.procs"))
    return next(found, mount)


def processor_limits(proc: Path = Path("/proc")) -> Iterator[int]:
    """How many processors' time the groups allow; a part of one counts as one."""
    for folder in groups("cpu", proc):
        quota = " ".join(lines(folder / "cpu.max")).split()  # "150000 100000", or "max 100000"
        for name in ("quota", "period"):  # version 1; -1 for no limit
            quota += lines(folder / f"cpu.cfs_{name}_us")
        if len(quota) == 2 and quota[0].isdecimal() and int(quota[1]):
            yield max(1, math.ceil(int(quota[0]) / int(quota[1])))


def lines(path: Path) -> list[str]:
    """A file's lines; none where it is not there for us to read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
