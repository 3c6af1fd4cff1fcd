"""The affine map that a BatchNorm does in eval mode, and the parameters that it has for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch

from bnrecon.features.pair import Features
from bnrecon.reconstruction.kernels import Norm


class AffineMap(NamedTuple):
    """An affine map y = scale · x + shift by channel (float64), and running statistics.

    The statistics are in the layer's own precision, once ``rounded``.
    """

    scale: torch.Tensor
    shift: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def values(self, eps: float) -> tuple[torch.Tensor, ...]:
        """What a BatchNorm that computes this map holds: γ, β, mean and variance.

        These are γ = s · sqrt(var + eps) and β = t + s · mean.
        """
        gamma = self.scale * (self.variance.double() + eps).sqrt()
        return gamma, self.shift + self.scale * self.mean.double(), self.mean, self.variance

    def to(self, device: torch.device) -> AffineMap:
        """The same map on a device."""
        return AffineMap(*(part.to(device) for part in self))

    def rounded(self, precision: torch.dtype) -> AffineMap:
        """The same map with running statistics of this precision."""
        return self._replace(mean=self.mean.to(precision), variance=self.variance.to(precision))

    @classmethod
    def join(cls, maps: Sequence[AffineMap]) -> AffineMap:
        """One map of all channels from maps of groups of them."""
        return cls(*map(torch.cat, zip(*maps, strict=True)))

    @classmethod
    def of_values(cls, values: Sequence[torch.Tensor], eps: float) -> AffineMap:
        """The map of a BatchNorm with these γ, β (in float64), running mean and variance, (c,)."""
        gamma, beta, mean, variance = values
        scale = gamma / (variance.double() + eps).sqrt()
        return cls(scale, beta - scale * mean.double(), mean, variance)


def norm_values(
    norm: Norm, detach: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """γ, β, running mean and variance, all of which a source layer's normalization has."""
    gamma, beta = norm.weight, norm.bias
    statistics = cast(tuple[torch.Tensor, torch.Tensor], (norm.running_mean, norm.running_var))
    return (gamma.detach(), beta.detach(), *statistics) if detach else (gamma, beta, *statistics)


def write_map(norm: Norm, wanted: AffineMap) -> None:
    """Make a normalization compute with this map."""
    with torch.no_grad():
        for held, value in zip(norm_values(norm), wanted.values(norm.eps), strict=True):
            held.copy_(value)


def present_map(norm: Norm, wanted: AffineMap | None) -> AffineMap:
    """The map that a normalization does now: the one written or, once changed, its parameters'."""
    gamma, beta, mean, variance = held = norm_values(norm)
    if wanted is not None:
        values = zip(wanted.values(norm.eps), held, strict=True)
        if all(torch.equal(value.to(now), now) for value, now in values):
            return wanted.to(gamma.device)  # the network may have been moved since it was written
    return AffineMap.of_values((gamma.double(), beta.double(), mean, variance), norm.eps)


def shift_at_output(features: Features, shift: torch.Tensor) -> torch.Tensor:
    """What a shift t (c1,) of the intermediate channels adds: Σ_l Σ_tap B[i, l, tap] t_l, (c2,)."""
    added = torch.zeros(features.shape.outputs, dtype=torch.float64, device=shift.device)
    if not bool(shift.any()):
        return added
    if features.identity:
        return shift.reshape(len(added), -1).sum(1)
    for part, second in features.second_parts(shift.device):
        added += second.flatten(2).sum(2, dtype=torch.float64) @ shift[part]
    return added


def shifts_at_output(pairs: Sequence[Features], shift: torch.Tensor) -> torch.Tensor:
    """The same for the intermediate channels and outputs of all groups."""
    parts = shift.chunk(len(pairs))
    return torch.cat([shift_at_output(*each) for each in zip(pairs, parts, strict=True)])


def fold_inner_shift(
    pairs: Sequence[Features], first: AffineMap, second: AffineMap
) -> tuple[AffineMap, AffineMap]:
    """The same layer with a first BatchNorm whose β is 0, nothing nonlinear being in between.

    All padding comes before A, so that a shift t of the intermediate channels reaches every place
    of the output as the constant B t, the kernel's taps summed. The first map x -> s ∘ x + t
    becomes s ∘ (x - μ), μ being its running mean; what the output loses, B (t + s ∘ μ), the second
    map adds. A pair then has c1 + 2 c2 trainable parameters (Burkholz 2024, Sect. 3.2) instead of
    2 (c1 + c2).

    Args:
        pairs: the frozen pair of each group.
        first: s and t (groups c1,).
        second: the map (c2,) of B's output; its running mean moves with that output.
    """
    shift = -first.scale * first.mean.double()  # with which β = t + s ∘ μ is 0
    added = shifts_at_output(pairs, shift - first.shift)
    moved = second.shift - second.scale * added
    mean = second.mean.double() + added
    return first._replace(shift=shift), second._replace(shift=moved, mean=mean)
