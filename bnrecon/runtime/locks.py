"""Locks between processes: the operating system's, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import filelock

from bnrecon.runtime import files
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import UserError

logger = logging.getLogger(__name__)

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}

_are_taken: ContextVar[bool] = ContextVar("locks are taken", default=True)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Take no locks within the block: somebody else sees to it that no two write the same files.

    It is for the jobs of a cluster. Its file systems may have no locks, or ones that hold on one
    machine only, or that stay when a machine fails.
    """
    before = _are_taken.set(False)
    try:
        yield
    finally:
        _are_taken.reset(before)


@contextlib.contextmanager
def lock_file(
    path: Path, waiting: Callable[[], str] | None = None, required: bool = True
) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block, whose value is whether it is held.

    The lock is the operating system's: it is released when its holder is killed, so that no stale
    lock is ever left.

    ``waiting`` makes the message to log while another process holds the lock; without it the block
    does not wait. Unless ``required``, nothing is locked on a file system without such locks.

    Raises:
        UserError: the folder cannot be written, or its file system has no such locks. A lock that
            is merely a file would outlive its holder, and others would wait for ever.
    """
    if not _are_taken.get():
        path.parent.mkdir(parents=True, exist_ok=True)
        yield True
        return
    lock = filelock.FileLock(path, fallback_to_soft=False)
    held = True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if waiting is None:
                held = False
            else:
                logger.warning(waiting())
                lock.acquire()
    except RuntimeError:  # filelock's: this process holds it already, and would wait for itself
        raise UserError(
            f"{path.parent} is locked by this command already: two of its outputs share this "
            "folder; give one of them another"
        ) from None
    except OSError as error:
        if error.errno in NO_LOCKS and required:
            raise UserError(
                f"{path.parent} is on a file system without file locks ({error.strerror}), which "
                "keep processes from writing the same files: give outputs=FOLDER on another one, "
                "such as a local disk, and copy the results from there"
            ) from None
        if error.errno not in NO_LOCKS:
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); "
                "give outputs=FOLDER, a folder of yours"
            ) from None
    try:
        yield held
    finally:
        lock.release()


@contextlib.contextmanager
def lock_folder(folder: Path, purpose: str, shared: bool = False) -> Iterator[None]:
    """Hold a folder's lock for the block. A second process waits, and logs for what and for whom.

    ``shared`` says whether folders in it may be locked and written by others meanwhile.
    """
    with lock_file(folder / ".lock", lambda: f"waiting for {holder(folder)} to finish {purpose}"):
        if _are_taken.get():
            # Left by a process that was killed while it wrote; only the holder writes here.
            for path, _, _ in files.partial_files(folder, below=not shared):
                path.unlink(missing_ok=True)
        files.remove_leftovers(folder)
        with contextlib.suppress(OSError):  # for those who wait; the lock does not need it
            files.write_text(folder / ".holder", f"process {os.getpid()} on {socket.gethostname()}")
        yield


def holder(folder: Path) -> str:
    """Who holds a folder's lock, as far as it says."""
    who, path = "", folder / ".holder"
    with contextlib.suppress(OSError, ValueError):
        files.require_regular(path)
        who = path.read_text(encoding="utf-8")[:100].strip()
    return who or "another process"


def lock_work(
    name: str, folder: Path, waiting: Callable[[], str] | None = None
) -> contextlib.AbstractContextManager[bool]:
    """Hold the lock of a piece of work, of one name in all commands on a machine that share it."""
    return lock_file(folder / content_key({"name": name}), waiting)
