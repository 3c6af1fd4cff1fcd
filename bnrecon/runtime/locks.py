"""Locks between processes: the operating system's, which fall with the process that holds them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import filelock

from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.files import Damaged, require_regular, write_text

__all__ = ["claimed", "exclusive", "shared"]


@contextlib.contextmanager
def claimed(path: Path, waiting: Callable[[], str] | None = None) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block, whose value is whether it is held.

    Where another process holds it: say what ``waiting`` gives and wait, or without it take no for an answer. The lock is the operating
    system's: it falls when its holder is killed, so nothing stale is ever left.

    Raises ``UserError`` where the folder cannot be written, or lies on a file system without such locks: a lock that is merely a file
    would outlive its holder, and others would wait for ever.
    """
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if waiting is None:
            yield False
            return
        print(waiting(), file=sys.stderr, flush=True)
        lock.acquire()
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise UserError(
                f"{path.parent} is on a file system without file locks ({error.strerror}), by which processes keep out of each other's "
                "way: give outputs=FOLDER on another, a local disk say, and copy the results from there"
            ) from None
        if error.errno in (
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.ENOTDIR,
            errno.ENAMETOOLONG,
            errno.ENOENT,
            errno.EEXIST,
            errno.ELOOP,
        ):
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); give outputs=FOLDER, a folder of yours"
            ) from None
        raise
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(folder: Path, purpose: str) -> Iterator[None]:
    """Hold a folder's lock for the block. A second process waits and says for what and for whom."""
    holder = folder / ".holder"

    def waiting() -> str:
        try:
            require_regular(holder)
            who = holder.read_text(encoding="utf-8", errors="replace")[:100].strip()
        except (OSError, Damaged):
            who = ""
        return f"waiting for {who or 'another process'} to finish {purpose}"

    with claimed(folder / ".lock", waiting):
        for left in folder.rglob(
            ".*.part"
        ):  # by a process killed while writing; nobody else writes here now
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is for those who wait; the lock does not need it
            write_text(holder, f"process {os.getpid()} on {socket.gethostname()}")
        yield


def shared(names: Iterable[str], locks: Path) -> Iterator[str]:
    """Share work between processes: yield each name while its lock is held, first those that nobody has, then the others.

    A name comes to every process, to the later ones when it is done or its holder died: ask then whether it is done.
    """
    left = list(names)
    for waiting in (None, lambda: "waiting for another process that shares this work"):
        for name in list(left):
            with claimed(locks / content_key({"name": name}), waiting) as mine:
                if mine:
                    left.remove(name)
                    yield name
