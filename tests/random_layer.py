"""Random numbers, layers and systems, and a checkpoint that interrupts a solve."""

import pytest
import torch

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.solvers import solve

# Distributions with features outside memory, by storage.
ELSEWHERE = [
    (name, storage)
    for name, kind in DISTRIBUTIONS.items()
    for storage in kind.storages
    if storage != "memory"
]


def gaussian(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_layer(name, shape, width, seed=0, storage="memory", skip="none", device="cpu"):
    """Target, features and system of a layer with normal weights, in float64."""
    weight = gaussian(shape.outputs, shape.inputs, *shape.kernel, seed=seed)
    target = TargetLayer("layer", weight, torch.zeros(shape.outputs))
    features = draw(name, shape, width, seed, 0, storage=storage, skip=skip)
    orthogonal = DISTRIBUTIONS[name].orthogonal
    return target, features, layer_system(target, features, torch.device(device), orthogonal)


class Kept:
    """A checkpoint in memory that interrupts the solve at the first ``wanted`` state."""

    def __init__(self, wanted):
        self.state, self.wanted = None, wanted

    def load(self):
        return self.state

    def save(self, state):
        if self.wanted(state):
            self.state = state
            raise KeyboardInterrupt


def interrupted(system, spec, wanted):
    """The checkpoint of a solve interrupted at its first ``wanted`` state."""
    kept = Kept(wanted)
    with pytest.raises(KeyboardInterrupt):
        solve(system, spec, kept)
    return kept
