"""Several processes that train one network together, as torchrun starts them: one a GPU, or one a core."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed

__all__ = ["any_of", "first_of", "joined", "place", "started_by_torchrun", "total"]


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def place() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) for one alone."""
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, each on a GPU of its own where ``device`` is one; does nothing in a process alone."""
    if not started_by_torchrun():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # The others wait while the first holds or awaits a target's lock, or tests it; torchrun itself ends those whose peer died.
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=datetime.timedelta(days=1))
    try:
        yield
    finally:
        distributed.destroy_process_group()


def total(values: torch.Tensor) -> torch.Tensor:
    """Sum over all processes, the same in each."""
    if place()[1] == 1:
        return values
    values = values.clone()
    distributed.all_reduce(values)
    return values


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process."""
    return bool(total(torch.tensor(float(flag), device=device)))


def first_of(value: Any) -> Any:
    """The first process's value, in all of them; the others wait for it."""
    if place()[1] == 1:
        return value
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]
