"""Residual source blocks: two source layers beside a frozen skip connection, for one convolutional target layer (Burkholz 2024, Sect. 2.2)."""

from __future__ import annotations

import torch

from bnrecon.construction.two_layer import TargetLayer, linear_system, two_layer_system
from bnrecon.features.matrix import feature_operator, skip_rows
from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.eliminated import Pivoted
from bnrecon.operators.system import System

__all__ = ["layer_system", "minimum_width"]


def minimum_width(shape: LayerShape, skip: str) -> int:
    """Features from which targets can be rebuilt: n - c2 + 1 (Thm 2.2), n - c2 with a skip connection inside the second normalization.

    There the skip's kernel makes the equations inhomogeneous, so that no scale is free to be fixed.

    >>> minimum_width(LayerShape(4, 3, (3, 3)), "outer")
    104
    """
    return shape.minimum_width - (skip == "outer")


def layer_system(
    target: TargetLayer, features: Features, device: torch.device, orthogonal: bool
) -> System:
    """Set up the system of a target layer and its features, with or without a skip connection of kernel s.

    - ``none``: W = outer ∘ (M γ), ``two_layer_system``.
    - ``inner`` normalization, N2 C2 N1 C1 + C_skip: W - s = outer ∘ (M γ), the same for a modified target.
    - ``outer`` normalization, N2 [C2 N1 C1 + C_skip]: W = outer ∘ (M γ + s). From c1 = n on the second scales stay 1 and M γ = W - s.
      From n - c2 on they are eliminated, with pivot p of each output: (M γ)_r - (w_r / w_p) (M γ)_p = (w_r / w_p) s_p - s_r.

    The right-hand side of Eq. (3) is illegible in the text at hand beyond its first term; the line above is what has to stand there.

    >>> _ = torch.manual_seed(0)
    >>> from bnrecon.features import draw
    >>> target, n = TargetLayer("", torch.randn(4, 4, 3, 3), torch.zeros(4)), 144
    >>> system = layer_system(target, draw("he_normal", target.shape, n - 4, 0, 0, skip="outer"), torch.device("cpu"), False)
    >>> system.operator.shape
    (140, 140)
    """
    if features.skip == "none":
        return two_layer_system(target, features, device, orthogonal)
    matrix, weight = (
        feature_operator(features, torch.float64, device),
        target.rows().to(device, torch.float64),
    )
    skip = skip_rows(features).to(device)
    n, width = matrix.shape
    if features.skip == "inner" or width >= n or width < n - len(weight):
        return linear_system(matrix, weight - skip, orthogonal)
    pivoted = Pivoted(matrix, weight, skip=skip)
    return System(pivoted, pivoted.right_hand_side(), matrix, weight, False)
