"""The two networks of "Batch Normalization Explained", Appendix D: residual and convolutional.

The paper lists them as code, probably for SymJAX. There Dropout(x, p) multiplies by a mask that is
1 with probability p (although its documentation says "to drop"), so that 0.9 and 0.7 are read as
dropout of 0.1 and 0.3. The paper gives no slope for the leaky ReLUs; it is 0.01 here. Three details
follow PyTorch instead: dropout divides what it keeps by the probability to keep (SymJAX does not),
BatchNorm adds 1e-5 to the variance (0.001), and PyTorch initializes the weights (Glorot).
"""

from __future__ import annotations

import torch
from torch import nn

from bnrecon.targets.models import require_side

SMALLEST = 2  # pixels a side, for the first pooling
LARGE = 64  # from this side on, one more convolution and pooling, as for Imagenette


def _convolution(inputs: int, outputs: int, kernel: int, padding: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2 if padding else 0, bias=False)


def _block(inputs: int, outputs: int, kernel: int, padding: bool = True) -> list[nn.Module]:
    convolution = _convolution(inputs, outputs, kernel, padding)
    return [convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.01)]


class LeakyResidual(nn.Module):
    """leaky_relu(f(x)) + x, or + a 3x3 convolution of x if the channels change.

    f is a convolution, BatchNorm, leaky ReLU, a convolution and BatchNorm. As in the paper's code,
    the skip connection joins after the activation.

    >>> LeakyResidual(4, 8)(torch.randn(2, 4, 6, 6)).shape
    torch.Size([2, 8, 6, 6])
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        second = _convolution(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.inner = nn.Sequential(*_block(inputs, outputs, 3), *second)
        self.activation = nn.LeakyReLU(0.01)
        same = inputs == outputs
        self.skip = nn.Identity() if same else _convolution(inputs, outputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H, W)."""
        return self.activation(self.inner(x)) + self.skip(x)


def dropout_resnet(
    shape: tuple[int, int, int], classes: int, width: int = 64, depth: int = 2
) -> nn.Module:
    """Build the paper's residual network.

    A 5x5 convolution, max-pooling and dropout of 0.1; for 1, 2, 4 and 8 times ``width`` channels
    ``depth`` residual blocks, an average-pooling and a 1x1 convolution of 8 times ``width``; the
    average over the remaining pixels and a linear layer. In the paper, pooling and 1x1 convolution
    follow every block; eight poolings do not fit 32x32 images, of which five leave one pixel.

    For images (C, H, W) with sides of 2 pixels or more. The defaults are the paper's; all channels
    are in proportion to the width.

    Raises:
        UserError: the images are smaller.

    >>> dropout_resnet((3, 32, 32), 10, width=8)(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_side("dropout_resnet", shape, SMALLEST)
    first = max(1, width // 2)
    network = nn.Sequential(*_block(shape[0], first, 5), nn.MaxPool2d(2), nn.Dropout(0.1))
    side, channels = min(shape[1:]) // 2, first
    for factor in (1, 2, 4, 8):
        for _ in range(depth):
            network.append(LeakyResidual(channels, factor * width))
            channels = factor * width
        if side > 1:
            network.append(nn.AvgPool2d(2))
            side //= 2
        network.extend(_block(channels, 8 * width, 1))
        channels = 8 * width
    return network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)])


def dropout_cnn(shape: tuple[int, int, int], classes: int, width: int = 96) -> nn.Module:
    """Build the paper's convolutional network.

    A 5x5 convolution and max-pooling, twice for large images; two stages of ``width`` and twice
    ``width`` channels, each three times a 5x5 and two 1x1 convolutions, dropout of 0.3 and
    max-pooling; a 3x3 convolution without padding, a 1x1 convolution, the average over the
    remaining pixels and a linear layer.

    For images (C, H, W) with sides of 2 pixels or more. The 3x3 convolution is padded for sides
    below 24; for sides below 8 a pooling is skipped if only one pixel remains. All channels are in
    proportion to the width, 96 in the paper.

    Raises:
        UserError: the images are smaller.

    >>> dropout_cnn((3, 32, 32), 10, width=12)(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_side("dropout_cnn", shape, SMALLEST)
    side, channels = min(shape[1:]) // 2, max(1, width // 3)
    network = nn.Sequential(*_block(shape[0], channels, 5), nn.MaxPool2d(2))
    if min(shape[1:]) >= LARGE:
        network.extend([*_block(channels, 2 * channels, 5), nn.MaxPool2d(2)])
        side, channels = side // 2, 2 * channels
    for outputs in (width, 2 * width):
        for _ in range(3):
            for kernel in (5, 1, 1):
                network.extend(_block(channels, outputs, kernel))
                channels = outputs
        network.append(nn.Dropout(0.3))
        if side > 1:
            network.append(nn.MaxPool2d(2))
            side //= 2
    network.extend(_block(channels, channels, 3, padding=side < 3))
    network.extend(_block(channels, channels, 1))
    return network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)])
