"""A small normalized classifier on a toy problem in the plane, trained with mini-batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn import functional as F

SLOPE = 0.1  # of leaky ReLU
NOISE = 0.1  # standard deviation around the two half circles of radius 1
RATE, MOMENTUM = 0.1, 0.9
Data = tuple[torch.Tensor, torch.Tensor]


def two_moons(count: int, seed: int) -> Data:
    """Points (count, 2) around two interleaved half circles, and their classes 0 or 1 (count,)."""
    points, labels = make_moons(count, noise=NOISE, random_state=seed)
    return torch.from_numpy(points), torch.from_numpy(labels)


def draw_classifier(widths: Sequence[int], seed: int) -> nn.Sequential:
    """A float64 network of two inputs and one output with normal weights of variance 1 / fan-in.

    As in the paper's Eq. 2, the hidden layers have batch normalization with gamma = 1 and beta = 0,
    and leaky ReLU; the last layer has neither normalization nor bias (Proposition 3).
    """
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = []
    inputs = 2
    for width in widths:
        modules += [nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width, affine=False)]
        modules.append(nn.LeakyReLU(SLOPE))
        inputs = width
    network = nn.Sequential(*modules, nn.Linear(inputs, 1, bias=False)).double()
    for weight in network.parameters():
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
    return network


def run_batches(
    network: nn.Sequential, batches: torch.Tensor, probes: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs (M, B) of mini-batches (M, B, inputs), each normalized by its mu and sigma.

    Also returns outputs (M, P) of probes (P, inputs), normalized by each mini-batch's statistics
    (Eq. 3). The network's running statistics are neither read nor changed.
    """
    beside = batches[:, :0] if probes is None else probes.expand(len(batches), -1, -1)
    for module in network:
        if isinstance(module, nn.BatchNorm1d):
            mean = batches.mean(1, keepdim=True)
            scale = (batches.var(1, correction=0, keepdim=True) + module.eps).rsqrt()
            batches, beside = (batches - mean) * scale, (beside - mean) * scale
        else:
            batches, beside = module(batches), module(beside)
    return batches[..., 0], beside[..., 0]


def train(
    network: nn.Sequential, data: Data, batch: int, groups: int, updates: int, seed: int
) -> nn.Sequential:
    """Train by SGD with momentum on the cross-entropy, in place.

    Each mini-batch of ``batch`` points, drawn without replacement, is normalized by its own
    statistics; each of the ``updates`` averages the gradients of ``groups`` mini-batches.
    """
    points, labels = data
    generator = np.random.Generator(np.random.Philox(seed))
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    for _ in range(updates):
        chosen = torch.from_numpy(generator.permutation(len(points))[: batch * groups])
        outputs, _ = run_batches(network, points[chosen].reshape(groups, batch, -1))
        expected = labels[chosen].reshape(groups, batch).double()
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(outputs, expected).backward()
        optimizer.step()
    return network
