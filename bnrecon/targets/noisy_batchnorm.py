"""BatchNorm whose batch statistics vary like those of a smaller batch."""

from __future__ import annotations

import logging

import torch
from torch import nn

from bnrecon.runtime.errors import UserError, shorten
from bnrecon.targets.initialization import FrozenBatchNorm1d, FrozenBatchNorm2d
from bnrecon.targets.module_tree import change_class

logger = logging.getLogger(__name__)

TINY = 1e-12  # a channel below this relative variance counts as constant, without noise


class NoisyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the noise of a virtual batch in training ("controlled noise").

    The statistics of a channel vary between batches of B images. With m_i the mean of image i over
    its pixels, v_i its mean squared distance from the channel's mean μ, and independent images,

        var(μ_B) = var(m) / B,    var(σ²_B) = var(v) / B + O(1 / B²),    E σ²_B = σ² - var(m) / B.

    (For one pixel this is Proposition 2 of "Batch Normalization Explained", Eq. 13, times the
    factor ((B - 1) / B)² of the variance in Eq. 3. The pixels of an image are not independent,
    hence the variances between images.) In training the statistics are replaced by

        μ' = μ_B + σ_B r ξ,                       ξ normal,      r² = δ var(m) / σ²_B,
        σ'² = σ²_B (1 - r²) χ²_ν / ν,             δ = 1 / V - 1 / B,
        ν = 2 / (κ δ),                            κ = var(v) / σ⁴_B,

    additive Gaussian and multiplicative chi-square noise (the paper's Section 5), scaled by Eq. 13
    as in the paper's Figure 7. var(m) and κ are estimated from the batch (κ is 2 for Gaussian data
    of one pixel). In eval mode, and for a batch of at most V images, the layer is PyTorch's. The
    running statistics have no noise. The noise is drawn from PyTorch's generator, like Dropout's,
    applied in float32 under autocast, and constant in gradients.

    **What holds.** If the layer's inputs are independent images, the means and variances of μ' and
    σ'² are those of a batch of V images, up to terms of order 1 / V². This holds in a network's
    first normalization, and after layers with fixed statistics. It does not hold after another
    batch normalization, because the images of a batch share that layer's statistics. Small batches
    then move μ much less than Eq. 13 says (after a ReLU of Gaussian channels, with 3% of its
    variance), but the noise is still scaled by Eq. 13, and the noise of earlier layers adds to it:
    instead of a 15% larger variance, one gets about ten times as much. The paper's experiment does
    the same, if its noise is scaled as in its Figure 7. For the statistics of smaller batches in a
    deep network, normalize groups of V images (ghost batch normalization).

    Args:
        num_features: channels.
        virtual_batch: V, at least 2, not necessarily an integer: V = B / 1.15 raises both variances
            by 15%, as in the paper. None adds no noise.
        options: options of PyTorch's class.

    >>> _ = torch.manual_seed(0)
    >>> layer = NoisyBatchNorm2d(3, virtual_batch=8)
    >>> images = torch.randn(64, 3, 5, 5)
    >>> bool((layer(images) == layer(images)).all())  # each call draws its own noise
    False
    >>> layer.eval()
    NoisyBatchNorm2d(3, eps=1e-05, momentum=0.1, affine=True, ..., virtual_batch=8)
    """

    def __init__(
        self, num_features: int, *, virtual_batch: float | None = None, **options: object
    ) -> None:
        _check_size(virtual_batch)
        super().__init__(num_features, **options)  # type: ignore[arg-type]  # PyTorch's own
        self.virtual_batch = virtual_batch

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize (B, channels, ...)."""
        virtual = self.virtual_batch
        if not self.training or virtual is None or len(input) <= virtual:
            return super().forward(input)
        if hasattr(self, "parametrizations"):
            raise RuntimeError("NoisyBatchNorm: a parametrized weight or bias cannot get noise")
        if self.running_mean is not None and self.running_mean.itemsize < 4:
            raise RuntimeError(f"NoisyBatchNorm in {self.running_mean.dtype}: keep it in float32")
        shift, scale = batch_noise(input, virtual)
        # γ (y - shift) / scale + β for the normalized input y, by another γ and β, so that a
        # subclass can continue from there. They are float32 under autocast: the scale's noise may
        # be finer than bfloat16's 2^-8.
        gain = 1 / scale if self.weight is None else self.weight / scale
        bias = -gain * shift if self.bias is None else self.bias - gain * shift
        held = {name: value for name, value in vars(self).items() if name in ("weight", "bias")}
        vars(self).update(weight=gain, bias=bias)  # hides the parameters, or pruned ones
        try:
            return super().forward(input)
        finally:
            del vars(self)["weight"], vars(self)["bias"]
            vars(self).update(held)

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"{super().extra_repr()}, virtual_batch={self.virtual_batch}"

    @staticmethod
    def convert(network: nn.Module, virtual_batch: float | None) -> nn.Module:
        """Add noise to every BatchNorm1d, 2d and 3d of a network, in place.

        They keep their parameters, statistics, hooks and what a subclass computes besides the
        normalization, such as an activation. Frozen normalizations, whose statistics do not vary,
        are not changed. A warning names other batch normalizations, which get no noise.

        Returns:
            The network.

        Raises:
            UserError: a layer's forward pass or weight is replaced on the instance.

        >>> network = NoisyBatchNorm2d.convert(nn.Sequential(nn.BatchNorm2d(3)), virtual_batch=8)
        >>> type(network[0]).__name__
        'NoisyBatchNorm2d'
        """
        _check_size(virtual_batch)
        layers, others = [], []
        for name, module in network.named_modules():
            if isinstance(module, FrozenBatchNorm1d | FrozenBatchNorm2d):
                continue
            noisy = next((NOISY[kind] for kind in NOISY if isinstance(module, kind)), None)
            if noisy is not None:
                if "forward" in vars(module) or hasattr(module, "parametrizations"):
                    raise UserError(
                        f"layer {name}: its forward pass or weight is replaced on the instance, "
                        "where noise has no effect; give a subclass of BatchNorm"
                    )
                layers.append((module, noisy))
            elif isinstance(module, nn.modules.batchnorm._BatchNorm):
                others.append(f"{name} ({type(module).__name__})")
        for layer, noisy in layers:
            change_class(layer, noisy)
            layer.virtual_batch = virtual_batch  # its new class has it
        if others:
            logger.warning("no noise in %s: only BatchNorm1d to 3d get it", shorten(others))
        return network


