"""Random piecewise-affine networks of two inputs."""

from __future__ import annotations

import torch
from torch import nn

from bnrecon.partition.statistics import set_statistics


def random_network(width: int, depth: int, *, batch_norm: bool = True, seed: int = 0) -> nn.Module:
    """A leaky-ReLU network of two inputs and one output with random weights, in eval mode.

    With BatchNorm its statistics are set from 50 Gaussian points; without, the biases are PyTorch's
    random ones.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules: list[nn.Module] = []
        for layer in range(depth):
            modules.append(nn.Linear(width if layer else 2, width, bias=not batch_norm))
            if batch_norm:
                modules.append(nn.BatchNorm1d(width))
            modules.append(nn.LeakyReLU(0.1))
        network = nn.Sequential(*modules, nn.Linear(width, 1)).double().eval()
        return set_statistics(network, torch.randn(50, 2, dtype=torch.float64))
