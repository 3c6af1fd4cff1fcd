"""Convolutions in float64 that are fast where a map has few positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

FEW_POSITIONS = 16  # of the output; one product was 2 to 6 times as fast with 4, no faster with 64


def by_side(value: int | Sequence[int]) -> tuple[int, ...]:
    """A number for each of two sides; a single one, also in a tuple, holds for both.

    >>> by_side(3), by_side([3]), by_side((3, 1))
    ((3, 3), (3, 3), (3, 1))
    """
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * (2 // len(numbers))


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """``F.conv2d`` up to rounding, by one product for all inputs if a map has few positions.

    PyTorch's, in float64 on a CPU, reads all weights once for each input.

    >>> x, weight = torch.ones(2, 3, 4, 4).double(), torch.ones(5, 3, 3, 3).double()
    >>> torch.equal(conv2d(x, weight, padding=1), F.conv2d(x, weight, padding=1))
    True
    """
    if groups == 1 and not isinstance(padding, str):
        s, p, d = map(by_side, (stride, padding, dilation))
        sizes = [
            (x.shape[2 + i] + 2 * p[i] - d[i] * (weight.shape[2 + i] - 1) - 1) // s[i] + 1
            for i in (0, 1)
        ]
        if 0 < math.prod(sizes) <= FEW_POSITIONS:
            patches = F.unfold(x, weight.shape[2:], d, p, s).transpose(0, 1).flatten(1)
            maps = (weight.flatten(1) @ patches).unflatten(1, (len(x), -1)).transpose(0, 1)
            maps = maps if bias is None else maps + bias[:, None]
            return maps.contiguous().unflatten(2, sizes)
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


class FastConvolutions(TorchFunctionMode):
    """Replaces a network's calls of ``F.conv2d`` by ``conv2d``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace one function; call the others unchanged."""
        return (conv2d if func is F.conv2d else func)(*args, **(kwargs or {}))
