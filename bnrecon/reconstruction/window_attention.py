"""Swin's window attention, with projections called as layers, unlike torchvision's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.swin_transformer import ShiftedWindowAttention, ShiftedWindowAttentionV2

from bnrecon.reconstruction.kernels import Unpacked, is_plain


class WindowAttention(Unpacked, ShiftedWindowAttention):
    """A ``ShiftedWindowAttention`` that calls its layers ``qkv`` and ``proj``.

    torchvision passes their weights to a function. Here the function gets an object that calls the
    layer in place of each weight.

    >>> _ = torch.manual_seed(0)
    >>> packed = ShiftedWindowAttention(4, [2, 2], [1, 1], 2).eval()
    >>> calling, x = WindowAttention(4, [2, 2], [1, 1], 2).eval(), torch.randn(1, 6, 6, 4)
    >>> _ = calling.load_state_dict(packed.state_dict())
    >>> torch.equal(calling(x), packed(x))
    True
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(images, height, width, channels) to the same."""
        return ShiftedWindowAttention.forward(cast(Any, _Calls(self)), x)


class WindowAttentionV2(Unpacked, ShiftedWindowAttentionV2):
    """The same for ``ShiftedWindowAttentionV2``, which removes the bias from its keys.

    Keys are normalized, and those of the zeros that pad a window are 0. A source layer's keys, 0 up
    to rounding, would become vectors of length 1, so they are set to 0.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(images, height, width, channels) to the same."""
        return ShiftedWindowAttentionV2.forward(cast(Any, _Calls(self, _unbiased_keys)), x)


class _CalledWeight:
    """Replaces a layer's weight: ``F.linear`` with it calls the layer."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]):
        self.call = call

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> torch.Tensor:
        if function is not F.linear or kwargs or any(bias is not None for bias in args[2:]):
            raise NotImplementedError(f"{function} is given a projection's weight, not F.linear")
        x, weight = args[:2]
        return weight.call(x)


class _Calls:
    """An attention as its own ``forward`` sees it; ``apply(qkv, x)`` calls its first projection."""

    def __init__(
        self,
        attention: ShiftedWindowAttention,
        apply: Callable[[nn.Module, torch.Tensor], torch.Tensor] = nn.Module.__call__,
    ):
        self.attention = attention
        calls = (partial(apply, attention.qkv), attention.proj)
        # Layers add their biases themselves.
        self.qkv, self.proj = (SimpleNamespace(weight=_CalledWeight(c), bias=None) for c in calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.attention, name)


def _unbiased_keys(qkv: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values of x (windows, tokens, channels), the keys without bias."""
    # The bias is the key of an added zero token; keys of other zero tokens are set to exactly 0.
    query, key, value = qkv(F.pad(x, (0, 0, 0, 1))).chunk(3, -1)
    filled = (x == 0).all(-1, keepdim=True)
    unbiased = (key[:, :-1] - key[:, -1:]).masked_fill(filled, 0)
    return torch.cat([query[:, :-1], unbiased, value[:, :-1]], -1)


CALLING = {ShiftedWindowAttention: WindowAttention, ShiftedWindowAttentionV2: WindowAttentionV2}


def reads_projections(module: nn.Module) -> bool:
    """Whether an attention reads its projections' weights without calling the projections."""
    is_attention = isinstance(module, ShiftedWindowAttention)
    return is_attention and type(module).forward in {kind.forward for kind in CALLING}


def call_projections(attention: nn.Module) -> None:
    """Make an unchanged torchvision attention call its projections, in place.

    Excluded are attentions that override ``forward``, whose projections have hooks (which
    torchvision's does not run), or with parts that are not PyTorch's: a trace does not look inside.
    """
    calling = CALLING.get(type(attention))
    if calling is None or "forward" in vars(attention):
        return
    parts: Any = (attention.qkv, attention.proj)
    plain = all(isinstance(part, nn.Linear) and is_plain(part) for part in parts)
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in parts)
    inside = list(attention.modules())[1:]
    of_torch = all(type(part).__module__.partition(".")[0] == "torch" for part in inside)
    if plain and of_torch and not hooked:
        attention.__class__ = calling


def pack_projections(module: nn.Module) -> None:
    """Turn an attention with linear projections back into torchvision's, in place."""
    kinds: dict[type, type] = {calling: packed for packed, calling in CALLING.items()}
    packed = kinds.get(type(module))
    if packed and all(isinstance(part, nn.Linear) for part in (module.qkv, module.proj)):
        module.__class__ = packed
