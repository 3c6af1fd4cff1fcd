"""Locks between processes, by the operating system: they end with the process that holds them."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
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
    """Take no locks within the block: the caller ensures that no two processes write a file.

    For the jobs of a cluster: its file systems may have no locks, or locks that hold on one machine
    only, or that remain when a machine fails.
    """
    before = _are_taken.set(False)
    try:
        yield
    finally:
        _are_taken.reset(before)


@contextlib.contextmanager
def lock_file(
    path: Path,
    waiting: Callable[[], str] | None = None,
    required: bool = True,
    option: str = "outputs",
) -> Iterator[bool]:
    """Hold the lock file ``path`` within the block; yields whether it is held.

    The operating system releases the lock when its holder is killed, so that there are no stale
    locks.

    ``waiting`` makes the message to log while another process holds the lock; without it the block
    does not wait. Unless ``required``, nothing is locked on a file system without such locks.

    Raises:
        UserError: the folder cannot be written, or its file system has no such locks. A lock that
            is only a file would outlive its holder, and others would wait forever.
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
    except RuntimeError:  # filelock's: this process already holds it, and would wait for itself
        raise UserError(
            f"{path.parent} is locked by this command already: two of its outputs share this "
            "folder; give one of them another"
        ) from None
    except OSError as error:
        if error.errno in NO_LOCKS and required:
            raise UserError(
                f"{path.parent} is on a file system without file locks ({error.strerror}), which "
                f"keep processes from writing the same files: give {option}=FOLDER on another one, "
                "such as a local disk, and copy the results from there"
            ) from None
        if error.errno not in NO_LOCKS:
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); "
                f"give {option}=FOLDER, a folder of yours"
            ) from None
    try:
        yield held
    finally:
        lock.release()


@contextlib.contextmanager
def lock_folder(
    folder: Path, purpose: str, shared: bool = False, option: str = "outputs"
) -> Iterator[None]:
    """Hold a folder's lock within the block. Another process waits, and logs for what and whom.

    ``shared`` says whether other processes may lock and write folders in it meanwhile, ``option``
    which option names the folder, for messages.
    """
    with lock_file(
        folder / ".lock",
        lambda: f"waiting for {holder(folder)} to finish {purpose}",
        option=option,
    ):
        # Only the holder writes here: partial files are of killed processes.
        alone = _are_taken.get() and not shared
        files.remove_partial_files(folder, -math.inf if alone else files.DAY)
        with contextlib.suppress(OSError):  # for waiting processes; the lock does not need it
            files.write_text(folder / ".holder", f"process {os.getpid()} on {socket.gethostname()}")
        yield


def holder(folder: Path) -> str:
    """The recorded holder of a folder's lock."""
    who, path = "", folder / ".holder"
    with contextlib.suppress(OSError, ValueError):
        files.require_regular(path)
        who = path.read_text(encoding="utf-8")[:100].strip()
    return who or "another process"


def lock_work(
    name: str, folder: Path, waiting: Callable[[], str] | None = None
) -> contextlib.AbstractContextManager[bool]:
    """Hold the lock of an item of work; commands on a machine that share it use the same name."""
    return lock_file(folder / content_key({"name": name}), waiting)
