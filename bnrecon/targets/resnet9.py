"""ResNet-9: eight convolutions with BatchNorm and two residual blocks, quick on 32x32 images.

The architecture is that of D. Page, "How to train your ResNet" (2018), which won the DAWNBench
competition on CIFAR-10. "Batch Normalization Explained" only names a "Resnet9" in Sections 3 to 5;
its reproduction uses this one.
"""

from __future__ import annotations

import torch
from torch import nn

from bnrecon.targets.models import require_side

SMALLEST = 8  # pixels per side: three poolings leave one
LOGIT_SCALE = 0.125  # as in the original: without it initial logits are large


class Residual(nn.Module):
    """x + f(x).

    >>> Residual(nn.Identity())(torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the inner module's output, of the same shape (N, C, H, W), to ``x``."""
        return x + self.inner(x)


class ScaledLinear(nn.Module):
    """A linear layer without a bias whose outputs are multiplied by a constant."""

    def __init__(self, inputs: int, outputs: int, scale: float):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs) to (N, outputs)."""
        return self.linear(x) * self.scale


def resnet9(shape: tuple[int, int, int], classes: int, width: int = 64) -> nn.Module:
    """Build the ResNet-9 of the DAWNBench competition.

    A first convolution of ``width`` channels; three stages of 2, 4 and 8 times as many, each a
    convolution and a max-pooling that halves the side; a residual block of two convolutions after
    the first and the third; the maximum over the remaining pixels; a linear layer. All convolutions
    are 3x3 without bias, followed by BatchNorm and ReLU. He initialization, with variance 2 over
    fan-in, also allows training without BatchNorm.

    Raises:
        UserError: the images have fewer than 8 pixels per side.

    >>> network = resnet9((3, 32, 32), 10)
    >>> sum(p.numel() for p in network.parameters())
    6573120
    """
    require_side("resnet9", shape, SMALLEST)
    network = nn.Sequential()
    network.add_module("first", _block(shape[0], width))
    network.add_module("stage1", _stage(width, 2 * width, residual=True))
    network.add_module("stage2", _stage(2 * width, 4 * width, residual=False))
    network.add_module("stage3", _stage(4 * width, 8 * width, residual=True))
    network.add_module("maximum", nn.AdaptiveMaxPool2d(1))
    network.add_module("flatten", nn.Flatten())
    network.add_module("classifier", ScaledLinear(8 * width, classes, LOGIT_SCALE))
    return network


def _block(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _stage(inputs: int, outputs: int, residual: bool) -> nn.Sequential:
    stage = nn.Sequential(*_block(inputs, outputs), nn.MaxPool2d(2))
    if residual:
        blocks = nn.Sequential(*_block(outputs, outputs), *_block(outputs, outputs))
        stage.append(Residual(blocks))
    return stage
