"""What a ReLU network of linear layers is.

Read from a user's ``nn.Sequential``, or refused in one line.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from bnrecon.runtime.errors import UserError

__all__ = ["LinearTarget", "read_relu_network"]


class LinearTarget(NamedTuple):
    """One layer x -> W x + b of a target, float64: W (outputs, inputs), b (outputs,)."""

    name: str
    weight: torch.Tensor
    bias: torch.Tensor

    def next_radius(self, radius: float) -> float:
        """A bound of ||ReLU(W x + b)|| for ||x|| <= ``radius``: ||W|| radius + ||b||."""
        return float(torch.linalg.matrix_norm(self.weight, 2)) * radius + float(self.bias.norm())


def read_relu_network(model: nn.Module) -> list[LinearTarget]:
    """The linear layers of an ``nn.Sequential`` of ``Linear``, ``BatchNorm1d`` and ``ReLU``.

    A ``BatchNorm1d`` is folded into the layer before it (the theorems' Γ* and β*). Between two
    linear layers there has to be a ReLU, behind the last there may be one.

    Returns:
        The layers in order, float64.

    Raises:
        UserError: another kind of module, a normalization in training mode, two linear layers
            without a ReLU between, sizes that do not fit, weights that are not finite.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [tuple(layer.weight.shape) for layer in read_relu_network(net)]
    [(4, 3), (2, 4)]
    """
    if not isinstance(model, nn.Sequential):
        raise UserError(
            f"model is {type(model).__name__}; it must be an nn.Sequential of Linear, "
            "BatchNorm1d and ReLU"
        )
    layers: list[LinearTarget] = []
    before: type | None = None
    for name, module in model.named_children():
        if isinstance(module, nn.Linear):
            if before is not None and before is not nn.ReLU:
                raise UserError(
                    f"layer {name}: there is no ReLU before it; merge the two linear layers"
                )
            if layers and module.in_features != len(layers[-1].bias):
                given = f"{module.in_features} inputs behind {len(layers[-1].bias)} outputs"
                raise UserError(f"layer {name}: {given}; they must be equal")
            bias = torch.zeros(module.out_features) if module.bias is None else module.bias
            layers.append(_checked(name, module.weight, bias))
        elif isinstance(module, nn.BatchNorm1d) and before is nn.Linear:
            layers[-1] = _folded(layers[-1], name, module)
        elif not (isinstance(module, nn.ReLU) and layers and before is not nn.ReLU):
            raise UserError(
                f"layer {name} is {type(module).__name__}; the network must be Linear, "
                "(BatchNorm1d,) ReLU, Linear, ... in this order"
            )
        before = type(module)
    if not layers:
        raise UserError("the model has no linear layer; there is nothing to rebuild")
    return layers


def _checked(name: str, weight: torch.Tensor, bias: torch.Tensor) -> LinearTarget:
    if not (bool(weight.isfinite().all()) and bool(bias.isfinite().all())):
        raise UserError(f"layer {name}: its weight or bias is not finite")
    return LinearTarget(
        name, weight.detach().cpu().double().clone(), bias.detach().cpu().double().clone()
    )


def _folded(layer: LinearTarget, name: str, norm: nn.BatchNorm1d) -> LinearTarget:
    """Γ* (W x + b - μ) / sqrt(σ² + ε) + β* as one linear layer (Proposition 1)."""
    mean, variance = norm.running_mean, norm.running_var
    if norm.training or mean is None or variance is None:
        raise UserError(f"layer {name}: a BatchNorm1d needs fixed statistics; call model.eval()")
    gain = (variance.double() + norm.eps).rsqrt()
    shift = torch.zeros_like(gain)
    if norm.affine:
        gain, shift = gain * norm.weight.detach().double(), norm.bias.detach().double()
    weight = layer.weight * gain.cpu()[:, None]
    return _checked(
        layer.name, weight, (layer.bias - mean.double().cpu()) * gain.cpu() + shift.cpu()
    )
