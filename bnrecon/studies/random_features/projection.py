"""Theorem 4.1: the part of a target that too few features cannot represent."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import torch

from bnrecon.features.shapes import LayerShape
from bnrecon.reproduction.parts import Decisions, below, part, sweep, table
from bnrecon.studies.random_features.averages import interval_of
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix, target_weight

CHANNELS = {"smoke": 6, "laptop": 20, "paper": 20}
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}
SAME = 0.01  # norms count as equal up to this relative difference


def measure_projections(channels: int, draws: int) -> pd.DataFrame:
    """Least-squares errors of r = n - c0 features, and the norms of two projections.

    With M = U S Vᵀ of rank r and a normal target v, the two are the last n - r components of Uᵀ v
    and, as Theorem 4.1 is printed, the last r. One row per distribution and draw.
    """
    n, width = channels**2, channels**2 - channels
    shape = LayerShape(channels, channels)
    rows = []
    for (label, name), seed in itertools.product(FEATURES.items(), range(draws)):
        matrix = feature_matrix(name, shape, width, seed)
        target = target_weight("he_normal", channels, channels, seed).reshape(-1)
        left = torch.linalg.svd(matrix)[0]
        solution = torch.linalg.lstsq(matrix, target[:, None], driver="gelsd").solution[:, 0]
        row = {"features": label, "channels": channels, "c1": width, "missing": n - width}
        row |= {"seed": seed, "least_squares_error": float((matrix @ solution - target).norm())}
        row |= {"norm_of_last_n_minus_r": float((left[:, width:].T @ target).norm())}
        rows.append(row | {"norm_of_last_r": float((left[:, n - width :].T @ target).norm())})
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per distribution: both norms compared with the least-squares error."""
    columns: dict[str, Any] = {
        "features": "features",
        "channels c0 = c2": "channels",
        "r = c1": "c1",
        "n - r": "missing",
        "least-squares error": interval_of("least_squares_error"),
        DIFFERENCE: lambda group: group["difference"].max(),
        "last r components, over the error": interval_of("printed"),
    }
    return table(_compared(rows), ["features"], False, **columns)


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Add both norms relative to the least-squares error."""
    error = rows["least_squares_error"]
    difference = (rows["norm_of_last_n_minus_r"] / error - 1).abs()
    return rows.assign(difference=difference, printed=rows["norm_of_last_r"] / error)


def decide(rows: pd.DataFrame) -> Decisions:
    """Which projection gives the error?"""
    rows = _compared(rows)
    printed, first = rows["printed"], rows.iloc[0]
    differs = (printed - 1).abs().min() > SAME
    numbers = {"n": first["c1"] + first["missing"], "r": first["c1"], "draws": len(rows)}
    numbers |= {"low": printed.min(), "high": printed.max(), "difference": rows["difference"].max()}
    numbers |= {"distributions": rows["features"].nunique()}
    return {"Theorem 4.1": "needs a correction" if differs else "confirmed"}, numbers


DIFFERENCE = "last n - r components: largest relative difference"
TASKS = sweep(measure_projections, "all", {}, {"channels": CHANNELS, "draws": DRAWS})
PART = part(__file__, TASKS, summarize, decide=decide, formats={DIFFERENCE: ".0e"}, excerpt=below)
