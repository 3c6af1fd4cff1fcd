"""The tensors in what a function is given, however it is nested, and what a type is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

__all__ = ["dtype_name", "tensors_in"]


def dtype_name(dtype: torch.dtype) -> str:
    """What a message calls a type."""
    return str(dtype).removeprefix("torch.")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, in order.

    >>> [tensor.item() for tensor in tensors_in(({"a": torch.tensor(1)}, [torch.tensor(2)]))]
    [1, 2]
    """
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        value = tuple(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, part.name) for part in fields(value))
    if isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
