"""Tensors that lie in a temporary file: mapped into memory, gone with the process."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import torch

from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.units import format_bytes

IN_MEMORY = ("tmpfs", "ramfs")  # file systems that take memory, not disk


def disk_folder() -> Path:
    """Where such files are: the system's temporary folder, which ``TMPDIR`` chooses.

    Raises:
        UserError: ``TMPDIR`` is no folder that can be written to; Python would take another one.
    """
    chosen = os.environ.get("TMPDIR")
    if chosen and not (Path(chosen).is_dir() and os.access(chosen, os.W_OK | os.X_OK)):
        raise UserError(
            f"TMPDIR={chosen}: not a folder that can be written to; create it, or set TMPDIR to "
            "another one"
        )
    return Path(chosen or tempfile.gettempdir())  # which is kept for the process: TMPDIR may change


def disk_room() -> int:
    """Free bytes of that folder's disk; 0 where it is kept in memory."""
    folder = disk_folder()
    return 0 if _kept_in_memory(folder) else shutil.disk_usage(folder).free


def _kept_in_memory(folder: Path) -> bool:
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    mount = next((path for path in (resolved, *resolved.parents) if path in mounts), None)
    return mount is not None and mounts[mount] in IN_MEMORY


def mapped_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in a file that has no name: no other process sees it, and none has to remove it.

    Its disk is free again when the tensor is, or the process ends in whatever way.

    Raises:
        UserError: ``TMPDIR`` is no folder that can be written to.
        RunError: the disk is full, or the folder is kept in memory.

    >>> mapped_tensor((2, 3), torch.float32).fill_(2).sum()
    tensor(12.)
    """
    size, folder = math.prod(shape) * dtype.itemsize, disk_folder()
    if _kept_in_memory(folder):
        raise RunError(
            f"storage=disk: {folder} is kept in memory; set TMPDIR to a folder on a disk"
        )
    try:
        with tempfile.TemporaryFile(prefix="bnrecon-", dir=folder) as file:
            _reserve(file.fileno(), size)
            content = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise RunError(
            f"storage=disk: no room for {format_bytes(size)} of features in {folder}: "
            f"{error.strerror}; set TMPDIR to a folder on a larger disk"
        ) from None
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def _reserve(file: int, size: int) -> None:
    """Give a file its room on the disk: writing to a mapped file cannot fail in a clean way."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
