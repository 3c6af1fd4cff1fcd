"""The source network's layers: two frozen convolutions, each followed by a real BatchNorm, computed in channel chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features.pair import Features
from bnrecon.reconstruction.collapse import collapse_layer
from bnrecon.reconstruction.geometry import centre, geometry_of, pad
from bnrecon.runtime.digests import tensor_digest

__all__ = ["IMPLICIT_FROM", "AffineMap", "SourceLayer"]


CHUNK_BYTES = (
    32 * 2**20
)  # of one chunk's intermediate map: small enough to stay near the processor's cache


IMPLICIT_FROM = 64 * 2**20  # id_cond weights beyond this size stay implicit: M = I needs no matrix


@dataclass(frozen=True)
class AffineMap:
    """What a normalization layer is to do, y = scale · x + shift by channel (float64), and its running statistics
    (in the layer's own precision).
    """

    scale: torch.Tensor
    shift: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def parameters(self, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """γ and β (float64) with which BatchNorm does this in eval mode: γ = s · sqrt(var + eps), β = t + s · mean."""
        return self.scale * (
            self.variance.double() + eps
        ).sqrt(), self.shift + self.scale * self.mean.double()

    @classmethod
    def of_parameters(
        cls,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        eps: float,
    ) -> AffineMap:
        """The map that BatchNorm with these float64 parameters does."""
        scale = gamma / (variance.double() + eps).sqrt()
        return cls(scale, beta - scale * mean.double(), mean, variance)


class SourceLayer(nn.Module):
    """Convolution A (1x1), BatchNorm, activation, convolution B (kxk), BatchNorm in the place of one target layer.

    Of that ``module`` it takes geometry, type and device, not the weight. Where the features have a
    skip connection, it is added before (``outer``) or after (``inner``) the second BatchNorm.
    Both weights are frozen; ``set_maps`` sets the normalizations. All padding comes before A: the first normalization's shift
    then reaches the border as it reaches every other pixel. For a linear layer both are ``nn.Linear`` and ``nn.BatchNorm1d``.

    In eval mode the c1 intermediate channels are worked through in chunks, so that memory stays bounded however wide the
    layer is. id_cond layers of more than ``IMPLICIT_FROM`` bytes have no weights in memory: since M = I, each intermediate
    channel is one input, scaled and shifted, added to one output at one tap, which is what is computed.
    """

    def __init__(
        self, features: Features, module: nn.Conv2d | nn.Linear, activation: str = "identity"
    ):
        super().__init__()
        self.features, self.geometry = features, geometry_of(module)
        dtype, device, geometry = module.weight.dtype, module.weight.device, self.geometry
        for (
            name
        ) in module.__constants__:  # kernel_size, in_features, ...: other code may ask for them
            setattr(self, name, getattr(module, name))
        shape = features.shape
        self.implicit = features.identity and shape.feature_bytes(features.width) > IMPLICIT_FROM
        norm = nn.BatchNorm1d if geometry.linear else nn.BatchNorm2d
        self.first_norm = norm(features.width, dtype=dtype)
        self.linearized = FIRST_ACTIVATIONS[activation]
        self.activation = self.linearized.module()
        self.second_norm = norm(shape.outputs, dtype=dtype)
        self.maps: tuple[AffineMap, AffineMap] | None = None
        self.folded = False  # whether a BatchNorm of the target went into this layer
        self.region = (0.0, math.inf) if self.linearized.one_sided else (-math.inf, math.inf)
        self.outside = (
            0  # intermediate values seen outside the region where the activation is (nearly) linear
        )
        if features.skip != "none":
            skip = (
                features.skip_weight if geometry.linear else features.skip_weight[:, :, None, None]
            )
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
        """Make the normalization layers do these affine maps; nothing else of the layer changes."""
        self.maps = (first, second)
        for norm, wanted in ((self.first_norm, first), (self.second_norm, second)):
            gamma, beta = wanted.parameters(norm.eps)
            with torch.no_grad():
                norm.weight.copy_(gamma)
                norm.bias.copy_(beta)
                norm.running_mean.copy_(wanted.mean)
                norm.running_var.copy_(wanted.variance)

    def present_maps(self) -> tuple[AffineMap, AffineMap]:
        """What the normalizations do now: the maps that were set, or, where their parameters were changed since, those."""
        maps = []
        for norm, wanted in zip(
            (self.first_norm, self.second_norm), self.maps or (None, None), strict=True
        ):
            held = (norm.weight.detach(), norm.bias.detach(), norm.running_mean, norm.running_var)
            if wanted is not None:
                asked = (*wanted.parameters(norm.eps), wanted.mean, wanted.variance)
                if all(torch.equal(a.to(h), h) for a, h in zip(asked, held, strict=True)):
                    maps.append(wanted)
                    continue
            maps.append(
                AffineMap.of_parameters(*(h.double() for h in held[:2]), *held[2:], norm.eps)
            )
        return maps[0], maps[1]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's function on (N, c0, H, W) or (c0, H, W), or on (..., c0) for a linear layer."""
        shape = self.features.shape
        if self.geometry.linear:
            if self.folded and input.ndim > 2:
                raise ValueError(
                    "BatchNorm1d on a sequence normalizes its second dimension; such a layer cannot be rebuilt folded"
                )
            rows = input.reshape(input.shape[:-1].numel(), shape.inputs)
            return self._linear(rows).reshape(*input.shape[:-1], shape.outputs)
        if input.ndim == 3:
            return self(input[None])[0]
        # Channels last is 1.1 to 1.6 times as fast here on a processor; the output comes back as the input came in, since
        # what follows may take a view of it.
        output = self._convolution(
            pad(input, self.geometry).contiguous(memory_format=torch.channels_last)
        )
        return output.contiguous() if input.is_contiguous() else output

    def _ended(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Second normalization and skip connection behind the second layer's output ``out``, of the padded input ``x``."""
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
            return self._ended(self._implicit(x), x)
        if self.training:
            return self._ended(self.second(self._activated(self.first_norm(self.first(x)))), x)
        out = None
        step = max(
            16, CHUNK_BYTES // max(1, x.element_size() * x.shape[0] * x.shape[2] * x.shape[3])
        )
        for start in range(0, self.features.width, step):
            part = slice(start, start + step)
            hidden = self._normalized(F.conv2d(x, self.first.weight[part]), part)
            partial = F.conv2d(
                hidden,
                self.second.weight[:, part],
                stride=self.geometry.stride,
                dilation=self.geometry.dilation,
            )
            out = partial if out is None else out.add_(partial)
        return self._ended(out, x)

    def _linear(self, x: torch.Tensor) -> torch.Tensor:
        if self.implicit:
            return self._ended(self._implicit(x[:, :, None, None])[:, :, 0, 0], x)
        if self.training:
            return self._ended(self.second(self._activated(self.first_norm(self.first(x)))), x)
        out = x.new_zeros(len(x), self.features.shape.outputs)
        step = max(16, CHUNK_BYTES // max(1, x.element_size() * len(x)))
        for start in range(0, self.features.width, step):
            part = slice(start, start + step)
            hidden = self._normalized(F.linear(x, self.first.weight[part]), part)
            out = out + F.linear(hidden, self.second.weight[:, part])
        return self._ended(out, x)

    def _normalized(self, hidden: torch.Tensor, part: slice) -> torch.Tensor:
        norm = self.first_norm
        statistics = (
            norm.running_mean[part],
            norm.running_var[part],
            norm.weight[part],
            norm.bias[part],
        )
        return self._activated(F.batch_norm(hidden, *statistics, training=False, eps=norm.eps))

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
        """The weight of the one layer that this amounts to, for code that reads a layer's weight, its type or its device."""
        return self._collapsed().weight

    @property
    def bias(self) -> torch.Tensor:
        """The bias of the one layer that this amounts to."""
        return self._collapsed().bias

    def _collapsed(self) -> nn.Module:
        """That layer, made anew when a normalization has changed."""
        held = self._held()
        if not _same(held, self.__dict__.get("_collapsed_at", ())):
            collapsed = collapse_layer(self)
            self.__dict__["_collapsed_layer"] = (
                collapsed if self.geometry.linear else collapsed.convolution
            )
            self.__dict__["_collapsed_at"] = [value.clone() for value in held]
        return self.__dict__["_collapsed_layer"]

    def _held(self) -> list[torch.Tensor]:
        """Parameters and statistics of both normalizations."""
        return [
            value.detach()
            for norm in (self.first_norm, self.second_norm)
            for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        ]

    def is_finite(self) -> bool:
        """Whether everything that the normalizations hold is finite."""
        return all(bool(torch.isfinite(value).all()) for value in self._held())

    def frozen_digest(self) -> str:
        """SHA-256 of the weights the layer holds now; equal to the features' own as long as nothing changed them."""
        if self.features.skip != "none" and not torch.equal(
            self.skip.detach().flatten(1).cpu().float(), self.features.skip_weight
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
                "an implicit id_cond layer has no training mode; rebuild with smaller layers or stay in eval mode"
            )
        shape, norm = self.features.shape, self.first_norm
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        table = (shape.outputs, shape.taps, shape.inputs)
        scale, shift = scale.reshape(table), shift.reshape(table)
        move = {"stride": self.geometry.stride, "dilation": self.geometry.dilation}
        if isinstance(self.activation, nn.Identity):
            kernel = scale.transpose(1, 2).reshape(shape.outputs, shape.inputs, *shape.kernel)
            return F.conv2d(x, kernel, shift.sum((1, 2)), **move)
        patches = F.unfold(
            x, shape.kernel, dilation=self.geometry.dilation, stride=self.geometry.stride
        )
        patches = patches.reshape(len(x), shape.inputs, shape.taps, -1).transpose(1, 2)
        outputs = [
            self._activated(s[..., None] * patches + t[..., None]).sum((1, 2))
            for s, t in zip(scale, shift, strict=True)
        ]
        sides = [
            (x.shape[2 + d] - self.geometry.dilation[d] * (shape.kernel[d] - 1) - 1)
            // self.geometry.stride[d]
            + 1
            for d in (0, 1)
        ]
        return torch.stack(outputs, 1).reshape(len(x), shape.outputs, *sides)


def _same(now: Sequence[torch.Tensor], then: Sequence[torch.Tensor]) -> bool:
    """Whether tensors hold the same numbers, in the same type and place; versions do not count writes to ``.data``."""
    return len(now) == len(then) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(now, then, strict=True)
    )


def _frozen(kind: type, weight: torch.Tensor, dtype: torch.dtype, **options) -> nn.Module:
    """A bias-free layer of this weight that no optimizer will change; it shares the features' memory where it can."""
    module = nn.utils.skip_init(
        kind, weight.shape[1], weight.shape[0], bias=False, device="meta", dtype=dtype, **options
    )
    module.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    return module
