"""What the exact partition of a plane costs, against the number of its regions."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.partition import measure_cost, random_network
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task

__all__ = ["PART", "measure_network"]

UNITS = {
    "smoke": (16, 32),
    "laptop": (60, 120, 240, 480, 1000),
    "paper": (60, 120, 240, 480, 1000, 1500),
}
DEPTHS = {"smoke": (2,), "laptop": (2, 4, 8), "paper": (2, 4, 8)}
MOST_REGIONS = 2_000_000


def measure_network(units: int, depth: int, batch_norm: bool) -> pd.DataFrame:
    """One row: a random leaky-ReLU network of ``depth`` hidden layers, and ``measure_cost`` of it.

    A small network is partitioned first, so that no first call is measured.
    """
    measure_cost(random_network(8, depth, batch_norm=batch_norm))
    width = units // depth
    cost = measure_cost(random_network(width, depth, batch_norm=batch_norm))
    return pd.DataFrame([{"depth": depth, "width": width, "batch_norm": batch_norm} | cost])


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per network."""
    return [
        Task(
            f"{units} units in {depth} layers{', normalized' if batch_norm else ''}",
            measure_network,
            {"units": units, "depth": depth, "batch_norm": batch_norm},
        )
        for batch_norm in (True, False)
        for depth in DEPTHS[scale]
        for units in UNITS[scale]
    ]
