"""What the exact partition of a plane costs, against the number of its regions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.partition import partition, random_network, rectangle, slice_along
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.parts import part, sweep

SIZES = (60, 120, 240, 480, 1000)
UNITS = {"smoke": (16, 32), "laptop": SIZES, "paper": SIZES}
DEPTHS = {"smoke": (2,), "laptop": (2, 4), "paper": (2, 4)}
QUICK = 250  # networks of at most that many units are measured three times
KINDS = {True: "with batch normalization", False: "without"}


def measure_network(units: int, depth: int, batch_norm: bool) -> pd.DataFrame:
    """One row: units, regions, segments and seconds of a plane, from (-2, -2) to (2, 2).

    Of a random leaky-ReLU network with so many units in layers of equal width, with the statistics
    of 50 normal points or with random biases; the fastest of the repeats. ``processor_seconds`` is
    the processor's time, which other processes change less than they do ``seconds``.
    """
    plane = slice_along(torch.zeros(2), torch.eye(2), rectangle((-2, -2), (2, 2)))
    # Not measured: the first call.
    partition(random_network(8, depth, batch_norm=batch_norm), plane)
    network = random_network(units // depth, depth, batch_norm=batch_norm)
    runs = []
    for _ in range(3 if units <= QUICK else 1):
        start, processor = time.perf_counter(), time.process_time()
        parts = partition(network, plane)
        runs.append((time.process_time() - processor, time.perf_counter() - start))
    processor_seconds, seconds = min(runs)
    row: dict[str, Any] = {"depth": depth, "batch_norm": batch_norm}
    row |= {"units": sum(layer.units for layer in parts.layers), "regions": len(parts.regions)}
    row |= {"segments": len(parts.folds), "seconds": seconds}
    row |= {"microseconds_per_region": 1e6 * seconds / len(parts.regions)}
    return pd.DataFrame([row | {"processor_seconds": processor_seconds}])


def growth(one: Sequence[float], other: Sequence[float]) -> float:
    """The exponent p of other ~ one^p, by least squares of the logarithms.

    >>> round(growth([1, 2, 4], [3, 12, 48]), 3)
    2.0
    """
    return float(np.polyfit(np.log(one), np.log(other), 1)[0])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per network."""
    return pd.DataFrame(
        {
            "hidden layers": row.depth,
            "batch normalization": "yes" if row.batch_norm else "no",
            "units": row.units,
            "regions": row.regions,
            "regions per unit²": f"{row.regions / row.units**2:.2f}",
            "segments": row.segments,
            "seconds": f"{row.processor_seconds:.2g}",
            "µs per region": f"{1e6 * row.processor_seconds / row.regions:.0f}",
        }
        for row in rows.itertuples()
    )


def fill_caption(rows: pd.DataFrame) -> dict[str, Any]:
    """What the caption names: the fitted powers."""
    powers = "; ".join(
        f"{depth} hidden layers {KINDS[norm]}: regions ~ units^{growth(g.units, g.regions):.1f}, "
        f"seconds ~ regions^{growth(g.regions, g.processor_seconds):.1f}"
        for (norm, depth), g in rows.groupby(["batch_norm", "depth"], sort=False)
        if len(g) > 1
    )
    return {"quick": QUICK, "powers": powers or "none, of one network"}


def draw(rows: pd.DataFrame) -> Figure:
    """Regions against units, and seconds against regions."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.6))
    for (norm, depth), group in rows.groupby(["batch_norm", "depth"], sort=False):
        form = "o-" if depth == rows["depth"].min() else "s--"
        style = {"color": PALETTE[0 if norm else 1], "label": f"{depth} layers, {KINDS[norm]}"}
        left.plot(group["units"], group["regions"], form, **style)
        right.plot(group["regions"], group["processor_seconds"], form, **style)
    left.set(xlabel="units", ylabel="regions", xscale="log", yscale="log")
    right.set(xlabel="regions", ylabel="seconds of processor time", xscale="log", yscale="log")
    left.legend()
    return figure


OVER = {("batch_norm", "_kind"): tuple(KINDS.items()), "depth": DEPTHS, "units": UNITS}
TASKS = sweep(measure_network, "{units} units in {depth} layers, {_kind}", OVER)
PART = part(__file__, TASKS, summarize, draw, numbers=fill_caption)
