"""Weights trained behind fixed factors, W = s ∘ w (Random features for normalization layers, Sects. 4 and 5).

By Theorem 3.1 this is what training the scales w of id_cond features is, whose second weights are s instead of ones: M = diag(s).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from bnrecon.features.portable_random import Stream
from bnrecon.features.spectrum import aspect_of_condition, quantile
from bnrecon.runtime.errors import UserError

__all__ = [
    "FixedFactors",
    "check",
    "mask",
    "reparameterize",
    "singular_values",
    "trained_parameters",
]

LARGEST = 1e12  # beyond, the smallest factor is lost in the law's own rounding


class FixedFactors(nn.Module):
    """Parametrization W = s ∘ w. The factors are part of the state, so that a stored network stays what it was."""

    def __init__(self, factors: torch.Tensor):
        super().__init__()
        self.register_buffer("factors", factors)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight that the layer computes with."""
        return self.factors * weight


def singular_values(shape: torch.Size, condition: float, stream: Stream) -> torch.Tensor:
    """Factors s of a weight of this shape: quantiles of Theorem 2.2's law with condition number κ, in random order.

    sqrt λ = (κ - 1) / (κ + 1), so that λ+ / λ- = κ. Quantiles k / (n - 1), k = 0 … n - 1, in the place of draws: both edges are among
    them, and every layer's condition number is κ, where that of draws depends on the layer's size and has no mean at λ = 1. Their mean
    square is about 1. All are 1 for κ = 1, the original parameterization.

    >>> s = singular_values(torch.Size([4, 3, 3, 3]), 5413.0, Stream(0, 0))
    >>> round(float(s.max() / s.min()))
    5413
    """
    count = shape.numel()
    if condition == 1 or count == 1:
        return torch.ones(shape)
    share = torch.arange(count, dtype=torch.float64) / (count - 1)
    values = torch.from_numpy(quantile(share.numpy(), aspect_of_condition(condition)))
    return values[stream.order(count, "singular values")].float().reshape(shape)


def mask(shape: torch.Size, density: float, stream: Stream) -> torch.Tensor:
    """An Erdős-Rényi mask of zeros and ones: each weight stays with probability p."""
    return stream.mask(tuple(shape), "mask", density).float()


def trained_parameters(network: nn.Module) -> int:
    """How many numbers training chooses: of masked weights those that the masks keep.

    >>> trained_parameters(nn.Linear(4, 3)), trained_parameters(reparameterize(nn.Linear(4, 3), None, 1e-9, seed=0))
    (15, 3)
    """
    masked = sum(
        int((module.factors == 0).sum())
        for module in network.modules()
        if isinstance(module, FixedFactors)
    )
    return (
        sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
        - masked
    )


def check(condition: float | None, density: float | None) -> None:
    """Raise ``UserError`` for a condition number or density that there is not, or for both at once."""
    if condition is not None and not 1 <= condition <= LARGEST:
        raise UserError(
            f"target.condition={condition}: a condition number is 1 or above, and at most {LARGEST:g} here"
        )
    if density is not None and not 0 < density <= 1:
        raise UserError(f"target.density={density}: must be above 0 and at most 1")
    if condition is not None and density is not None:
        raise UserError("give at most one of target.condition and target.density")


def reparameterize(
    network: nn.Module, condition: float | None, density: float | None, seed: int
) -> nn.Module:
    """Put every convolution's and linear layer's weight behind its fixed factors, in place.

    ``condition``: factors of a semi-circle-like spectrum; ``density`` p: random masks, the initial weights multiplied by 1 / sqrt(p) once,
    which keeps their variance. With neither the network is left as it is.

    >>> network = reparameterize(nn.Sequential(nn.Linear(4, 3)), None, 0.5, seed=0)
    >>> bool((network[0].weight == 0).any()), list(network.state_dict())
    (True, ['0.bias', '0.parametrizations.weight.original', '0.parametrizations.weight.0.factors'])
    """
    check(condition, density)
    if condition is None and density is None:
        return network
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    if not layers:
        raise UserError(
            "target.condition and target.density are for networks whose weights are trained; this one's are frozen"
        )
    for number, layer in enumerate(layers):
        stream = Stream(seed, number)
        shape = layer.weight.shape
        if density is None:
            factors = singular_values(shape, condition, stream)
        else:
            factors = mask(shape, density, stream)
            with torch.no_grad():
                layer.weight.div_(density**0.5)
        parametrize.register_parametrization(layer, "weight", FixedFactors(factors))
    return network
