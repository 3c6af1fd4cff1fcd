"""Several processes that train one network together, as torchrun starts them: one a GPU, or one a core."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import distributed

from bnrecon.runtime.errors import Interrupted, RunError, UserError

__all__ = [
    "after_first",
    "any_of",
    "common",
    "first_of",
    "joined",
    "place",
    "refuse",
    "started_by_torchrun",
    "total",
]


T = TypeVar("T")


_control: list[
    distributed.ProcessGroup
] = []  # objects and long waits, beside the group of gradients


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def refuse(what: str) -> None:
    """Raise ``UserError`` under torchrun, for what one process does."""
    if started_by_torchrun():
        raise UserError(
            f"torchrun is for bnrecon train; {what} takes the targets that it trained, in one process"
        )


def place() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) for one alone."""
    return (
        (distributed.get_rank(), distributed.get_world_size())
        if distributed.is_initialized()
        else (0, 1)
    )


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, each on a GPU of its own where ``device`` is one; does nothing in a process alone.

    A process that fails leaves at once, without a farewell that the others would have to join: torchrun then ends them.
    """
    if not started_by_torchrun():
        yield
        return
    if device.type == "cuda":
        number, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= there:
            raise UserError(
                f"{os.environ.get('LOCAL_WORLD_SIZE')} processes on a machine of {there} GPUs; give --nproc-per-node={there}"
            )
        torch.cuda.set_device(number)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    # The others wait here while the first awaits a target's lock, or tests it: hours, perhaps.
    _control.append(distributed.new_group(backend="gloo", timeout=datetime.timedelta(days=1)))
    yield
    _control.clear()
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


def first_of(make: Callable[[], T]) -> T:
    """What ``make`` returns in the first process, in all of them; the others wait for it.

    A mistake or failure in the first is raised in all, and said by the first alone.
    """
    rank, size = place()
    if size == 1:
        return make()
    held: list = [None, None]
    if rank == 0:
        try:
            held[0] = make()
        except (UserError, RunError, Interrupted) as error:
            held[1] = error
    try:
        distributed.broadcast_object_list(held, src=0, group=_control[0])
    except RuntimeError:
        raise RunError("another process failed; what it said stands above") from None
    if held[1] is not None:
        raise common(held[1])
    return held[0]


def after_first(make: Callable[[], T]) -> T:
    """What ``make`` returns, called in the first process and then in the others: what it writes or downloads is there by then."""
    held: list[T] = []
    first_of(lambda: held.append(make()))
    return held[0] if held else make()


def common(error: BaseException) -> BaseException:
    """Mark an error that all processes raise, so that it is printed once."""
    error.said_elsewhere = place()[0] != 0
    return error
