"""Residual source blocks: two layers and a frozen skip connection (Burkholz 2024, Sect. 2.2)."""

from __future__ import annotations

import torch

from bnrecon.construction.two_layer import TargetLayer, linear_system
from bnrecon.features.matrix import distributed_operator, feature_operator, skip_rows
from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.base import Operator
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.system import System


def minimum_width(shape: LayerShape, skip: str) -> int:
    """The smallest width with which targets can be rebuilt.

    n - c2 + 1 (Theorem 2.2), and n - c2 with a skip connection inside the second normalization: its
    kernel makes the equations inhomogeneous, so that no scale can be fixed.

    >>> minimum_width(LayerShape(4, 3, (3, 3)), "outer")
    104
    """
    return shape.minimum_width - (skip == "outer")


def layer_system(
    target: TargetLayer,
    features: Features,
    device: torch.device,
    orthogonal: bool,
    distributed: bool = False,
) -> System:
    """Set up the system of a target layer and its features; s is the kernel of a skip connection.

    - ``none``: W = outer ∘ (M γ) (Lemma 2.1), ``linear_system``.
    - ``inner`` normalization, N2 C2 N1 C1 + C_skip: W - s = outer ∘ (M γ), a modified target.
    - ``outer`` normalization, N2 [C2 N1 C1 + C_skip]: W = outer ∘ (M γ + s). For c1 >= n the second
      scales stay 1 and M γ = W - s. For n - c2 <= c1 < n they are eliminated, with pivot p of each
      output: (M γ)_r - (w_r / w_p) (M γ)_p = (w_r / w_p) s_p - s_r.

    The right-hand side of Eq. (3) has, as extracted, only the first term (erratum 2); the one above
    follows from the definition. ``orthogonal`` says whether M^T M = I at width n, ``distributed``
    whether processes of torch.distributed divide the features.

    >>> from bnrecon.features import draw
    >>> _ = torch.manual_seed(0)
    >>> target, n = TargetLayer("", torch.randn(4, 4, 3, 3), torch.zeros(4)), 144
    >>> features = draw("he_normal", target.shape, n - 4, 0, 0, skip="outer")
    >>> layer_system(target, features, torch.device("cpu"), False).operator.shape
    (140, 140)
    """
    matrix: Operator = (
        distributed_operator(features, device)
        if distributed
        else feature_operator(features, torch.float64, device)
    )
    weight = target.rows().detach().to(device, torch.float64)
    if features.skip == "none":
        return linear_system(matrix, weight, orthogonal)
    skip = skip_rows(features).to(device)
    n, width = matrix.shape
    if features.skip == "inner" or width >= n or width < n - len(weight):
        outer_skip = features.skip == "outer"
        return linear_system(matrix, weight - skip, orthogonal, scaled=not outer_skip)
    eliminated = Eliminated(matrix, weight, skip=skip)
    return System(eliminated, eliminated.right_hand_side(), matrix, weight, False)
