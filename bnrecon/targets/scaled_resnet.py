"""torchvision's ResNets with all widths scaled, which torchvision itself does not offer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models import resnet

LAYERS: dict[int, tuple[Any, list[int]]] = {
    18: (resnet.BasicBlock, [2, 2, 2, 2]),
    34: (resnet.BasicBlock, [3, 4, 6, 3]),
    50: (resnet.Bottleneck, [3, 4, 6, 3]),
}


def scaled_resnet(depth: int, width: int, classes: int) -> resnet.ResNet:
    """A ResNet whose stages are scaled by ``width`` / 64; its stem and head are the original's.

    Args:
        depth: 18, 34 or 50.
        width: channels of the first stage, 64 in the original.
        classes: number of logits.
    """
    block, layers = LAYERS[depth]
    return _ScaledResNet(block, layers, width, num_classes=classes)


class _ScaledResNet(resnet.ResNet):
    def __init__(self, block: Any, layers: list[int], width: int, **options: Any):
        self._width = width
        super().__init__(block, layers, **options)

    def _make_layer(
        self, block: Any, planes: int, blocks: int, stride: int = 1, dilate: bool = False
    ) -> nn.Sequential:
        if planes == 64:  # the first stage: its input is what the stem gives
            self.inplanes = self._width
        return super()._make_layer(block, planes * self._width // 64, blocks, stride, dilate)
