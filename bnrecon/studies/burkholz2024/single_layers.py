"""One layer of a trained target, rebuilt from he_normal features without the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer, composed_weight, relative_error
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reproduction.trainings import obtain

TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("target=vgg18", "data=cifar10", "scale=laptop"),
    "paper": ("target=vgg18", "data=cifar10", "scale=paper"),
}
# A layer of each stage of VGG18, 3x3 from w channels to w: n = 9 w². The small VGG has the first
# two.
STAGES = tuple(f"features.conv{stage}_2" for stage in range(1, 6))


@dataclass(frozen=True)
class SingleLayer:
    """A target layer, features for it, and the system of their scales."""

    target: TargetLayer
    features: Features
    system: System

    def errors(self, scales: Scales) -> tuple[float, float]:
        """‖W' - W‖ / ‖W‖, composed in float64, and composed in float32 from rounded scales."""
        single = feature_operator(self.features, torch.float32, self.system.rhs.device)
        exact, assembled = (
            relative_error(composed_weight(matrix, scales, self.features), self.target.weight)
            for matrix in (self.system.matrix, single)
        )
        return exact, assembled


def single_layer(name: str, seed: int, excess: int | None, options: Sequence[str]) -> SingleLayer:
    """A layer of a trained target, with he_normal features.

    Args:
        name: of the layer in the target.
        seed: of the features.
        excess: features beyond the equations, c1 - n; ``None`` for the minimum width, n - c2 + 1.
        options: overrides of the run whose target it is; the target is trained if need be.
    """
    trained, _, device = obtain(options)
    layers = find_layers(trained.network).layers
    number = [layer.name for layer in layers].index(name)
    target = layers[number].target
    shape = target.shape
    width = shape.minimum_width if excess is None else shape.equations + excess
    features = draw("he_normal", shape, width, seed, number)
    return SingleLayer(target, features, layer_system(target, features, device, False))
