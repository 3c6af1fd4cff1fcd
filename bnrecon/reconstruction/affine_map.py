"""The affine map that a BatchNorm does in eval mode, and the parameters that it has for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

__all__ = ["AffineMap", "norm_values"]


@dataclass(frozen=True)
class AffineMap:
    """An affine map y = scale · x + shift by channel (float64), and running statistics.

    The statistics are in the layer's own precision, once ``rounded``.
    """

    scale: torch.Tensor
    shift: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def parameters(self, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """γ = s · sqrt(var + eps) and β = t + s · mean, with which BatchNorm computes this map."""
        gamma = self.scale * (self.variance.double() + eps).sqrt()
        return gamma, self.shift + self.scale * self.mean.double()

    def rounded(self, precision: torch.dtype) -> AffineMap:
        """The same map with running statistics of this precision."""
        mean, variance = self.mean.to(precision), self.variance.to(precision)
        return AffineMap(self.scale, self.shift, mean, variance)

    @classmethod
    def of_parameters(
        cls,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        eps: float,
    ) -> AffineMap:
        """The map that a BatchNorm does.

        Args:
            gamma: (c,), its weight, float64.
            beta: (c,), its bias, float64.
            mean: (c,), its running mean.
            variance: (c,), its running variance.
            eps: what it adds to the variance.
        """
        scale = gamma / (variance.double() + eps).sqrt()
        return cls(scale, beta - scale * mean.double(), mean, variance)


def norm_values(
    norm: nn.BatchNorm1d | nn.BatchNorm2d, detach: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """γ, β, running mean and variance, all of which a source layer's normalization has."""
    gamma, beta = norm.weight, norm.bias
    statistics = cast(tuple[torch.Tensor, torch.Tensor], (norm.running_mean, norm.running_var))
    return (gamma.detach(), beta.detach(), *statistics) if detach else (gamma, beta, *statistics)
