"""Parts of a task that survive an interruption: their tensors are stored until the task is."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from bnrecon.runtime import files
from bnrecon.runtime.digests import json_values
from bnrecon.runtime.provenance import commit, versions

# For the running task: its folder of pieces, the names requested so far, and the seconds that an
# interrupted attempt spent on those that were read.
TASK: ContextVar[tuple[Path, set[str], list[float]] | None] = ContextVar("task", default=None)


@contextlib.contextmanager
def stored_in(folder: Path) -> Iterator[list[float]]:
    """Store pieces in a folder, which is removed if the block ends without an error.

    Yields the seconds of the pieces that were read instead of computed.
    """
    saved: list[float] = []
    token = TASK.set((folder, set(), saved))
    try:
        yield saved
    finally:
        TASK.reset(token)
    shutil.rmtree(folder, ignore_errors=True)


def piece(
    name: str, settings: Any, compute: Callable[[], Mapping[str, torch.Tensor]]
) -> Mapping[str, torch.Tensor]:
    """The result of ``compute``, read if an interrupted attempt at the same task has stored it.

    For computations that take minutes. A stored result is used only if commit, libraries and
    ``settings``, which are JSON values, are the same: after uncommitted changes of what the code
    computes, change the settings. ``name`` must be unique in the task.

    >>> piece("sums", {}, lambda: {"sum": torch.ones(3).sum()})  # not in a task: not stored
    {'sum': tensor(3.)}
    """
    if (task := TASK.get()) is None:
        return compute()
    folder, names, saved = task
    if name in names:
        raise ValueError(f"the task has two pieces named {name}")
    names.add(name)
    path = folder / f"{name}.safetensors"
    about = {"commit": commit(), "versions": versions(), "settings": settings}
    stored = files.read_if_valid(path, files.read_tensors, quarantine_damaged=True)
    if stored is not None and json_values(about).items() <= stored[1].items():
        saved.append(stored[1]["seconds"])
        return stored[0]
    started = time.monotonic()
    computed = compute()
    files.write_tensors(path, computed, about | {"seconds": time.monotonic() - started})
    return computed
