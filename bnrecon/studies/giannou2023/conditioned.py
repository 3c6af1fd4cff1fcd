"""Beyond the paper: does SGD reach the construction where the features are well conditioned?"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import pandas as pd
import torch

from bnrecon.construction.random_linear import khatri_rao
from bnrecon.features import LayerShape, draw
from bnrecon.reproduction.sweeps import sweep
from bnrecon.reproduction.texts import part
from bnrecon.studies.giannou2023.batched_training import train_sources, train_students
from bnrecon.studies.giannou2023.comparison import draw_panel, format_errors
from bnrecon.studies.giannou2023.teacher import (
    BY_SCALE,
    SIZES,
    VARIANT_SIDES,
    draw_samples,
    draw_source,
)

FEATURES = {
    "random": "scales of random features",
    "ortho_cond": "scales of Ortho cond features",
    "id_cond": "scales of ID cond features",
    "dense": "weights of a dense network",
}


def compare_features(side: int, scale: str) -> pd.DataFrame:
    """One row per kind of frozen features and run; ``dense`` trains the weights themselves.

    ``condition`` is the 2-norm condition number of the run's M, missing for ``dense``.
    """
    sizes = SIZES[scale]
    runs = list(range(sizes.runs))
    samples = draw_samples(side, sizes, runs)
    variance = samples.y["test"].double().var(dim=1).tolist()
    frames = []
    for kind in FEATURES:
        conditions = [float("nan")] * len(runs)
        if kind == "dense":
            errors, chosen, _ = train_students(side, runs, samples, sizes.epochs)
        else:
            first, second = _frozen(kind, side, runs)
            errors, chosen = train_sources(first, second, samples, sizes.epochs)
            products = (khatri_rao(v, w) for w, v in zip(first, second, strict=True))
            conditions = [float(torch.linalg.cond(product)) for product in products]
        columns = {"features": kind, "side": side, "run": runs, "mse": errors}
        columns |= {"variance": variance, "condition": conditions, **asdict(chosen)}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _frozen(kind: str, side: int, runs: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """W (S, d², d) and V (S, d, d²) of these features."""
    if kind == "random":
        return draw_source(side, side**2, 1.0, runs)
    shape = LayerShape(side, side)
    drawn = [draw(kind, shape, shape.equations, run, 0).weights() for run in runs]
    first = torch.stack([a.double() for a, _ in drawn])
    second = torch.stack([b.double().reshape(side, side**2) for _, b in drawn])
    return first, second


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width and kind of features."""
    lines = []
    for (side, kind), group in rows.groupby(["side", "features"], sort=False):
        condition = group["condition"].mean()
        lines.append(
            {
                "teacher width d": side,
                "trained": FEATURES[kind],
                "condition": "" if pd.isna(condition) else f"{condition:.2g}",
                "test MSE": format_errors(group["mse"]),
                "share of the variance": f"{(group['mse'] / group['variance']).mean():.3f}",
                "optimizer": f"{group['learning_rate'].iloc[0]:g}, {group['schedule'].iloc[0]}",
            }
        )
    return pd.DataFrame(lines)


TASKS = sweep(compare_features, "d = {side}", {"side": VARIANT_SIDES}, BY_SCALE)
PART = part(__file__, TASKS, summarize, partial(draw_panel, column="features", labels=FEATURES))
