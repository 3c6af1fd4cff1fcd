"""Tensors in a temporary file: mapped into memory, removed with the process."""

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

IN_MEMORY = ("tmpfs", "ramfs")  # file systems in memory, not on disk


def disk_folder() -> Path:
    """The folder of such files: the system's temporary folder, which ``TMPDIR`` chooses.

    Raises:
        UserError: ``TMPDIR`` is not a writable folder; Python would use another one.
    """
    chosen = os.environ.get("TMPDIR")
    if chosen and not (Path(chosen).is_dir() and os.access(chosen, os.W_OK | os.X_OK)):
        raise UserError(
            f"TMPDIR={chosen}: not a folder that can be written to; create it, or set TMPDIR to "
            "another one"
        )
    return Path(chosen or tempfile.gettempdir())  # cached for the process: TMPDIR may change


def disk_room() -> int:
    """Free bytes of that folder's disk; 0 if it is in memory."""
    folder = disk_folder()
    return 0 if _kept_in_memory(folder) else shutil.disk_usage(folder).free


def _kept_in_memory(folder: Path) -> bool:
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    mount = next((path for path in (resolved, *resolved.parents) if path in mounts), None)
    return mount is not None and mounts[mount] in IN_MEMORY


def mapped_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in an unnamed file: no other process sees it, and none has to remove it.

    Its disk space is freed with the tensor, or when the process ends in any way.

    Raises:
        UserError: ``TMPDIR`` is not a writable folder.
        RunError: the disk is full, or the folder is in memory.

    >>> mapped_tensor((2, 3), torch.float32).fill_(2).sum()
    tensor(12.)
    """
    size, folder = math.prod(shape) * dtype.itemsize, disk_folder()
    if _kept_in_memory(folder):
        raise RunError(
            f"storage=disk: {folder} is in memory, not on disk; set TMPDIR to a folder on a disk"
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
    """Reserve a file's disk space: a failed write to a mapped file is not a clean error."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
