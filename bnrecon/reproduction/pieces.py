"""Parts of a task that outlive an interruption: their tensors are stored until the task is."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

import torch

from bnrecon.runtime import files

# The running task's folder of pieces, and the names that it has asked for.
TASK: ContextVar[tuple[Path, set[str]] | None] = ContextVar(
    "pieces of the running task", default=None
)


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Store pieces in a folder; once the block has ended, and its result is stored, it goes."""
    token = TASK.set((folder, set()))
    try:
        yield
    finally:
        TASK.reset(token)
    shutil.rmtree(folder, ignore_errors=True)


def piece(
    name: str, compute: Callable[[], Mapping[str, torch.Tensor]]
) -> Mapping[str, torch.Tensor]:
    """What ``compute`` returns, read where an interrupted attempt at the same task has stored it.

    For what takes minutes; no other piece of the task has its ``name``, which a file gets.

    >>> piece("sums", lambda: {"sum": torch.ones(3).sum()})  # not in a task: nothing is stored
    {'sum': tensor(3.)}
    """
    if (task := TASK.get()) is None:
        return compute()
    folder, names = task
    if name in names:
        raise ValueError(f"the task has two pieces named {name}")
    names.add(name)
    path = folder / f"{name}.safetensors"
    stored = files.read_if_valid(path, files.read_tensors, quarantine_damaged=True)
    if stored is not None:
        return stored[0]
    computed = compute()
    files.write_tensors(path, computed, {})
    return computed
