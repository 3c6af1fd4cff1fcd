"""Attention whose projections are separate layers, unlike those of ``nn.MultiheadAttention``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from bnrecon.reconstruction.kernels import Unpacked, make_layer
from bnrecon.reconstruction.substitution import substitute

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
FUSED = (nn.TransformerEncoderLayer, nn.TransformerEncoder)  # with a fast path in eval mode
SWIN = "torchvision.models.swin_transformer"


class Attention(Unpacked):
    """An ``nn.MultiheadAttention`` with four linear layers.

    ``nn.MultiheadAttention`` packs its weights into one tensor, or keeps three, and applies them
    without a module. Here ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj`` are modules that can
    be replaced; they share memory with the packed weights. PyTorch's function computes the
    attention, with identity projections.

    >>> _ = torch.manual_seed(0)
    >>> packed, x = nn.MultiheadAttention(4, 2).eval(), torch.randn(3, 1, 4)
    >>> torch.allclose(Attention(packed)(x, x, x)[0], packed(x, x, x)[0], atol=1e-6)
    True
    """

    def __init__(self, packed: nn.MultiheadAttention):
        super().__init__()
        self.embed_dim, self.kdim, self.vdim = packed.embed_dim, packed.kdim, packed.vdim
        self.num_heads, self.head_dim = packed.num_heads, packed.head_dim
        self.batch_first, self.add_zero_attn = packed.batch_first, packed.add_zero_attn
        self.dropout: float = packed.dropout
        self._qkv_same_embed_dim = packed._qkv_same_embed_dim  # transformers' layers ask for it
        weights = [getattr(packed, f"{name}_weight") for name in PROJECTIONS]
        if self._qkv_same_embed_dim:
            weights = list(packed.in_proj_weight.chunk(3))
        biases = getattr(packed, "in_proj_bias", None)
        parts = (None,) * 3 if biases is None else biases.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, parts)
        self.out_proj = _linear(packed.out_proj.weight, packed.out_proj.bias)
        self.bias_k, self.bias_v = packed.bias_k, packed.bias_v

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Arguments and results of ``nn.MultiheadAttention``."""
        swap = self.batch_first and query.ndim == 3
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if swap:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        same = torch.eye(self.embed_dim, dtype=q.dtype, device=q.device)
        unpacked: Any = dict.fromkeys((f"{name}_weight" for name in PROJECTIONS), same)
        sizes, packed_weights = (self.embed_dim, self.num_heads), (None, None)
        added = (self.bias_k, self.bias_v, self.add_zero_attn)
        out, weights = F.multi_head_attention_forward(
            *(q, k, v, *sizes, *packed_weights, *added, self.dropout, same, None),
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=True,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            **unpacked,
        )
        out = self.out_proj(out)
        return out.transpose(0, 1) if swap else out, weights

    @property
    def in_proj_weight(self) -> torch.Tensor | None:
        """The packed weight, for code that reads it; ``None`` where it is not packed."""
        weights = [getattr(self, name).weight for name in PROJECTIONS]
        return torch.cat(weights) if self._qkv_same_embed_dim else None

    @property
    def in_proj_bias(self) -> torch.Tensor | None:
        """The packed bias, for code that reads it."""
        biases = [getattr(self, name).bias for name in PROJECTIONS]
        return None if biases[0] is None else torch.cat(biases)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer that shares this weight's memory."""
    (outputs, inputs), trained = weight.shape, weight.requires_grad
    shift = None if bias is None else nn.Parameter(bias.detach(), trained)
    kernel = nn.Parameter(weight.detach(), trained)
    return make_layer(nn.Linear, kernel, shift, in_features=inputs, out_features=outputs)


def attention_refusal(module: nn.MultiheadAttention) -> str | None:
    """Say why an attention's projections cannot be unpacked; ``None`` if they can."""
    code = (type(module).forward, type(module.out_proj).forward)
    if code != (nn.MultiheadAttention.forward, nn.Linear.forward) or "forward" in vars(module):
        return f"{type(module).__name__} computes something of its own, not a plain attention"
    parts = (module, module.out_proj)
    if any(parametrize.is_parametrized(part) for part in parts):
        return "its projections are parametrized: remove the parametrizations first"
    if any(part._forward_hooks or part._forward_pre_hooks for part in parts):
        return "its forward hooks would be lost with it: remove them first"
    return None


def _has_fast_path(model: nn.Module) -> bool:
    return any(isinstance(module, FUSED) for module in model.modules())


def fast_path_notes(model: nn.Module) -> list[str]:
    """What a user of ``unpack`` should know."""
    note = (
        "the fast path of TransformerEncoderLayer, which bypasses its parts, is off in the source "
        "network; with a padding mask, that path may write zeros to hidden positions"
    )
    return [note] if _has_fast_path(model) else []


def _windows() -> ModuleType | None:
    """The module that handles torchvision's Swin, if a model may contain it."""
    if SWIN not in sys.modules:
        return None
    from bnrecon.reconstruction import window_attention

    return window_attention


def reads_projections(module: nn.Module) -> bool:
    """Whether a Swin attention reads its projections' weights instead of calling them."""
    return (windows := _windows()) is not None and windows.reads_projections(module)


def pack(network: nn.Module) -> nn.Module:
    """Turn Swin attentions with linear projections back into torchvision's, in place."""
    if (windows := _windows()) is not None:
        for module in network.modules():
            windows.pack_projections(module)
    return network


def unpack(model: nn.Module, stays_packed: Callable[[str], bool] = lambda _: False) -> nn.Module:
    """Copy a model with its attentions unpacked; return the model itself if there are none.

    These are ``nn.MultiheadAttention`` and torchvision's ``ShiftedWindowAttention`` (Swin). In eval
    mode a ``TransformerEncoderLayer`` computes with its parts' weights without calling the parts;
    in the copy it calls them.

    The model is not changed, and the copy shares its tensors. ``stays_packed`` says by name which
    attentions are left out.
    """
    modules = {name: module for name, module in model.named_modules() if not stays_packed(name)}
    taken: dict[int, object] = {
        id(module): Attention(module)
        for module in modules.values()
        if isinstance(module, nn.MultiheadAttention) and attention_refusal(module) is None
    }
    reading = [name for name, module in modules.items() if reads_projections(module)]
    if not taken and not reading and not _has_fast_path(model):
        return model
    tensors = {id(value): value for value in (*model.parameters(), *model.buffers())}
    unpacked = substitute(model, tensors | taken)
    if (windows := _windows()) is not None:
        for name in reading:
            windows.call_projections(unpacked.get_submodule(name))
    for module in unpacked.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # turns the fast path off
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    return unpacked
