"""Batched training against one network after the other, measured in one run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pandas as pd
import torch

from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.giannou2023.batched_training import (
    SourceNetworks,
    all_optimizers,
    evaluate,
    train,
)
from bnrecon.studies.giannou2023.teacher import Sizes, draw_samples, draw_source

__all__ = ["PART", "measure", "summarize"]

SIDES = {"smoke": (4,), "laptop": (5, 10, 20, 30), "paper": (5, 10, 20, 30)}

CAPTION = (
    "Nine optimizers, one run, 200 steps of 256 samples, once as one batched training and once "
    "as nine trainings, turn by turn three times in one process; the smallest time of each. "
    "Difference: the largest of a validation error, relative; it is rounding, since the batched "
    "products sum in another order."
)


def measure(side: int, repeats: int) -> pd.DataFrame:
    """One row per repeat: seconds of both ways, and how far their results differ."""
    sizes = Sizes(51_200, 2048, 2048, 1, 1)
    samples = draw_samples(side, sizes, [0])
    first, second = draw_source(side, side**2, 1.0, [0])
    optimizers = all_optimizers()
    rows = []
    for repeat in range(repeats):
        started = time.perf_counter()
        networks = SourceNetworks(first, second, len(optimizers))
        train(networks, optimizers, samples, 1)
        together = evaluate(networks, samples, "validation")[0]
        batched = time.perf_counter() - started
        started = time.perf_counter()
        alone = []
        for optimizer in optimizers:
            network = SourceNetworks(first, second, 1)
            train(network, [optimizer], samples, 1)
            alone.append(evaluate(network, samples, "validation")[0, 0])
        single = time.perf_counter() - started
        difference = ((together - torch.stack(alone)).abs() / torch.stack(alone)).max()
        rows.append(
            {
                "side": side,
                "repeat": repeat,
                "networks": len(optimizers),
                "batched_seconds": batched,
                "single_seconds": single,
                "difference": float(difference),
                "threads": torch.get_num_threads(),
            }
        )
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per teacher width."""
    return [
        Task(f"d = {side}", measure, {"side": side, "repeats": 1 if scale == "smoke" else 3})
        for side in SIDES[scale]
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width."""
    lines = []
    for side, group in rows.groupby("side", sort=True):
        batched, single = group["batched_seconds"].min(), group["single_seconds"].min()
        lines.append(
            {
                "teacher width d": side,
                "networks": int(group["networks"].iloc[0]),
                "one after the other / batched": f"{single / batched:.2f}",
                "seconds batched": f"{batched:.2f}",
                "difference": f"{group['difference'].max():.0e}",
                "threads": int(group["threads"].iloc[0]),
            }
        )
    return pd.DataFrame(lines)


PART = Experiment(
    "computation",
    "Training many small networks at once",
    tasks,
    summarize,
    CAPTION,
)
