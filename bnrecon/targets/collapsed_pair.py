"""A VGG whose convolutions are random and frozen, trained from scratch by its normalizations alone (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS, choose_width, distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.targets.models import activation as build_activation
from bnrecon.targets.models import register_target, vgg

__all__ = ["CollapsedPair", "normalization_vgg"]


INNER = ("batchnorm", "scale")


class CollapsedPair(nn.Module):
    """Convolution A (1x1), normalization, convolution B (k x k, zero padding), both frozen, computed as one convolution.

    ``inner="batchnorm"``: with μ and Σ the mean and (biased) covariance of the input over images and pixels, the normalization's batch
    statistics are A μ and diag(A Σ A^T), exactly, since A is 1x1. With s = γ / sqrt(diag(A Σ A^T) + eps) and t = β - s ∘ A μ the pair
    equals one convolution of the zero-padded [x; 1] with [B diag(s) A, B t]. The constant channel is padded like the others: the
    pair's second convolution sees zeros, not t, beyond the border, so that a plain bias would be wrong there.

    ``inner="scale"``: s = γ alone, no statistics and no shift, as the sequel paper reads.

    ``collapsed=False`` runs the pair as it stands, at the cost of its c1 intermediate maps; values and gradients are the same up to
    rounding (under autocast the one convolution runs in the low precision, the pair does not).
    Input (N, c0, H, W), output (N, c2, H, W); parameters ``gamma`` (c1,) and ``beta`` (c1,).

    >>> pair = CollapsedPair(LayerShape(2, 3, (3, 3)), 60, "he_normal", "batchnorm", seed=0, number=0)
    >>> pair(torch.randn(4, 3, 5, 5)).shape, sorted(pair.state_dict())
    (torch.Size([4, 2, 5, 5]), ['beta', 'gamma', 'left_of_initial', 'running_covariance', 'running_mean'])
    """

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
        # Not part of the state: they come back from the seed.
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.gamma = nn.Parameter(torch.ones(width))
        if inner == "batchnorm":
            self.beta = nn.Parameter(torch.zeros(width))
            self.register_buffer("running_mean", torch.zeros(shape.inputs))
            self.register_buffer("running_covariance", torch.zeros(shape.inputs, shape.inputs))
            # BatchNorm's running variance starts at 1, of which this much is left; no covariance would say it.
            self.register_buffer("left_of_initial", torch.ones(()))

    @torch.no_grad()
    def start_from(self, weight: torch.Tensor) -> CollapsedPair:
        """Set γ = M^T vec(W) / sqrt(c1 / n): where M is made of columns of an orthogonal matrix, the pair starts as W (c2, c0, kh, kw).

        At c1 = n of id_cond that is W itself (Random features, Thm 3.1), below W on what the features reach, its variance kept.
        """
        table = weight.permute(0, 2, 3, 1).reshape(-1, self.shape.inputs).to(self.gamma)
        start = ((self._taps().T @ table) * self.first).sum(1)
        self.gamma.copy_(start / (len(start) / self.shape.equations) ** 0.5)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The pair's output, before its second normalization."""
        with torch.autocast(
            x.device.type, enabled=False
        ):  # statistics and products of frozen weights keep their accuracy
            scale, shift = self._scale_and_shift(x)
            if not self.collapsed:
                hidden = (
                    F.conv2d(x.to(scale.dtype), self.first[:, :, None, None]) * scale[:, None, None]
                )
                hidden = hidden if shift is None else hidden + shift[:, None, None]
                return F.conv2d(hidden, self.second, padding=self._padding())
            taps = self._taps()
            rows = (taps * scale) @ self.first
            columns = [rows.reshape(self.shape.outputs, *self.shape.kernel, self.shape.inputs)]
            if shift is not None:
                columns.append((taps @ shift).reshape(self.shape.outputs, *self.shape.kernel, 1))
            weight = torch.cat(columns, -1).permute(0, 3, 1, 2)
        if shift is not None:
            x = torch.cat([x, x.new_ones(len(x), 1, *x.shape[2:])], 1)
        return F.conv2d(
            x, weight.contiguous(memory_format=torch.channels_last), padding=self._padding()
        )

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
        variance = (
            ((self.first @ covariance) * self.first).sum(1).clamp_min(0)
        )  # rounding can take it below
        if not self.training:
            variance = variance + self.left_of_initial
        scale = self.gamma * torch.rsqrt(variance + self.eps)
        return scale, self.beta - scale * (self.first @ mean)

    def _statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased covariance of the batch; what BatchNorm would keep of A x follows from their running averages, being linear."""
        rows = x.transpose(0, 1).flatten(1).to(self.gamma.dtype)
        count = rows.shape[1]
        mean = rows.mean(1)
        centred = rows - mean[:, None]
        covariance = centred @ centred.T / count
        with torch.no_grad():
            self.left_of_initial.mul_(1 - self.momentum)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_covariance.lerp_(covariance * (count / max(1, count - 1)), self.momentum)
        return mean, covariance


@register_target("vgg_normalization")
def normalization_vgg(
    shape: tuple[int, int, int],
    classes: int,
    width: int,
    groups: list[int],
    activation: str,
    features: str,
    excess: int,
    inner: str,
    oversampling: float | None = None,
) -> nn.Module:
    """Build the source architecture of a VGG, every layer two frozen random ones with n + ``excess`` features between them.

    Identity in between; only normalizations are parameters. The features are drawn from the generator that initial weights would be
    drawn from, so that they come back with ``train.seed``. The linear layer is a pair too, before an average over what side is left.
    With ``oversampling`` there are so many times n features instead. Scales start at 1; with ``inner="scale"`` those of id_cond,
    sparse_id_cond and ortho_cond start from a VGG's initial weights (Random features, Thm 3.1).

    ``features="none"``: one trained convolution in the place of every pair, the same network in its original parameterization;
    ``excess``, ``oversampling`` and ``inner`` then say nothing.

    >>> network = normalization_vgg((3, 8, 8), 10, 4, [1, 1], "relu", "he_normal", 10, "batchnorm")
    >>> network(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    build_activation(activation)
    if features != "none" and features not in DISTRIBUTIONS:
        raise UserError(
            f"target.features={features}: {nearest(features, ['none', *DISTRIBUTIONS])}"
        )
    if inner not in INNER:
        raise UserError(f"target.inner={inner}: {nearest(inner, INNER)}")
    model = vgg(shape, classes, width, groups, activation)
    seed = int(torch.randint(2**31, ()))
    number = 0

    def pair(module: nn.Conv2d | nn.Linear) -> nn.Module:
        nonlocal number
        outputs, inputs, *kernel = module.weight.shape
        layer = LayerShape(outputs, inputs, tuple(kernel) or (1, 1))
        weight = module.weight.detach().reshape(outputs, inputs, *layer.kernel)
        number += 1
        if features == "none":
            single = nn.Conv2d(
                inputs, outputs, layer.kernel, padding=layer.kernel[0] // 2, bias=False
            )
            single.weight = nn.Parameter(weight)
            return single
        kind = distribution(features)
        c1 = (
            layer.equations + excess
            if oversampling is None
            else choose_width(features, layer, oversampling)
        )
        kind.check_width(layer, c1)
        built = CollapsedPair(layer, c1, features, inner, seed, number - 1)
        from_weight = inner == "scale" and (kind.orthogonal or kind.at_most_n)
        return built.start_from(weight) if from_weight else built

    for name, module in list(model.features.named_children()):
        if isinstance(module, nn.Conv2d):
            setattr(model.features, name, pair(module))
    network = nn.Sequential()
    network.add_module("features", model.features)
    network.add_module("classifier", pair(model.classifier))
    network.add_module("classifier_norm", nn.BatchNorm2d(classes))
    network.add_module("average", nn.AdaptiveAvgPool2d(1))
    network.add_module("flatten", nn.Flatten())
    network.skipped_poolings = model.skipped_poolings
    return network
