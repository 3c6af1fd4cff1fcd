"""Swin's attention over windows, its projections called as layers, which torchvision's are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.swin_transformer import ShiftedWindowAttention, ShiftedWindowAttentionV2

from bnrecon.reconstruction.attention import Unpacked
from bnrecon.reconstruction.kernels import is_plain

__all__ = ["WindowAttention", "WindowAttentionV2", "unpack_windows"]


class WindowAttention(Unpacked, ShiftedWindowAttention):
    """What a ``ShiftedWindowAttention`` computes, by calls of its layers ``qkv`` and ``proj``.

    torchvision's gives their weights to a function. Here that function is given, in place of each
    weight, an object that calls the layer.

    >>> _ = torch.manual_seed(0)
    >>> packed = ShiftedWindowAttention(4, [2, 2], [1, 1], 2).eval()
    >>> own, x = WindowAttention(4, [2, 2], [1, 1], 2).eval(), torch.randn(1, 6, 6, 4)
    >>> _ = own.load_state_dict(packed.state_dict())
    >>> torch.equal(own(x), packed(x))
    True
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(images, height, width, channels) to the same."""
        return ShiftedWindowAttention.forward(cast(Any, _Calls(self)), x)


class WindowAttentionV2(Unpacked, ShiftedWindowAttentionV2):
    """The same of a ``ShiftedWindowAttentionV2``: its keys have no bias (``unpack_windows``).

    Keys are normalized, and those of the zeros that fill up a window are 0. A source layer's, 0 up
    to rounding, would become vectors of length 1: they are set to 0.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(images, height, width, channels) to the same."""
        return ShiftedWindowAttentionV2.forward(cast(Any, _Calls(self, _without_keys_of_zeros)), x)


class _CalledWeight:
    """Stands for a layer's weight: ``F.linear`` with it is a call of the layer."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]):
        self.call = call

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> torch.Tensor:
        """Call the layer; another function than ``F.linear`` is a mistake."""
        if function is not F.linear or kwargs or any(bias is not None for bias in args[2:]):
            raise NotImplementedError(f"{function} is given a projection's weight, not F.linear")
        given, weight = args[:2]
        return weight.call(given)


def _without_keys_of_zeros(qkv: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values of x, with keys of exactly 0 where x is 0."""
    query, key, value = qkv(x).chunk(3, -1)
    filled = (x == 0).all(-1, keepdim=True)
    return torch.cat([query, key.masked_fill(filled, 0), value], -1)


class _Calls:
    """An attention as its own ``forward`` sees it, with ``_CalledWeight`` for its weights.

    Args:
        attention: whose projections are called.
        apply: ``apply(qkv, x)`` calls the first of them.
    """

    def __init__(
        self,
        attention: ShiftedWindowAttention,
        apply: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda qkv, x: qkv(x),
    ):
        self.attention = attention
        calls = (partial(apply, attention.qkv), attention.proj)
        # Layers add their biases themselves.
        self.qkv, self.proj = (SimpleNamespace(weight=_CalledWeight(c), bias=None) for c in calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.attention, name)


OWN = {ShiftedWindowAttention: WindowAttention, ShiftedWindowAttentionV2: WindowAttentionV2}


def unpack_windows(
    packed: nn.Module, copy: Callable[[nn.Module, dict[int, object]], nn.Module]
) -> nn.Module | None:
    """A copy that shares the tensors and calls its projections; ``None`` where there can be none.

    Swin V2 takes the bias off the keys in every call: in the copy that part of ``qkv``'s is 0.

    Args:
        packed: one of torchvision's two classes, not changed; any other module gives ``None``.
        copy: as ``substitute``.
    """
    if type(packed) not in OWN or "forward" in vars(packed):
        return None
    qkv: Any = packed.qkv
    for part in (qkv, packed.proj):
        if not isinstance(part, nn.Linear) or not is_plain(part):
            return None
        if part._forward_hooks or part._forward_pre_hooks:
            return None  # torchvision's does not run them
    tensors = (*packed.parameters(), *packed.buffers())
    unpacked: Any = copy(packed, {id(value): value for value in tensors})
    unpacked.__class__ = OWN[type(packed)]
    if isinstance(packed, ShiftedWindowAttentionV2) and qkv.bias is not None:
        without, third = qkv.bias.detach().clone(), len(qkv.bias) // 3
        without[third : 2 * third] = 0
        unpacked.qkv.bias = nn.Parameter(without, qkv.bias.requires_grad)
    return unpacked
