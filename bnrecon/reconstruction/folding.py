"""A trained network's convolutions and linear layers, with normalization folded in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bnrecon.construction.two_layer import TargetLayer
from bnrecon.reconstruction.attention import attention_refusal
from bnrecon.reconstruction.kernels import LAYERS, Layer, Norm, is_plain, kernel_of
from bnrecon.reconstruction.refusal import dtype_name
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.reconstruction.usage import Usage, find_usage

# Hooks that do nothing but compute a layer's weight before it is used.
WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)
# Modules with weights that mix channels, other than those rebuilt here.
OTHERS = (nn.Bilinear, nn.RNNBase, nn.RNNCellBase)
QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")  # modules of these


@dataclass(frozen=True)
class FoldedLayer:
    """A layer that can be rebuilt: module, the BatchNorm that follows it, and both folded.

    ``gain`` (c2,) is the factor by which folding multiplied the module's weight.
    """

    name: str
    module: Layer
    norm_name: str | None
    norm: Norm | None
    target: TargetLayer
    gain: torch.Tensor


@dataclass(frozen=True)
class Inventory:
    """All weight layers of a network: those that can be rebuilt, and reasons for refused ones."""

    layers: list[FoldedLayer]
    refused: dict[str, str]
    notes: list[str]


def find_layers(
    model: nn.Module, images: torch.Tensor | None = None, fold_norms: bool = True
) -> Inventory:
    """List a network's layers in the order of its modules.

    A BatchNorm is folded into the layer before it if it alone uses that layer's output, and nothing
    else uses its numbers or the layer's bias. A symbolic trace (torch.fx) of a call with one
    argument decides, and a run if there are ``images``. If the network cannot be traced, nothing is
    folded, and a note says so. Layers that compute more than a convolution with their weight are
    refused, as are weights that are used without a module; ``images``, one batch for the network,
    show the latter better than a trace. Without ``fold_norms`` all normalizations are kept.

    >>> layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.LSTM(4, 4)]
    >>> net = nn.Sequential(*layers).eval()
    >>> [layer.norm_name for layer in find_layers(net).layers], list(find_layers(net).refused)
    (['1'], ['3'])
    """
    modules = dict(model.named_modules())
    usage = find_usage(model, images)
    layers: list[FoldedLayer] = []
    refused: dict[str, str] = {}
    for name, module in modules.items():
        if _is_part(name, refused):
            continue
        if reason := _refusal(name, module, usage):
            refused[name] = reason
        elif isinstance(module, LAYERS):
            norm_name = usage.norms.get(name) if fold_norms else None
            layers.append(_with_norm(name, module, norm_name, modules))
    outside = usage.outside.items()
    refused |= {name: reason for name, reason in outside if not _is_part(name, refused)}
    return Inventory(layers, refused, [usage.note] if usage.note else [])


def replacements(
    layers: Sequence[FoldedLayer], modules: Iterable[nn.Module]
) -> dict[int, nn.Module]:
    """Map ``id`` of each layer to its module, and of each folded BatchNorm to an identity."""
    replaced: dict[int, nn.Module] = {}
    for layer, module in zip(layers, modules, strict=True):
        replaced[id(layer.module)] = module
        if layer.norm is not None:
            replaced[id(layer.norm)] = nn.Identity()
    return replaced


def _is_part(name: str, refused: dict[str, str]) -> bool:
    """Whether a module or parameter is refused, or a part of one that is."""
    return any(other in ("", name) or name.startswith(f"{other}.") for other in refused)


def _refusal(name: str, module: nn.Module, usage: Usage) -> str | None:
    """Say why a module with weights cannot be rebuilt; ``None`` if it can."""
    if isinstance(module, SourceLayer):
        return "it is a source layer already"
    if isinstance(module, torch.jit.ScriptModule):
        what = "compiled by torch.jit, what it computes cannot be followed"
        return f"{what}: give the module it was made of"
    if isinstance(module, OTHERS):
        return f"{type(module).__name__} is neither a convolution nor a linear layer"
    if type(module).__module__.startswith(QUANTIZED) and hasattr(module, "weight"):
        return "its weight is quantized: give the network before quantization"
    if isinstance(module, nn.MultiheadAttention):
        return attention_refusal(module)
    if not isinstance(module, LAYERS):
        return None
    if not is_plain(module):
        computed = f"{type(module).__name__} computes something of its own"
        return f"{computed}, not a plain convolution or linear layer"
    if module.weight.dtype not in (torch.float32, torch.float64):  # of a buffer
        return f"its weight is {dtype_name(module.weight.dtype)}: call model.float()"
    if has_other_hooks(module):
        return "its forward hooks would be lost with it: remove them first"
    return usage.outside.get(name)


def _with_norm(
    name: str, module: Layer, norm_name: str | None, modules: dict[str, nn.Module]
) -> FoldedLayer:
    """Fold the BatchNorm that follows a layer, unless it does more than normalize."""
    # ``Usage.norms`` names only BatchNorms with running statistics.
    norm = cast(Norm, modules[norm_name]) if norm_name else None
    if norm is not None and (norm._forward_hooks or norm._forward_pre_hooks or not is_plain(norm)):
        norm_name = norm = None
    return FoldedLayer(name, module, norm_name, norm, *fold(name, module, norm))


def run_weight_hooks(module: nn.Module) -> None:
    """Run the hooks that compute a weight before each call; until then it is the last call's."""
    with torch.no_grad():  # a weight with a gradient's history could not be copied with its module
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WEIGHT_HOOKS):
                hook(module, ())


def has_other_hooks(module: nn.Module) -> bool:
    """Whether a module has forward hooks that do more than compute its weight."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return any(not isinstance(hook, WEIGHT_HOOKS) for hook in hooks)


def fold(name: str, module: Layer, norm: Norm | None) -> tuple[TargetLayer, torch.Tensor]:
    """Fold a BatchNorm in eval mode into the layer before it, in float64; also return the gain.

    W' = g ∘ W and b' = g ∘ (b - mean) + β with g = γ / sqrt(var + eps). A hook that computes the
    weight (``weight_norm``, ``spectral_norm``, pruning) runs first, as in a forward pass.
    """
    run_weight_hooks(module)
    weight = kernel_of(module).detach().double()
    zeros = torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
    # Cloned, so that the plan keeps it if the model's bias changes.
    bias = zeros if module.bias is None else module.bias.detach().double().clone()
    gain = torch.ones_like(bias)
    if norm is not None:
        mean, variance = map(cast(Any, torch.Tensor.double), (norm.running_mean, norm.running_var))
        gain = 1 / (variance + norm.eps).sqrt()
        if norm.weight is not None:
            gain = gain * norm.weight.detach().double()
        shift = zeros if norm.bias is None else norm.bias.detach().double()
        bias = gain * (bias - mean) + shift
    weight = gain.reshape(-1, *(1 for _ in weight.shape[1:])) * weight
    return TargetLayer(name, weight, bias, getattr(module, "groups", 1)), gain
