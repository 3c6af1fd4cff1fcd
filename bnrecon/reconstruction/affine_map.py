"""The affine map that a BatchNorm computes in eval mode, and the parameters that give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch

from bnrecon.features.pair import Features
from bnrecon.reconstruction.kernels import Norm


class AffineMap(NamedTuple):
    """An affine map y = scale · x + shift per channel (float64), and running statistics.

    ``rounded`` gives the statistics the layer's precision.
    """

    scale: torch.Tensor
    shift: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def values(self, eps: float) -> tuple[torch.Tensor, ...]:
        """Return γ, β, mean and variance of a BatchNorm that computes this map.

        Here γ = s · sqrt(var + eps) and β = t + s · mean.
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
        """Concatenate the maps of groups of channels."""
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
    """Return γ, β, running mean and variance, which every source layer's normalization has."""
    gamma, beta = norm.weight, norm.bias
    statistics = cast(tuple[torch.Tensor, torch.Tensor], (norm.running_mean, norm.running_var))
    return (gamma.detach(), beta.detach(), *statistics) if detach else (gamma, beta, *statistics)


def write_map(norm: Norm, affine: AffineMap) -> None:
    """Make a normalization compute this map."""
    with torch.no_grad():
        for held, value in zip(norm_values(norm), affine.values(norm.eps), strict=True):
            held.copy_(value)


def present_map(norm: Norm, written: AffineMap | None) -> AffineMap:
    """Return a normalization's map: the one written or, if changed since, its parameters'."""
    gamma, beta, mean, variance = held = norm_values(norm)
    if written is not None:
        values = zip(written.values(norm.eps), held, strict=True)
        if all(torch.equal(value.to(now), now) for value, now in values):
            return written.to(gamma.device)  # the network may have been moved since it was written
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
    """``shift_at_output`` for all groups, concatenated."""
    parts = shift.chunk(len(pairs))
    return torch.cat([shift_at_output(*each) for each in zip(pairs, parts, strict=True)])


def fold_inner_shift(
    pairs: Sequence[Features], first: AffineMap, second: AffineMap
) -> tuple[AffineMap, AffineMap]:
    """Make the first BatchNorm's β 0 by moving its shift to the second; no activation in between.

    All padding comes before A, so a shift t of the intermediate channels reaches every output pixel
    as the constant B t, summed over the kernel's taps. The first map x -> s ∘ x + t becomes s ∘ (x
    - μ) with its running mean μ; the second map adds B (t + s ∘ μ), which the output loses. A pair
    then has c1 + 2 c2 trainable parameters (Burkholz 2024, Sect. 3.2) instead of 2 (c1 + c2).

    Args:
        pairs: the frozen pair of each group.
        first: s and t (groups c1,).
        second: the map (c2,) of B's output; its running mean moves with that output.
    """
    shift = -first.scale * first.mean.double()  # makes β = t + s ∘ μ vanish
    added = shifts_at_output(pairs, shift - first.shift)
    moved = second.shift - second.scale * added
    mean = second.mean.double() + added
    return first._replace(shift=shift), second._replace(shift=moved, mean=mean)