class NoisyBatchNorm1d(NoisyBatchNorm, nn.BatchNorm1d):
    """``NoisyBatchNorm`` of (B, channels) or (B, channels, length)."""


class NoisyBatchNorm2d(NoisyBatchNorm, nn.BatchNorm2d):
    """``NoisyBatchNorm`` of (B, channels, height, width)."""


class NoisyBatchNorm3d(NoisyBatchNorm, nn.BatchNorm3d):
    """``NoisyBatchNorm`` of (B, channels, depth, height, width)."""


NOISY: dict[type[nn.Module], type[NoisyBatchNorm]] = {
    nn.BatchNorm1d: NoisyBatchNorm1d,
    nn.BatchNorm2d: NoisyBatchNorm2d,
    nn.BatchNorm3d: NoisyBatchNorm3d,
}


def _check_size(virtual_batch: float | None) -> None:
    if virtual_batch is not None and not virtual_batch >= 2:
        raise UserError(f"virtual_batch={virtual_batch}: must be at least 2")


@torch.no_grad()
def batch_noise(images: torch.Tensor, virtual_batch: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw (μ' - μ_B) / σ_B and σ' / σ_B, as ``NoisyBatchNorm`` defines them.

    Args:
        images: (B, channels, ...), B above ``virtual_batch``.
        virtual_batch: V, at least 2.

    Returns:
        Two tensors (channels,), at least float32. A constant or non-finite channel has no noise:
        0 and 1.
    """
    batch = len(images)
    extra = 1 / virtual_batch - 1 / batch
    values = images.to(torch.promote_types(images.dtype, torch.float32))
    if values.dim() == 2:
        values = values[..., None]
    pixels = tuple(range(2, values.dim()))
    mean = values.mean((0, *pixels), keepdim=True)
    square = ((values - mean) ** 2).mean(pixels)  # v_i
    variance = square.mean(0)
    varies = variance > TINY * mean.flatten() ** 2  # false for NaN, which has no gamma distribution
    variance = torch.where(varies, variance, 1)
    between = extra * values.mean(pixels).var(0) / variance  # r²
    kurtosis = torch.where(varies, square.var(0) / variance**2, 1)
    freedom = 2 / (kurtosis * extra).clamp_min(TINY)
    chi = torch.distributions.Chi2(freedom, validate_args=False).sample() / freedom
    shift = between.sqrt() * torch.randn_like(between)
    scale = ((1 - between) * chi).sqrt()
    return torch.where(varies, shift, 0), torch.where(varies, scale, 1)
