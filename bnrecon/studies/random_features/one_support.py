"""Theorem 3.1 for sparse features: on one support scales take the steps of masked weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd
import torch
import torch.nn.functional as F

from bnrecon.config import composition
from bnrecon.data import load
from bnrecon.data.batches import EpochPosition
from bnrecon.targets.building import build_target

__all__ = ["compare_steps"]

DEVICE = torch.device("cpu")


def compare_steps(density: float, steps: int, options: Sequence[str]) -> pd.DataFrame:
    """Train both on the same batches in float64: the largest relative difference of their logits.

    Scales of sparse ID cond features, and the weights that these features select. SGD at the peak
    rate, with the run's momentum and weight decay.

    Args:
        density: c1 / n.
        steps: of SGD.
        options: overrides of the runs, without ``target.inner``.

    Returns:
        One row; ``difference`` is relative to the largest logit, the largest of all steps.
    """
    configs = [composition.compose([*options, f"target.inner={one}"]) for one in ("scale", "mask")]
    config = configs[0]
    data = load(config.data)
    networks = [build_target(one.target_request, data).double().train() for one in configs]
    train = config.target_request.train
    optimizers = [
        torch.optim.SGD(
            network.parameters(), train.lr, train.momentum, weight_decay=train.weight_decay
        )
        for network in networks
    ]
    largest = 0.0
    at = EpochPosition(train.batch_size, train.seed, 0)
    batches = data.train_batches(at, DEVICE, torch.float64)
    for x, y in itertools.islice(batches, steps):
        outputs = []
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            logits = network(x)
            F.cross_entropy(logits, y).backward()
            optimizer.step()
            outputs.append(logits.detach())
        scales, weights = outputs
        largest = max(largest, float((scales - weights).abs().max() / weights.abs().max()))
    return pd.DataFrame([{"density": density, "steps": steps, "difference": largest}])
