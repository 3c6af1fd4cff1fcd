"""Variants of the source that the paper does not have: another normalization, other features."""

from __future__ import annotations

import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.construction.random_linear import khatri_rao
from bnrecon.features import LayerShape, draw
from bnrecon.reporting.figures import COLUMN, PALETTE, new_figure
from bnrecon.studies.giannou2023.comparison import middle_range, place_legend
from bnrecon.studies.giannou2023.selection import train_sources, train_students
from bnrecon.studies.giannou2023.teacher import SIZES, draw_samples, draw_source

__all__ = [
    "FEATURES",
    "VARIANT_SIDES",
    "compare_features",
    "compare_normalizations",
    "draw_variants",
]

# Three trainings per width: at laptop scale the two largest of Figure 4 are left out.
VARIANT_SIDES = {"smoke": (3, 5), "laptop": (5, 10, 15, 20), "paper": (5, 10, 15, 20, 25, 30)}
FEATURES = {
    "random": "scales of random features",
    "ortho_cond": "scales of Ortho cond features",
    "id_cond": "scales of ID cond features",
    "dense": "weights of a dense network",
}


def compare_normalizations(side: int, scale: str) -> pd.DataFrame:
    """One row per normalization and run: test error after training scales and shifts by SGD."""
    sizes = SIZES[scale]
    runs = range(sizes.runs)
    samples = draw_samples(side, sizes, runs)
    first, second = draw_source(side, side**2, 1.0, runs)
    rows = []
    for name in ("batch", "layer"):
        errors, chosen = train_sources(first, second, samples, sizes.epochs, name)
        rows += [
            {
                "normalization": name,
                "side": side,
                "run": run,
                "mse": error,
                "learning_rate": chosen.rate,
                "schedule": chosen.schedule,
            }
            for run, error in enumerate(errors)
        ]
    return pd.DataFrame(rows)


def compare_features(side: int, scale: str) -> pd.DataFrame:
    """One row per kind of frozen features and run; ``dense`` trains the weights themselves.

    ``condition`` is the 2-norm condition number of the run's M, missing for ``dense``.
    """
    sizes = SIZES[scale]
    runs = list(range(sizes.runs))
    samples = draw_samples(side, sizes, runs)
    variance = samples.y["test"].double().var(dim=1).tolist()
    rows = []
    for kind in FEATURES:
        conditions = [float("nan")] * len(runs)
        if kind == "dense":
            errors, chosen, _ = train_students(side, runs, samples, sizes.epochs)
        else:
            first, second = _frozen(kind, side, runs)
            errors, chosen = train_sources(first, second, samples, sizes.epochs)
            conditions = [
                float(torch.linalg.cond(khatri_rao(v, w)))
                for w, v in zip(first, second, strict=True)
            ]
        rows += [
            {
                "features": kind,
                "side": side,
                "run": run,
                "mse": errors[run],
                "variance": variance[run],
                "condition": conditions[run],
                "learning_rate": chosen.rate,
                "schedule": chosen.schedule,
            }
            for run in runs
        ]
    return pd.DataFrame(rows)


def _frozen(kind: str, side: int, runs: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """W (S, d², d) and V (S, d, d²) of these features."""
    if kind == "random":
        return draw_source(side, side**2, 1.0, runs)
    shape = LayerShape(side, side)
    drawn = [draw(kind, shape, shape.equations, run, 0).weights() for run in runs]
    first = torch.stack([a.double() for a, _ in drawn])
    second = torch.stack([b.double().reshape(side, side**2) for _, b in drawn])
    return first, second


def draw_variants(rows: pd.DataFrame, column: str, labels: dict[str, str]) -> Figure:
    """Test error against the teacher's width, a line per value of ``column``."""
    figure, axes = new_figure(size=(COLUMN, 3.2))
    for (name, part), colour in zip(rows.groupby(column, sort=False), PALETTE, strict=False):
        found = {side: middle_range(group["mse"]) for side, group in part.groupby("side")}
        middle = [m for m, _, _ in found.values()]
        bars = [[m - low for m, low, _ in found.values()], [h - m for m, _, h in found.values()]]
        label = labels[name]
        axes.errorbar(list(found), middle, bars, marker="o", capsize=2, color=colour, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("width d of the teacher (source width d²)")
    axes.set_ylabel("test MSE")
    place_legend(figure)
    return figure
