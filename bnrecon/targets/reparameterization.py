"""Weights trained with fixed factors, W = s ∘ w.

Random features for normalization layers, Sects. 4 and 5. By Theorem 3.1 this equals training the
scales w of id_cond features whose second weights are s instead of ones: M = diag(s).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from bnrecon.features.portable_random import Stream
from bnrecon.features.spectrum import aspect_of_condition, log_uniform_quantile, quantile
from bnrecon.runtime.errors import UserError


class FixedFactors(nn.Module):
    """Parametrization W = s ∘ w.

    The factors s are in the state dict, so that a stored network keeps them.
    """

    factors: torch.Tensor

    def __init__(self, factors: torch.Tensor):
        super().__init__()
        self.register_buffer("factors", factors)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight that the layer uses."""
        return self.factors * weight


def singular_values(
    shape: torch.Size, condition: float, stream: Stream, spectrum: str = "marchenko_pastur"
) -> torch.Tensor:
    """Factors s of a weight: quantiles of Theorem 2.2's law, or log-uniform, in random order.

    The law has condition number κ: in Theorem 2.2 sqrt λ = (κ - 1) / (κ + 1), so that λ+ / λ- = κ.
    The quantiles k / (n - 1), k = 0 … n - 1, replace random draws. They include both edges, so that
    every layer's condition number is κ; that of draws would depend on the layer's size and have no
    mean at λ = 1. The mean square is about 1. For κ = 1, the original parameterization, all factors
    are 1. The spectrum is ``marchenko_pastur`` or ``log_uniform``.

    >>> s = singular_values(torch.Size([4, 3, 3, 3]), 5413.0, Stream(0, 0))
    >>> round(float(s.max() / s.min()))
    5413
    """
    count = shape.numel()
    if condition == 1 or count == 1:
        return torch.ones(shape)
    share = (torch.arange(count, dtype=torch.float64) / (count - 1)).numpy()
    if spectrum == "log_uniform":
        drawn = log_uniform_quantile(share, condition)
    else:
        drawn = quantile(share, aspect_of_condition(condition))
    values = torch.from_numpy(drawn)
    return values[stream.order(count, "singular values")].float().reshape(shape)


def trained_parameters(network: nn.Module) -> int:
    """The number of trained parameters: of masked weights only the kept ones.

    >>> trained_parameters(nn.Linear(4, 3))
    15
    >>> trained_parameters(reparameterize(nn.Linear(4, 3), None, 1e-9, seed=0))
    3
    """
    masks = [module.factors for module in network.modules() if isinstance(module, FixedFactors)]
    masked = sum(int((factors == 0).sum()) for factors in masks)
    return sum(p.numel() for p in network.parameters() if p.requires_grad) - masked


def reparameterize(
    network: nn.Module,
    condition: float | None,
    density: float | None,
    seed: int,
    spectrum: str = "marchenko_pastur",
) -> nn.Module:
    """Multiply the weight of every convolution and linear layer by fixed factors, in place.

    The factors have a ``condition`` number and a law ``spectrum`` (``singular_values``), or are
    Erdős-Rényi masks, which keep each weight with probability ``density`` p; then the initial
    weights are multiplied by 1 / sqrt(p) once, which keeps their variance. Without both the network
    is not changed. Returns the network.

    >>> network = reparameterize(nn.Sequential(nn.Linear(4, 3)), None, 0.5, seed=0)
    >>> bool((network[0].weight == 0).any()), list(network.state_dict())
    (True, ['0.bias', '0.parametrizations.weight.original', '0.parametrizations.weight.0.factors'])
    """
    if condition is None and density is None:
        return network
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    if not layers:
        raise UserError(
            "target.condition and target.density are for networks whose weights are trained; "
            "this one's are frozen"
        )
    for number, layer in enumerate(layers):
        stream = Stream(seed, number)
        shape = layer.weight.shape
        if condition is not None:
            factors = singular_values(shape, condition, stream, spectrum)
        else:
            assert density is not None
            factors = stream.mask(shape, "mask", density).float()
            with torch.no_grad():
                layer.weight.div_(density**0.5)
        parametrize.register_parametrization(layer, "weight", FixedFactors(factors))
    return network
