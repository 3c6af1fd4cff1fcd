"""What a partition costs, against its number of regions."""

from __future__ import annotations

import time

import torch
from torch import nn

from bnrecon.partition.slice import rectangle, slice_along
from bnrecon.partition.statistics import set_statistics
from bnrecon.partition.subdivision import partition

__all__ = ["measure_cost", "random_network"]


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


def measure_cost(network: nn.Module) -> dict[str, float]:
    """Partition a plane and measure it: units, regions, segments, seconds.

    Args:
        network: as for ``partition``, of two inputs, from (-2, -2) to (2, 2).

    >>> row = measure_cost(random_network(4, 2))
    >>> sorted(row)
    ['microseconds_per_region', 'regions', 'seconds', 'segments', 'units']
    """
    plane = slice_along(torch.zeros(2), torch.eye(2), rectangle((-2, -2), (2, 2)))
    start = time.perf_counter()
    parts = partition(network, plane)
    seconds = time.perf_counter() - start
    return {
        "units": sum(layer.units for layer in parts.layers),
        "regions": len(parts.regions),
        "segments": len(parts.folds),
        "seconds": seconds,
        "microseconds_per_region": 1e6 * seconds / len(parts.regions),
    }
