"""Networks trained with the optimizer that does best on validation samples."""

from __future__ import annotations

import torch

from bnrecon.studies.giannou2023.batched_training import (
    DenseNetworks,
    Optimizer,
    SourceNetworks,
    all_optimizers,
    evaluate,
    train,
)
from bnrecon.studies.giannou2023.teacher import Samples

__all__ = ["train_sources", "train_students"]


def train_sources(
    first: torch.Tensor,
    second: torch.Tensor,
    samples: Samples,
    epochs: int,
    normalization: str = "batch",
) -> tuple[list[float], Optimizer]:
    """Select the optimizer on the first run's validation samples, then train every run with it."""
    candidates = all_optimizers()
    trial = SourceNetworks(first[:1], second[:1], len(candidates), normalization)
    part = _first_run(samples)
    train(trial, candidates, part, epochs)
    chosen = candidates[int(evaluate(trial, part, "validation")[0].argmin())]
    networks = SourceNetworks(first, second, 1, normalization)
    train(networks, [chosen], samples, epochs)
    return evaluate(networks, samples, "test")[:, 0].tolist(), chosen


def train_students(
    side: int, runs: list[int], samples: Samples, epochs: int
) -> tuple[list[float], Optimizer, torch.Tensor]:
    """The same for dense students; their weights (S, d, d), too."""
    candidates = all_optimizers()
    trial = DenseNetworks(runs[:1], side, len(candidates))
    part = _first_run(samples)
    train(trial, candidates, part, epochs)
    chosen = candidates[int(evaluate(trial, part, "validation")[0].argmin())]
    networks = DenseNetworks(runs, side, 1)
    train(networks, [chosen], samples, epochs)
    errors = evaluate(networks, samples, "test")[:, 0].tolist()
    return errors, chosen, networks.weight.detach()[:, 0]


def _first_run(samples: Samples) -> Samples:
    """The first run's samples, its dimension kept."""
    return Samples(
        samples.teachers[:1],
        {part: x[:1] for part, x in samples.x.items()},
        {part: y[:1] for part, y in samples.y.items()},
    )
