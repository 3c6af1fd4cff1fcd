"""The layers of a source network: two frozen convolutions, each followed by a BatchNorm."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features.pair import Features
from bnrecon.reconstruction.affine_map import AffineMap, norm_values
from bnrecon.reconstruction.collapse import collapse_layer, fold_inner_shift
from bnrecon.reconstruction.geometry import centre, geometry_of, pad
from bnrecon.reconstruction.identity_features import identity_output
from bnrecon.runtime.digests import tensor_digest

__all__ = ["IMPLICIT_FROM", "SourceLayer"]


# Of one chunk's intermediate map: small enough to stay near the processor's cache.
CHUNK_BYTES = 32 * 2**20


IMPLICIT_FROM = 64 * 2**20  # id_cond weights beyond this size stay implicit: M = I needs no matrix


class SourceLayer(nn.Module):
    """Convolution A (1x1), BatchNorm, activation, convolution B (kxk), BatchNorm for one layer.

    Of that ``module`` it takes geometry, type and device, not the weight. Where the features have a
    skip connection, it is added before (``outer``) or after (``inner``) the second BatchNorm. Both
    weights are frozen; ``set_maps`` sets the normalizations. All padding comes before A: the first
    normalization's shift then reaches the border as it reaches every other pixel, and without an
    activation the second normalization can take it over (``fold_inner_shift``): the first one's β
    is 0 and frozen then. For a linear layer both are ``nn.Linear`` and ``nn.BatchNorm1d``.

    In eval mode the c1 intermediate channels are worked through in chunks, so that memory stays
    bounded however wide the layer is. id_cond layers of more than ``IMPLICIT_FROM`` bytes have no
    weights in memory: since M = I, each intermediate channel is one input, scaled and shifted,
    added to one output at one tap, which is what is computed.
    """

    first: nn.Conv2d | nn.Linear
    second: nn.Conv2d | nn.Linear
    skip: torch.Tensor

    def __init__(
        self, features: Features, module: nn.Conv2d | nn.Linear, activation: str = "identity"
    ):
        super().__init__()
        self.features, self.geometry = features, geometry_of(module)
        dtype, device, geometry = module.weight.dtype, module.weight.device, self.geometry
        for name in module.__constants__:  # kernel_size, ...: other code may read them
            setattr(self, name, getattr(module, name))
        shape = features.shape
        self.implicit = features.identity and shape.feature_bytes(features.width) > IMPLICIT_FROM
        norm = nn.BatchNorm1d if geometry.linear else nn.BatchNorm2d
        self.first_norm = norm(features.width, dtype=dtype)
        self.linearized = FIRST_ACTIVATIONS[activation]
        self.activation = self.linearized.module()
        self.inner_shift = activation != "identity"  # the activation's linear region may need it
        self.first_norm.bias.requires_grad_(self.inner_shift)
        self.second_norm = norm(shape.outputs, dtype=dtype)
        self.maps: tuple[AffineMap, AffineMap] | None = None
        self.folded = False  # whether a BatchNorm of the target went into this layer
        self.region = (0.0, math.inf) if self.linearized.one_sided else (-math.inf, math.inf)
        self.outside = 0  # intermediate values outside the region where the activation is linear
        if (skip := features.skip_weight) is not None:
            skip = skip if geometry.linear else skip[:, :, None, None]
            self.skip = nn.Parameter(skip.to(dtype, copy=True), requires_grad=False)
        if not self.implicit:
            first, second = features.weights()
            if geometry.linear:
                self.first = _frozen(nn.Linear, first, dtype)
                self.second = _frozen(nn.Linear, second[:, :, 0, 0], dtype)
            else:
                self.first = _frozen(nn.Conv2d, first[:, :, None, None], dtype, kernel_size=1)
                self.second = _frozen(
                    nn.Conv2d,
                    second,
                    dtype,
                    kernel_size=shape.kernel,
                    stride=geometry.stride,
                    dilation=geometry.dilation,
                )
        self.to(device).eval()

    def set_maps(self, first: AffineMap, second: AffineMap) -> None:
        """Make the layer compute with these affine maps; their statistics are rounded.

        Without an activation the first one's shift moves to the second.
        """
        precision = self.first_norm.weight.dtype
        first = first.rounded(precision)
        if not self.inner_shift:
            first, second = fold_inner_shift(self.features, first, second)
        self.maps = first, second.rounded(precision)
        for norm, wanted in zip((self.first_norm, self.second_norm), self.maps, strict=True):
            gamma, beta = wanted.parameters(norm.eps)
            with torch.no_grad():
                for held, value in zip(
                    norm_values(norm), (gamma, beta, wanted.mean, wanted.variance), strict=True
                ):
                    held.copy_(value)

    def present_maps(self) -> tuple[AffineMap, AffineMap]:
        """The maps of the normalizations as they are now.

        Those that were set or, where parameters have changed since, those of the parameters.
        """
        maps = []
        for norm, wanted in zip(
            (self.first_norm, self.second_norm), self.maps or (None, None), strict=True
        ):
            gamma, beta, mean, variance = held = norm_values(norm)
            if wanted is not None:
                values = (*wanted.parameters(norm.eps), wanted.mean, wanted.variance)
                if all(torch.equal(v.to(h), h) for v, h in zip(values, held, strict=True)):
                    maps.append(wanted)
                    continue
            maps.append(
                AffineMap.of_parameters(gamma.double(), beta.double(), mean, variance, norm.eps)
            )
        return maps[0], maps[1]

    @staticmethod
    def rounded_scale(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> torch.Tensor:
        """The scale of a normalization in its own precision."""
        gamma, _, _, variance = norm_values(norm)
        return gamma * torch.rsqrt(variance + norm.eps)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The function on (N, c0, H, W) or (c0, H, W), or on (..., c0) for a linear layer."""
        shape = self.features.shape
        if self.geometry.linear:
            if self.folded and input.ndim > 2:
                raise ValueError(
                    "BatchNorm1d on a sequence normalizes its second dimension; "
                    "such a layer cannot be rebuilt folded"
                )
            rows = input.reshape(input.shape[:-1].numel(), shape.inputs)
            return self._linear(rows).reshape(*input.shape[:-1], shape.outputs)
        if input.ndim == 3:
            return self(input[None])[0]
        # Channels last is 1.1 to 1.6 times as fast here on a processor; the output comes back as
        # the input came in, since what follows may take a view of it.
        output = self._convolution(
            pad(input, self.geometry).contiguous(memory_format=torch.channels_last)
        )
        return output.contiguous() if input.is_contiguous() else output

    def _finish(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Second normalization and skip connection, for the output of B and the padded input."""
        if self.features.skip == "none":
            return self.second_norm(out)
        if self.geometry.linear:
            skipped = F.linear(x, self.skip)
        else:
            skipped = F.conv2d(
                centre(x, self.features.shape.kernel, self.geometry, out.shape[2:]),
                self.skip,
                stride=self.geometry.stride,
            )
        return (
            self.second_norm(out + skipped)
            if self.features.skip == "outer"
            else self.second_norm(out) + skipped
        )

    def _convolution(self, x: torch.Tensor) -> torch.Tensor:
        if self.implicit:
            return self._finish(self._implicit(x), x)
        if self.training:
            return self._finish(self.second(self._activated(self.first_norm(self.first(x)))), x)
        step = max(
            16, CHUNK_BYTES // max(1, x.element_size() * x.shape[0] * x.shape[2] * x.shape[3])
        )
        parts = (slice(start, start + step) for start in range(0, self.features.width, step))
        outputs = (self._convolve_part(x, part) for part in parts)
        return self._finish(functools.reduce(torch.Tensor.add_, outputs), x)

    def _convolve_part(self, x: torch.Tensor, part: slice) -> torch.Tensor:
        """What some of the intermediate channels add to the output of B."""
        hidden = self._normalized(F.conv2d(x, self.first.weight[part]), part)
        return F.conv2d(
            hidden,
            self.second.weight[:, part],
            stride=self.geometry.stride,
            dilation=self.geometry.dilation,
        )

    def _linear(self, x: torch.Tensor) -> torch.Tensor:
        if self.implicit:
            return self._finish(self._implicit(x[:, :, None, None])[:, :, 0, 0], x)
        if self.training:
            return self._finish(self.second(self._activated(self.first_norm(self.first(x)))), x)
        out = x.new_zeros(len(x), self.features.shape.outputs)
        step = max(16, CHUNK_BYTES // max(1, x.element_size() * len(x)))
        for start in range(0, self.features.width, step):
            part = slice(start, start + step)
            hidden = self._normalized(F.linear(x, self.first.weight[part]), part)
            out = out + F.linear(hidden, self.second.weight[:, part])
        return self._finish(out, x)

    def _normalized(self, hidden: torch.Tensor, part: slice) -> torch.Tensor:
        norm = self.first_norm
        gamma, beta, mean, variance = (value[part] for value in norm_values(norm, detach=False))
        normalized = F.batch_norm(hidden, mean, variance, gamma, beta, training=False, eps=norm.eps)
        return self._activated(normalized)

    def _activated(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the activation, counting what falls outside its linear region."""
        if isinstance(self.activation, nn.Identity):
            return hidden
        if not self.training:
            low, high = self.region
            self.outside += int((hidden < low).sum()) + (
                int((hidden > high).sum()) if high < math.inf else 0
            )
        return self.activation(hidden)

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the one layer that this computes, for code that reads a layer's weight."""
        return self._collapsed().weight

    @property
    def bias(self) -> torch.Tensor:
        """The bias of the one layer that this computes."""
        return cast(torch.Tensor, self._collapsed().bias)  # it was made with one

    def _collapsed(self) -> nn.Conv2d | nn.Linear:
        """That layer, made again when a normalization has changed."""
        held = self._held()
        if not _same(held, self.__dict__.get("_collapsed_at", ())):
            collapsed = collapse_layer(self)
            inner = collapsed if isinstance(collapsed, nn.Linear) else collapsed.convolution
            self.__dict__["_collapsed_layer"] = inner
            self.__dict__["_collapsed_at"] = [value.clone() for value in held]
        return self.__dict__["_collapsed_layer"]

    def _held(self) -> list[torch.Tensor]:
        """Parameters and statistics of both normalizations."""
        return [*norm_values(self.first_norm), *norm_values(self.second_norm)]

    def is_finite(self) -> bool:
        """Whether everything that the normalizations hold is finite."""
        return all(bool(torch.isfinite(value).all()) for value in self._held())

    def frozen_digest(self) -> str:
        """SHA-256 of the weights the layer holds; equal to the features' own while unchanged."""
        drawn = self.features.skip_weight
        if drawn is not None and not torch.equal(
            self.skip.detach().flatten(1).cpu().float(), drawn
        ):
            return "changed"
        if self.implicit:
            return self.features.digest()
        first, second = self.first.weight.detach().flatten(1), self.second.weight.detach()
        second = second.reshape(*second.shape[:2], *self.features.shape.kernel)
        if self.features.pattern is not None:
            wanted = self.features.weights()
            same = torch.equal(first.cpu().float(), wanted[0]) and torch.equal(
                second.cpu().float(), wanted[1]
            )
            return self.features.digest() if same else "changed"
        skip = (
            {} if self.features.skip == "none" else {"skip": self.skip.detach().flatten(1).float()}
        )
        return tensor_digest({"first": first.float(), "second": second.float()} | skip)

    def _implicit(self, x: torch.Tensor) -> torch.Tensor:
        """Sum act(s_l x_j + t_l) over the features l = (i, tap, j) of each output i."""
        if self.training:
            raise RuntimeError(
                "an implicit id_cond layer has no training mode; "
                "rebuild with smaller layers or stay in eval mode"
            )
        norm = self.first_norm
        gamma, beta, mean, variance = norm_values(norm, detach=False)
        scale = gamma * torch.rsqrt(variance + norm.eps)
        activation = None if isinstance(self.activation, nn.Identity) else self._activated
        return identity_output(
            x, scale, beta - mean * scale, self.features.shape, self.geometry, activation
        )


def _same(now: Sequence[torch.Tensor], then: Sequence[torch.Tensor]) -> bool:
    """Whether tensors hold the same numbers, in the same type and on the same device.

    Versions would not count writes to ``.data``.
    """
    return len(now) == len(then) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(now, then, strict=True)
    )


def _frozen(
    kind: type[nn.Conv2d] | type[nn.Linear],
    weight: torch.Tensor,
    dtype: torch.dtype,
    **options: Any,
) -> nn.Conv2d | nn.Linear:
    """A bias-free layer of this weight, frozen; it shares the features' memory where it can."""
    module = nn.utils.skip_init(
        kind, weight.shape[1], weight.shape[0], bias=False, device="meta", dtype=dtype, **options
    )
    module.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    return module
