"""A source layer's first convolution, normalization and second convolution as one, for training."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from bnrecon.construction.two_layer import first_variance, input_moments
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.operators.base import Operator
from bnrecon.reconstruction.affine_map import norm_values
from bnrecon.reconstruction.kernels import apply_kernel
from bnrecon.reconstruction.replaced_layer import is_recorded
from bnrecon.runtime.torch_modes import outside_torch_modes

if TYPE_CHECKING:
    from bnrecon.reconstruction.source_layer import SourceLayer


class Composition:
    """B N(A x) computed as one convolution of x, whose weight is composed at every call.

    With s = γ / sqrt(variance + eps) and t = β - s ∘ mean it is (B diag(s) A) x + B t. Mean and
    variance are the running ones; in training those of the batch, A μ and diag(A Σ A^T) for the
    mean μ and covariance Σ of x; exact, as A has one tap and all padding comes before it.
    Values, gradients and running statistics are those of the two convolutions, up to rounding.

    A call and its gradient cost 2 n c1 operations each, whatever the number of pixels. Features in
    memory are copied for the products, by ``hold``; others are generated or read at each call.
    """

    def __init__(self, pairs: tuple[Features, ...]):
        self.pairs = pairs
        self._held: tuple[Any, list[Operator], torch.Tensor | None] | None = None

    def __reduce__(self) -> tuple[type, tuple]:
        """Copies share the features and form what is held again."""
        return Composition, (self.pairs,)

    def __call__(self, layer: SourceLayer, x: torch.Tensor) -> torch.Tensor:
        """B N(A x) for the padded input x and the layer's normalization N."""
        groups, kernel = len(self.pairs), layer.geometry.kernel
        norm = layer.first_norm
        gamma, beta, mean, variance = norm_values(norm, detach=False)
        if gamma.dtype not in (torch.float32, torch.float64):
            raise RuntimeError(f"{gamma.dtype}: convert the source before collapse(trainable=True)")
        # Statistics and products of frozen weights keep their accuracy.
        with torch.autocast(x.device.type, enabled=False):
            if norm.training:
                mean, variance = self._batch_statistics(layer, x.to(gamma.dtype))
            scale = gamma * torch.rsqrt(variance + norm.eps)
            rows = self._compose(scale)
            weight = rows.reshape(layer.outputs, *kernel, rows.shape[-1]).movedim(-1, 1)
            bias = self._add_up(beta - scale * mean)
        return apply_kernel(x, weight.contiguous(), bias, groups, **layer.geometry.movement)

    def _batch_statistics(
        self, layer: SourceLayer, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased variance (c1,) of A x; updates running statistics as a BatchNorm does."""
        pixels = x.movedim(1, -1).flatten(0, -2).unflatten(1, (len(self.pairs), -1)).transpose(0, 1)
        inputs, covariance = input_moments(pixels)
        if self.pairs[0].identity:
            copies = self.pairs[0].width // inputs.shape[-1]
            diagonal = covariance.diagonal(dim1=1, dim2=2)
            mean, variance = (each.repeat(1, copies).flatten() for each in (inputs, diagonal))
        else:
            first = self._first(layer, x)
            mean = (first @ inputs[..., None]).flatten()
            variance = first_variance(first, covariance).flatten()
        norm, count = layer.first_norm, pixels.shape[1]
        with torch.no_grad():
            *_, running_mean, running_variance = norm_values(norm)
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            moved = norm.momentum
            moved = 1 / int(norm.num_batches_tracked) if moved is None else moved
            running_mean.lerp_(mean, moved)
            running_variance.lerp_(variance * (count / (count - 1)), moved)
        return mean, variance

    def _first(self, layer: SourceLayer, x: torch.Tensor) -> torch.Tensor:
        """A of all groups, (groups, c1, c0)."""
        if self.pairs[0].in_memory:
            return layer.first.weight.reshape(len(self.pairs), self.pairs[0].width, -1)
        parts = [[first for _, first in pair.first_parts(x.device)] for pair in self.pairs]
        return torch.stack([torch.cat(each) for each in parts]).to(x)

    def _compose(self, scale: torch.Tensor) -> torch.Tensor:
        """B diag(s) A of all groups in the order of M's rows, (c2 taps, c0)."""
        matrices, _ = self._features(scale)
        composed = _Product.apply(scale.to(matrices[0].dtype), matrices, False)
        return composed.to(scale.dtype).reshape(-1, self.pairs[0].shape.inputs)

    def _add_up(self, shift: torch.Tensor) -> torch.Tensor:
        """B t, the kernel's taps summed, of all groups: (c2,)."""
        _, sums = self._features(shift)
        parts = shift.reshape(len(self.pairs), -1, 1)
        if sums is None:
            return parts.reshape(len(parts) * self.pairs[0].shape.outputs, -1).sum(1)
        return (sums @ parts).flatten()

    def _features(self, like: torch.Tensor) -> tuple[list[Operator], torch.Tensor | None]:
        """M of each group, and B with its taps summed, (groups, c2, c1); ``None`` where M = I."""
        if self._held is None or self._held[0] != (like.device, like.dtype):
            if is_recorded(like):  # what is made for a graph is of no use outside of it
                raise RuntimeError(
                    "a copied, loaded or converted network: call it once before it is recorded"
                )
            self.hold(like)
        assert self._held is not None
        return self._held[1:]

    @outside_torch_modes
    def hold(self, like: torch.Tensor) -> None:
        """Form what products with scales of this device and dtype need."""
        device, dtype = key = like.device, like.dtype
        # In float64, features that are not in memory are not held.
        exact = dtype if self.pairs[0].in_memory else torch.float64
        matrices = [feature_operator(_copied(pair), exact, device) for pair in self.pairs]
        sums = None
        if not self.pairs[0].identity:
            tables = [_sum_taps(pair, device) for pair in self.pairs]
            sums = torch.stack(tables).to(dtype)
        self._held = key, matrices, sums


def _copied(pair: Features) -> Features:
    """Stored features in other memory: a source may have them in its weights, and load others."""
    if pair.first is None or pair.second is None or not pair.in_memory:
        return pair
    return dataclasses.replace(pair, first=pair.first.clone(), second=pair.second.clone())


def _sum_taps(pair: Features, device: torch.device) -> torch.Tensor:
    parts = (second.flatten(2) for _, second in pair.second_parts(device))
    return torch.cat([part.sum(2, dtype=torch.float64) for part in parts], 1)


class _Product(torch.autograd.Function):
    """Products of all groups; gradients are transposed products, which need nothing saved."""

    @staticmethod
    def forward(x: torch.Tensor, matrices: list[Operator], transposed: bool) -> torch.Tensor:
        parts = zip(matrices, x.chunk(len(matrices)), strict=True)
        with torch.autocast(x.device.type, enabled=False):
            return torch.cat([m.rmatvec(y) if transposed else m.matvec(y) for m, y in parts])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:  # noqa: ARG004
        _, ctx.matrices, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _Product.apply(gradient, ctx.matrices, not ctx.transposed), None, None
