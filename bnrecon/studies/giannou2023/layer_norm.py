"""Beyond the paper: Figure 4, left, with LayerNorm instead of BatchNorm."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import pandas as pd

from bnrecon.reproduction.parts import Decisions, part, sweep
from bnrecon.studies.giannou2023 import comparison, teacher
from bnrecon.studies.giannou2023.batched_training import train_sources

LABELS = {"batch": "BatchNorm", "layer": "LayerNorm"}


def compare_normalizations(side: int, scale: str) -> pd.DataFrame:
    """One row per normalization and run: test error after training scales and shifts by SGD."""
    sizes = teacher.SIZES[scale]
    runs = range(sizes.runs)
    samples = teacher.draw_samples(side, sizes, runs)
    first, second = teacher.draw_source(side, side**2, 1.0, runs)
    frames = []
    for name in LABELS:
        trained = train_sources(first, second, samples, sizes, name, name=name)
        columns = {"normalization": name, "side": side, "run": runs, "mse": trained.errors}
        frames.append(pd.DataFrame(columns | asdict(trained.chosen)))
    return pd.concat(frames, ignore_index=True)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width."""
    lines = []
    for side, group in rows.groupby("side", sort=True):
        errors = group.groupby("normalization", sort=False)["mse"]
        line = {"teacher width d": side}
        line |= {LABELS[name]: comparison.format_errors(per_run) for name, per_run in errors}
        by_run = group.pivot(index="run", columns="normalization", values="mse")
        better = int((by_run["layer"] < by_run["batch"]).sum())
        lines.append(line | {"runs in which LayerNorm is better": f"{better} of {len(by_run)}"})
    return pd.DataFrame(lines)


def decide(rows: pd.DataFrame) -> Decisions:
    """Compare the two run by run."""
    errors = rows.pivot(index=["side", "run"], columns="normalization", values="mse")
    worse = int((errors["layer"] > errors["batch"]).sum())
    chosen = rows.drop_duplicates(["normalization", "side"]).set_index("normalization")
    largest = (chosen["learning_rate"] == comparison.LARGEST).groupby(level=0)
    numbers = {name: f"{one.sum()} of {len(one)}" for name, one in largest}
    numbers["worse"] = f"{worse} of {len(errors)}"
    return {"worse": comparison.decide_by_runs(worse, len(errors))}, numbers


SIDES = {"side": teacher.VARIANT_SIDES}
TASKS = sweep(compare_normalizations, "d = {side}", SIDES, teacher.BY_SCALE)
DRAW = partial(comparison.draw_panel, column="normalization", labels=LABELS)
PART = part(__file__, TASKS, summarize, DRAW, decide)
