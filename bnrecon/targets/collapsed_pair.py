"""A frozen random pair of convolutions, with the normalization between, as one convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.construction.two_layer import first_variance, input_moments
from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape


class CollapsedPair(nn.Module):
    """Convolution A (1x1), normalization, convolution B (k x k), computed as one convolution.

    A and B are frozen, B has zero padding. Input (N, c0, H, W), output (N, c2, H, W) for odd
    kernels; parameters ``gamma`` (c1,) and ``beta`` (c1,).

    ``inner="batchnorm"``: let μ and Σ be the mean and the (biased) covariance of the input over
    images and pixels. As A is 1x1, the normalization's batch statistics are exactly A μ and
    diag(A Σ A^T). With s = γ / sqrt(diag(A Σ A^T) + eps) and t = β - s ∘ A μ the pair equals a
    convolution of x with B diag(s) A, plus one of an image of ones with B t, the same for every
    input. Both have zero padding: beyond the border the second convolution of the pair sees zeros,
    not t, so that a plain bias would be wrong there. Under autocast each of the two is rounded to
    the low precision before they are added. Like BatchNorm, training refuses a batch of fewer than
    two pixels with a ``ValueError``.

    ``inner="scale"``: s = γ, without statistics or shift, as in the sequel (Random features for
    normalization layers).

    Args:
        shape: the layer that the pair replaces.
        width: c1, the number of features.
        features: the distribution of A and B, a name in ``DISTRIBUTIONS``.
        inner: ``batchnorm`` or ``scale``.
        seed: seed of the random draw.
        number: number of the layer, which has its own draw.
        collapsed: ``False`` runs the two convolutions in sequence, at the cost of c1 intermediate
            maps. Values and gradients are the same up to rounding. (Under autocast the single
            convolution runs in the low precision, the two do not.)

    >>> pair = CollapsedPair(LayerShape(2, 3, (3, 3)), 60, "he_normal", "batchnorm", 0, 0)
    >>> pair(torch.randn(4, 3, 5, 5)).shape
    torch.Size([4, 2, 5, 5])
    >>> sorted(pair.state_dict())
    ['beta', 'gamma', 'left_of_initial', 'running_covariance', 'running_mean']
    """

    first: torch.Tensor
    second: torch.Tensor
    running_mean: torch.Tensor
    running_covariance: torch.Tensor
    left_of_initial: torch.Tensor

    def __init__(
        self,
        shape: LayerShape,
        width: int,
        features: str,
        inner: str,
        seed: int,
        number: int,
        collapsed: bool = True,
    ):
        super().__init__()
        self.shape, self.inner, self.collapsed = shape, inner, collapsed
        self.eps, self.momentum = 1e-5, 0.1
        first, second = draw(features, shape, width, seed, number).weights()
        # Not in the state dict: the seed reproduces them.
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.gamma = nn.Parameter(torch.ones(width))
        if inner == "batchnorm":
            self.beta = nn.Parameter(torch.zeros(width))
            self.register_buffer("running_mean", torch.zeros(shape.inputs))
            self.register_buffer("running_covariance", torch.zeros(shape.inputs, shape.inputs))
            # BatchNorm's running variance starts at 1, which no covariance gives: this is the
            # remaining weight of that start.
            self.register_buffer("left_of_initial", torch.ones(()))

    @torch.no_grad()
    def start_from(self, weight: torch.Tensor) -> CollapsedPair:
        """Set γ = M^T vec(W) / sqrt(c1 / n), so that the pair starts as W (c2, c0, kh, kw).

        The columns of M must be those of an orthogonal matrix. For id_cond with c1 = n the pair is
        then W itself (Random features, Theorem 3.1); with fewer features it is W on the entries
        that they reach, with the same variance. Returns the pair.
        """
        table = weight.permute(0, 2, 3, 1).reshape(-1, self.shape.inputs).to(self.gamma)
        start = ((self._taps().T @ table) * self.first).sum(1)
        self.gamma.copy_(start / (len(start) / self.shape.equations) ** 0.5)
        return self

    def weight(self, scale: torch.Tensor | None = None) -> torch.Tensor:
        """B diag(s) A (c2, c0, kh, kw), by default with s = γ."""
        taps, shape = self._taps(), self.shape
        rows = (taps * (self.gamma if scale is None else scale)) @ self.first
        return rows.reshape(shape.outputs, *shape.kernel, shape.inputs).permute(0, 3, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The pair's output, before its second normalization."""
        # Keep the accuracy of statistics and of products of frozen weights.
        with torch.autocast(x.device.type, enabled=False):
            scale, shift = self._scale_and_shift(x)
            if not self.collapsed:
                hidden = F.conv2d(x.to(scale.dtype), self.first[:, :, None, None])
                hidden = hidden * scale[:, None, None]
                hidden = hidden if shift is None else hidden + shift[:, None, None]
                return F.conv2d(hidden, self.second, padding=self._padding())
            weight = self.weight(scale).contiguous(memory_format=torch.channels_last)
            constant = None if shift is None else self._shift_image(shift, x.shape[2:])
        output = F.conv2d(x, weight, padding=self._padding())
        return output if constant is None else output + constant.to(output.dtype)

    def _shift_image(self, shift: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        """The shift t's contribution to every image of this size: (1, c2, H, W)."""
        shape = self.shape  # ones as a 17th channel of x would be twice as slow on a CPU
        weight = (self._taps() @ shift).reshape(shape.outputs, 1, *shape.kernel)
        image = F.conv2d(shift.new_ones(1, 1, *size), weight, padding=self._padding())
        return image.contiguous(memory_format=torch.channels_last)

    def _taps(self) -> torch.Tensor:
        return self.second.transpose(1, 2).transpose(2, 3).flatten(0, 2)  # (c2 kh kw, c1)

    def _padding(self) -> tuple[int, int]:
        return self.shape.kernel[0] // 2, self.shape.kernel[1] // 2

    def _scale_and_shift(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.inner == "scale":
            return self.gamma, None
        mean, covariance = (
            self._statistics(x) if self.training else (self.running_mean, self.running_covariance)
        )
        variance = first_variance(self.first, covariance)
        if not self.training:
            variance = variance + self.left_of_initial
        scale = self.gamma * torch.rsqrt(variance + self.eps)
        return scale, self.beta - scale * (self.first @ mean)

    def _statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased covariance of the batch; their running means give those of A x."""
        pixels = x.permute(0, 2, 3, 1).flatten(0, 2).to(self.gamma.dtype)
        count = len(pixels)
        mean, covariance = input_moments(pixels)
        with torch.no_grad():
            self.left_of_initial.mul_(1 - self.momentum)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_covariance.lerp_(covariance * (count / max(1, count - 1)), self.momentum)
        return mean, covariance
