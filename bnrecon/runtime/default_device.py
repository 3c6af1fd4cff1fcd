"""torch's default device: ours is the processor, a user's own code has the user's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch

__all__ = ["on_processor_by_default", "users_default_device"]

P = ParamSpec("P")
R = TypeVar("R")

PROCESSOR = torch.device("cpu")
GIVEN: ContextVar[torch.device] = ContextVar("default device of the caller", default=PROCESSOR)


def on_processor_by_default(function: Callable[P, R]) -> Callable[P, R]:
    """Let tensors that a function makes lie on the processor unless it says otherwise.

    After ``torch.set_default_device("cuda")`` any tensor that is made without naming a device lies
    there, generators of the processor are refused, and what is put together no longer fits.

    >>> make = on_processor_by_default(lambda: torch.zeros(1))
    >>> with torch.device("meta"):
    ...     make().device
    device(type='cpu')
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        default = torch.get_default_device()
        if default == PROCESSOR:
            return function(*args, **kwargs)
        before = GIVEN.set(default)
        try:
            with PROCESSOR:
                return function(*args, **kwargs)
        finally:
            GIVEN.reset(before)

    return called


def users_default_device() -> contextlib.AbstractContextManager[object]:
    """The caller's default device again, for a model's own code within such a function.

    >>> make = on_processor_by_default(lambda: users_default_device())
    >>> with torch.device("meta"):
    ...     make().type
    'meta'
    """
    given = GIVEN.get()
    return contextlib.nullcontext() if given == PROCESSOR else given
