"""Modes that a caller may have set in torch: bnrecon computes without them, a model with them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

LOCK = threading.RLock()
CPU = torch.device("cpu")
CALLERS_DEVICE: ContextVar[torch.device] = ContextVar("default device of the caller", default=CPU)


def outside_torch_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function as if its caller had set nothing in torch.

    Outside ``torch.inference_mode``: a tensor made inside can never be trained. Outside
    ``torch.autocast``: it would round products to bf16. With the CPU as the default device: after
    ``torch.set_default_device("cuda")`` any tensor made without a device is on the GPU, and
    generators of the CPU are refused.

    >>> make = outside_torch_modes(lambda: torch.zeros(1))
    >>> with torch.inference_mode(), torch.device("meta"):
    ...     made = make()
    >>> made.is_inference(), made.device
    (False, device(type='cpu'))
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        default = torch.get_default_device()
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.inference_mode(False))  # torch.compile takes no mode=False
            for device in ("cpu", "cuda"):
                modes.enter_context(torch.autocast(device, enabled=False))
            if default != CPU:
                modes.callback(CALLERS_DEVICE.reset, CALLERS_DEVICE.set(default))
                modes.enter_context(CPU)
            return function(*args, **kwargs)

    return called


def one_thread_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in one thread at a time: its changes of torch's state affect all threads.

    These are how modules are called while a network is traced, and the precision of products.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with LOCK:
            return function(*args, **kwargs)

    return called


def callers_default_device() -> contextlib.AbstractContextManager[object]:
    """Restore the caller's default device, for a model's code within such a function.

    >>> with torch.device("meta"):
    ...     outside_torch_modes(callers_default_device)().type
    'meta'
    """
    device = CALLERS_DEVICE.get()
    return contextlib.nullcontext() if device == CPU else device
