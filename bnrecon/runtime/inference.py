"""Functions whose networks can be trained, wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["outside_inference_mode"]

Function = TypeVar("Function", bound=Callable[..., object])


def outside_inference_mode(function: Function) -> Function:
    """Run a function outside ``torch.inference_mode``, even if its caller is inside.

    A tensor made inside can never be trained: autograd refuses it for good.

    >>> make = outside_inference_mode(lambda: torch.zeros(1))
    >>> with torch.inference_mode():
    ...     make().is_inference()
    False
    """
    return torch.inference_mode(mode=False)(function)
