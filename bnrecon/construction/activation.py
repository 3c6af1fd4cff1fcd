"""A nonlinear first source layer, used where it is linear (Burkholz 2024, Theorem 2.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales
from bnrecon.runtime.errors import RunError


@dataclass(frozen=True)
class FirstActivation:
    """An activation that is close to ``slope`` · x + ``offset`` somewhere.

    If ``one_sided``, it equals this for all x >= 0. Otherwise it is odd about 0, with an error of
    at most ``cubic`` · |x|³ there.
    """

    module: Callable[[], nn.Module]
    slope: float = 1.0
    offset: float = 0.0
    cubic: float = 0.0
    one_sided: bool = False

    @property
    def exact(self) -> bool:
        """Whether the activation is exactly linear in some region."""
        return self.cubic == 0


FIRST_ACTIVATIONS = {
    "identity": FirstActivation(nn.Identity),
    "relu": FirstActivation(nn.ReLU, one_sided=True),
    "leaky_relu": FirstActivation(partial(nn.LeakyReLU, 0.01), one_sided=True),
    "tanh": FirstActivation(nn.Tanh, cubic=1 / 3),
    "sigmoid": FirstActivation(nn.Sigmoid, slope=1 / 4, offset=1 / 2, cubic=1 / 48),
}


@dataclass(frozen=True)
class LinearRegion:
    """The region where an activation is used.

    Inputs within their bounds stay in [``low``, ``high``]; values outside are counted.
    """

    factor: float  # v, the scale of the intermediate channels
    shift: torch.Tensor  # b (c1,), their shift
    low: float  # the region's lower end
    high: float  # its upper end


def theorem_constants(
    features: Features, scales: Scales, largest_input: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """The theorem's Q1 (c1,), feature by feature, and Q2.

    Q1_l = |γ1_l| Σ_j |A_lj| X_j bounds the intermediate channels for |x_j| <= X_j, where the
    theorem assumes inputs in [-1, 1]; its Q1 is the largest. Q2 = max_i |γ2_i| Σ_lp |B_ilp| is the
    effect of their errors at the output. ``scales`` are γ1 (c1,) and γ2 (c2,), ``largest_input`` is
    X (c0,).
    """
    shape = features.shape
    if features.identity:
        reach = largest_input.repeat(features.width // len(largest_input))
        sums = torch.full((shape.outputs,), float(shape.inputs * shape.taps), dtype=torch.float64)
    else:
        reach = largest_input.new_empty(features.width)
        device = largest_input.device
        for part, first in features.first_parts(device):
            reach[part] = first.to(largest_input).abs() @ largest_input
        sums = torch.zeros(shape.outputs, dtype=torch.float64, device=device)
        for _, second in features.second_parts(device):
            sums += second.abs().flatten(1).sum(1, dtype=torch.float64)
    q2 = float((scales.outer.abs() * sums.to(scales.outer)).max())
    return scales.inner.abs() * reach.to(scales.inner), q2


def linear_region(
    name: str,
    features: Features,
    scales: Scales,
    largest_input: torch.Tensor | None,
    epsilon: float,
) -> LinearRegion:
    """Choose v and b so that S differs from the target layer by at most ``epsilon``.

    relu, leaky_relu: v = 1 and b_l = Q1_l: exact. tanh, sigmoid: b = 0, and |φ(v x) - (m v x + c)|
    <= κ (v Q1)³ must stay below ε m v / Q2, so that v = min(sqrt(ε m / (κ Q2 Q1³)), 1 / Q1), with κ
    = 1/3 and m = 1 for tanh, κ = 1/48 and m = 1/4 for sigmoid. The printed v = min((3 ε /
    Q2)^(1/2), 1 / Q1) lacks Q1³: with Q1 > 1 it violates the theorem's hypothesis once ε is small.
    The identity does not need the bound of |x| per channel, ``largest_input`` (c0,).
    """
    activation = FIRST_ACTIVATIONS[name]
    shift = torch.zeros_like(scales.inner)
    if name == "identity":
        return LinearRegion(1.0, shift, -math.inf, math.inf)
    if largest_input is None:
        raise ValueError(f"activation={name} needs the range of its inputs")
    reach, q2 = theorem_constants(features, scales, largest_input)
    if activation.one_sided:
        return LinearRegion(1.0, reach, 0.0, math.inf)
    q1 = float(reach.max())
    if q1 == 0 or q2 == 0:  # a layer that is switched off
        return LinearRegion(1.0, shift, -1.0, 1.0)
    cubed = q1 * q1 * q1  # infinite where q1**3 would raise an error
    factor = min(math.sqrt(epsilon * activation.slope / (activation.cubic * q2 * cubed)), 1 / q1)
    if factor == 0:
        raise RunError(f"activation={name}: inputs of up to {q1:.0e} leave no scale above 0")
    return LinearRegion(factor, shift, -factor * q1, factor * q1)
