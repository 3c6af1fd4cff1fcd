"""Batched training against one network after the other, measured in one run."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import torch

from bnrecon.reproduction.parts import part, sweep, table
from bnrecon.studies.giannou2023 import batched_training
from bnrecon.studies.giannou2023.teacher import Sizes, draw_samples, draw_source

SIDES = {"smoke": (4,), "laptop": (5, 10, 20, 30), "paper": (5, 10, 20, 30)}
REPEATS = {"smoke": 1, "laptop": 3, "paper": 3}


def measure(side: int, repeats: int) -> pd.DataFrame:
    """One row per repeat: seconds of both ways, and how far their results differ."""
    sizes = Sizes(51_200, 2048, 2048, 1, 1)
    samples = draw_samples(side, sizes, [0])
    first, second = draw_source(side, side**2, 1.0, [0])
    optimizers = batched_training.all_optimizers(sizes.rates)

    def time_trainings(trainings: list[list[Any]]) -> tuple[float, torch.Tensor]:
        started, errors = time.perf_counter(), []
        for batch in trainings:
            networks = batched_training.SourceNetworks(first, second, len(batch))
            batched_training.train(networks, batch, samples, 1)
            errors.append(batched_training.evaluate(networks, samples, "validation")[0])
        return time.perf_counter() - started, torch.cat(errors)

    rows = []
    for repeat in range(repeats):
        batched, together = time_trainings([optimizers])
        single, alone = time_trainings([[optimizer] for optimizer in optimizers])
        row: dict[str, Any] = {"side": side, "repeat": repeat, "networks": len(optimizers)}
        row |= {"batched_seconds": batched, "single_seconds": single}
        row |= {"difference": float(((together - alone).abs() / alone).max())}
        rows.append(row | {"threads": torch.get_num_threads()})
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width."""

    def speedup(group: pd.DataFrame) -> str:
        return f"{group['single_seconds'].min() / group['batched_seconds'].min():.2f}"

    columns: dict[str, Any] = {
        "teacher width d": "side",
        "networks": "networks",
        "one after the other / batched": speedup,
        "seconds batched": lambda group: f"{group['batched_seconds'].min():.2f}",
        "difference": lambda group: f"{group['difference'].max():.0e}",
        "threads": "threads",
    }
    return table(rows, ["side"], **columns)


TASKS = sweep(measure, "d = {side}", {"side": SIDES}, {"repeats": REPEATS})
PART = part(__file__, TASKS, summarize)
