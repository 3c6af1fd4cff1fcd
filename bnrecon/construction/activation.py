"""An activation after the first source layer (Burkholz 2024, Theorem 2.4): shift into the region where it is linear."""

from __future__ import annotations

import torch

from bnrecon.errors import UserError, nearest
from bnrecon.features import Features

__all__ = ["FIRST_ACTIVATIONS", "linear_region_shift"]

# Activations that are exactly x -> x for x >= 0, with their PyTorch module.
FIRST_ACTIVATIONS = {"identity": torch.nn.Identity, "relu": torch.nn.ReLU, "leaky_relu": lambda: torch.nn.LeakyReLU(0.01)}


def check_activation(name: str) -> None:
    """Raise ``UserError`` for an activation that is not exactly linear anywhere."""
    if name not in FIRST_ACTIVATIONS:
        raise UserError(f"features.activation={name}: {nearest(name, FIRST_ACTIVATIONS)}")


def linear_region_shift(features: Features, inner: torch.Tensor, largest_input: torch.Tensor) -> torch.Tensor:
    """Shift t (c1,) of the first normalization so that s_l (A x)_l + t_l >= 0 for all inputs within their bounds.

    With |x_j| <= X_j, ``largest_input`` (c0,), |s_l (A x)_l| <= |s_l| Σ_j |A_lj| X_j: the theorem's Q1, taken for each feature
    rather than the worst one, with v = 1 and b = t. relu and leaky_relu then act as the identity (m = 1, c = 0), exactly.
    """
    if features.identity:
        reach = largest_input.repeat(features.width // len(largest_input))
    else:
        reach = features.weights()[0].to(largest_input).abs() @ largest_input
    return inner.abs() * reach.to(inner)
