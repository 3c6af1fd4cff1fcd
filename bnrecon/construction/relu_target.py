"""Read a ReLU network of linear layers.

It comes from a user's ``nn.Sequential``, or is refused in one line.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.module_code import added_code

KINDS = (nn.Linear, nn.BatchNorm1d, nn.ReLU)


class LinearTarget(NamedTuple):
    """One layer x -> W x + b of a target, float64: W (outputs, inputs), b (outputs,).

    ``dtype`` is the weights' original one, whose rounding they carry.
    """

    name: str
    weight: torch.Tensor
    bias: torch.Tensor
    dtype: torch.dtype = torch.float64

    def next_radius(self, radius: float) -> float:
        """A bound of ||ReLU(W x + b)|| for ||x|| <= ``radius``: ||W|| radius + ||b||."""
        return float(torch.linalg.matrix_norm(self.weight, 2)) * radius + float(self.bias.norm())


def read_relu_network(model: nn.Module) -> list[LinearTarget]:
    """The linear layers of an ``nn.Sequential`` of ``Linear``, ``BatchNorm1d`` and ``ReLU``.

    A ``BatchNorm1d`` is folded into the layer before it (the theorems' Γ* and β*). A ReLU is
    required between two linear layers, and allowed after the last. A module may be used more than
    once.

    Returns:
        The layers in order, float64.

    Raises:
        UserError: another type of module, one with forward hooks or an overridden forward pass, a
            normalization in training mode, two linear layers without a ReLU between them, sizes
            that do not fit, or weights that are not real, finite numbers in memory.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [tuple(layer.weight.shape) for layer in read_relu_network(net)]
    [(4, 3), (2, 4)]
    """
    if not isinstance(model, nn.Sequential):
        raise UserError(
            f"model is {type(model).__name__}; it must be an nn.Sequential of Linear, "
            "BatchNorm1d and ReLU"
        )
    _require_plain_forward("model", model, nn.Sequential)
    layers: list[LinearTarget] = []
    before: type | None = None
    for name, module in model._modules.items():  # named_children() leaves out repeated modules
        kind = next((kind for kind in KINDS if isinstance(module, kind)), None)
        if kind is not None and module is not None:
            _require_plain_forward(f"layer {name}", module, kind)
        if isinstance(module, nn.Linear):
            if before is not None and before is not nn.ReLU:
                raise UserError(
                    f"layer {name}: there is no ReLU before it; merge the two linear layers"
                )
            layers.append(_read_linear(name, module, layers[-1] if layers else None))
        elif isinstance(module, nn.BatchNorm1d) and before is nn.Linear:
            layers[-1] = _folded(layers[-1], name, module)
        elif not (isinstance(module, nn.ReLU) and layers and before is not nn.ReLU):
            raise UserError(
                f"layer {name} is {type(module).__name__}; the network must be Linear, "
                "(BatchNorm1d,) ReLU, Linear, ... in this order"
            )
        before = kind
    if not layers:
        raise UserError("the model has no linear layer; there is nothing to rebuild")
    return layers


def copy_in_float64(model: nn.Module) -> nn.Module:
    """Copy a user's model to the host in float64 and eval mode; the model is not changed."""
    return copy.deepcopy(model).cpu().double().eval()


def _require_plain_forward(where: str, module: nn.Module, kind: type[nn.Module]) -> None:
    """Refuse a layer that computes something else, and parameters without a shape."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise UserError(f"{where}: its parameters have no shape yet; call the model once")
    if code := added_code(module, kind):
        raise UserError(
            f"{where}: {type(module).__name__} has {code}; give an nn.{kind.__name__} without"
        )


def _read_linear(name: str, module: nn.Linear, previous: LinearTarget | None) -> LinearTarget:
    outputs, inputs = module.weight.shape
    if not (inputs and outputs):
        raise UserError(f"layer {name}: {inputs} inputs and {outputs} outputs; give at least one")
    if previous is not None and inputs != len(previous.bias):
        sizes = f"{inputs} inputs behind {len(previous.bias)} outputs"
        raise UserError(f"layer {name}: {sizes}; they must be equal")
    bias = torch.zeros(outputs) if module.bias is None else module.bias
    return LinearTarget(name, *_in_float64(name, module.weight, bias), module.weight.dtype)


def _in_float64(
    name: str, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy both to the host; raise ``UserError`` for numbers that are not real and finite."""
    for tensor in (weight, bias):
        if tensor.is_meta or not tensor.is_floating_point():
            what = "holds no numbers (device meta)" if tensor.is_meta else f"is {tensor.dtype}"
            raise UserError(f"layer {name}: its weight or bias {what}; give real numbers")
    if not (bool(weight.isfinite().all()) and bool(bias.isfinite().all())):
        raise UserError(f"layer {name}: its weight or bias is not finite")
    return weight.detach().cpu().double().clone(), bias.detach().cpu().double().clone()


def _folded(layer: LinearTarget, name: str, norm: nn.BatchNorm1d) -> LinearTarget:
    """Γ* (W x + b - μ) / sqrt(σ² + ε) + β* as one linear layer (Proposition 1)."""
    mean, variance = norm.running_mean, norm.running_var
    if norm.training or mean is None or variance is None:
        raise UserError(f"layer {name}: a BatchNorm1d needs fixed statistics; call model.eval()")
    if len(mean) != len(layer.bias):
        sizes = f"a BatchNorm1d of {len(mean)} behind {len(layer.bias)} outputs"
        raise UserError(f"layer {name}: {sizes}; they must be equal")
    scale = torch.ones_like(mean) if norm.weight is None else norm.weight.detach()
    shift = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach()
    variance, mean = _in_float64(name, variance, mean)
    scale, shift = _in_float64(name, scale, shift)
    gain = scale * (variance + norm.eps).rsqrt()
    weight, bias = layer.weight * gain[:, None], (layer.bias - mean) * gain + shift
    return LinearTarget(layer.name, *_in_float64(layer.name, weight, bias), layer.dtype)
