"""A trained network's layers as the theorems see them: each convolution or linear layer with its normalization folded in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn

from bnrecon.construction.two_layer import TargetLayer

__all__ = ["FoundLayer", "Inventory", "find_layers"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
# Modules with weights that mix channels, other than those rebuilt here.
OTHERS = (
    nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Bilinear, nn.RNNBase,
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
)  # fmt: skip


@dataclass(frozen=True)
class FoundLayer:
    """A layer that can be rebuilt: the module, the BatchNorm that follows it alone (if any), and both folded together.

    ``gain`` (c2,) is the factor by which folding multiplied the module's weight.
    """

    name: str
    module: nn.Conv2d | nn.Linear
    norm_name: str | None
    norm: nn.Module | None
    target: TargetLayer
    gain: torch.Tensor


@dataclass(frozen=True)
class Inventory:
    """All weight layers of a network: those that can be rebuilt, and the others with the reason."""

    layers: list[FoundLayer]
    refused: dict[str, str]
    notes: list[str]


def find_layers(model: nn.Module) -> Inventory:
    """List a network's layers in the order of its modules.

    A BatchNorm is folded into the layer before it when it alone uses that layer's output, which is read off a symbolic
    trace (torch.fx). Where the network cannot be traced, nothing is folded: normalizations stay as they are, and a note
    says so.
    """
    modules = dict(model.named_modules())
    pairs, functional, note = _trace(model, modules)
    layers, refused = [], dict(functional)
    for name, module in modules.items():
        if any(name.startswith(f"{other}.") for other in refused):
            continue  # a part of what is refused
        if isinstance(module, nn.Conv2d | nn.Linear) and type(module).forward not in (nn.Conv2d.forward, nn.Linear.forward):
            refused[name] = f"{type(module).__name__} computes something of its own, not a plain convolution or linear layer"
        elif isinstance(module, OTHERS):
            refused[name] = f"{type(module).__name__} is not a 2d convolution or linear layer"
        elif isinstance(module, nn.modules.lazy.LazyModuleMixin):
            refused[name] = f"{type(module).__name__} has no weights yet: run the network once before"
        elif isinstance(module, nn.Conv2d) and module.groups != 1:
            refused[name] = f"a grouped convolution ({module.groups} groups): each group is a system of its own, not built here"
        elif isinstance(module, nn.Conv2d | nn.Linear):
            norm_name = pairs.get(name)
            norm = modules[norm_name] if norm_name else None
            target, gain = fold(name, module, norm)
            layers.append(FoundLayer(name, module, norm_name, norm, target, gain))
    return Inventory(layers, refused, [note] if note else [])


def fold(name: str, module: nn.Conv2d | nn.Linear, norm: nn.Module | None) -> tuple[TargetLayer, torch.Tensor]:
    """Fold a BatchNorm in eval mode into the layer before it, in float64; return the layer and the gain of each output.

    W' = g ∘ W and b' = g ∘ (b - mean) + β with g = γ / sqrt(var + eps).
    """
    weight = module.weight.detach().double()
    if weight.ndim == 2:
        weight = weight[:, :, None, None]
    bias = torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
    if module.bias is not None:
        bias = module.bias.detach().double()
    gain = torch.ones_like(bias)
    if norm is not None:
        gain = 1 / (norm.running_var.double() + norm.eps).sqrt()
        shift = torch.zeros_like(gain)
        if norm.affine:
            gain = gain * norm.weight.detach().double()
            shift = shift if norm.bias is None else norm.bias.detach().double()
        bias = gain * (bias - norm.running_mean.double()) + shift
    return TargetLayer(name, gain[:, None, None, None] * weight, bias), gain


def _trace(model: nn.Module, modules: dict[str, nn.Module]) -> tuple[dict[str, str], dict[str, str], str | None]:
    """Read off a trace which BatchNorm follows which layer alone, and weights used without a module."""
    if isinstance(model, nn.Conv2d | nn.Linear):
        return {}, {}, None  # a bare layer: a trace would look inside it
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # tracing runs the user's own forward: anything can come out of it
        first = (str(error).splitlines() or [""])[0]
        return (
            {},
            {},
            f"the network cannot be traced ({type(error).__name__}: {first}); its BatchNorm layers are kept, not folded",
        )
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    pairs, functional = {}, {}
    weighted = {"conv1d", "conv2d", "conv3d", "linear", "matmul", "bmm", "einsum", "conv_transpose2d"}
    for node in graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") in weighted:
            for source in node.all_input_nodes:
                if source.op == "get_attr":
                    functional[str(source.target)] = f"used by a call of {node.target.__name__}, not by a module"
        if node.op != "call_module" or len(node.users) != 1 or calls[node.target] != 1:
            continue
        user = next(iter(node.users))
        layer = modules.get(node.target)
        if user.op != "call_module" or calls[user.target] != 1 or not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        norm = modules.get(user.target)
        matches = isinstance(norm, nn.BatchNorm2d if isinstance(layer, nn.Conv2d) else nn.BatchNorm1d)
        if matches and norm.running_mean is not None and norm.num_features == len(layer.weight):
            pairs[node.target] = user.target
    return pairs, functional, None
