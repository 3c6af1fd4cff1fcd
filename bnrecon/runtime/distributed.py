"""Processes that train a network or solve a layer together, as torchrun starts them."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import distributed

from bnrecon.runtime.errors import CLEAR_ERRORS, ReportedElsewhere, RunError, UserError

T = TypeVar("T")

# A separate group for objects and long waits; the default one averages gradients.
_control: Any = None


def is_started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def refuse_torchrun(command: str) -> None:
    """Raise ``UserError`` under torchrun, for a command that runs in one process."""
    if is_started_by_torchrun():
        raise UserError(
            f"torchrun is for bnrecon train; {command} takes the targets that it trained, "
            "in one process"
        )


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) for a single process."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


@contextlib.contextmanager
def join_processes(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, each with its own GPU if ``device`` is one.

    Does nothing in a single process. A process that fails leaves at once, without a barrier that
    the others would have to reach: torchrun then ends them.

    Raises:
        UserError: there are more processes than GPUs.
    """
    if not is_started_by_torchrun():
        yield
        return
    if device.type == "cuda":
        number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= count:
            raise UserError(
                f"{os.environ.get('LOCAL_WORLD_SIZE')} processes on a machine of {count} GPUs; "
                f"give --nproc-per-node={count}"
            )
        torch.cuda.set_device(number)
    global _control
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    # The others wait here, maybe for hours, while the first waits for a target's lock or tests it.
    _control = distributed.new_group(backend="gloo", timeout=datetime.timedelta(days=1))
    yield
    _control = None
    distributed.destroy_process_group()


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes, the same in each."""
    if rank_and_world_size()[1] == 1:
        return values
    values = values.clone()
    with _reaching_others():
        distributed.all_reduce(values)
    return values


def gather_from_ranks(values: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all processes, of one shape; the same list in each process."""
    if rank_and_world_size()[1] == 1:
        return [values]
    gathered = [torch.empty_like(values) for _ in range(rank_and_world_size()[1])]
    with _reaching_others():
        distributed.all_gather(gathered, values)
    return gathered


@contextlib.contextmanager
def _reaching_others() -> Iterator[None]:
    """Raise ``RunError`` if another process cannot be reached."""
    try:
        yield
    except RuntimeError:
        raise RunError("another process failed; see its message above") from None


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process."""
    return bool(sum_over_ranks(torch.tensor(float(flag), device=device)))


def run_on_first_rank(function: Callable[[], T]) -> T:
    """Call ``function`` in the first process and return its result in all; the others wait.

    An error is raised in all processes, and reported only by the first one.
    """
    rank, size = rank_and_world_size()
    if size == 1:
        return function()
    outcome: list[Any] = [None, None]  # result, error
    if rank == 0:
        try:
            outcome[0] = function()
        except CLEAR_ERRORS as error:
            outcome[1] = error
    with _reaching_others():
        distributed.broadcast_object_list(outcome, src=0, group=_control)
    if outcome[1] is not None:
        raise report_once(outcome[1])
    return outcome[0]


def run_on_first_rank_before_others(function: Callable[[], T]) -> T:
    """Call ``function`` in the first process, then in the others, and return each one's result.

    The others see what the first call has written or downloaded.
    """
    results: list[T] = []
    run_on_first_rank(lambda: results.append(function()))
    return results[0] if results else function()


def report_once(error: Exception) -> Exception:
    """The error to raise if all processes fail alike: only the first one reports it."""
    return error if rank_and_world_size()[0] == 0 else ReportedElsewhere(str(error))
