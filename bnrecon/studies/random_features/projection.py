"""Theorem 4.1: the part of a target that too few features cannot represent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd
import torch

from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix, target_weight

__all__ = ["PART", "measure_projections"]

CHANNELS = {"smoke": 6, "laptop": 20, "paper": 20}
SAME = 0.01  # a relative difference up to which norms are called equal
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """All of it is one task."""
    size = {"channels": CHANNELS[scale], "draws": DRAWS[scale]}
    return [Task("all", measure_projections, size)]


def measure_projections(channels: int, draws: int) -> pd.DataFrame:
    """Least-squares errors of r = n - c0 features beside the norms of two projections.

    With M = U S Vᵀ of rank r and a normal target v, the two are the last n - r components of Uᵀ v
    and, as Theorem 4.1 is printed, the last r.

    Returns:
        One row for each distribution and draw.
    """
    n, width = channels**2, channels**2 - channels
    shape = LayerShape(channels, channels)
    rows = []
    for (label, name), seed in itertools.product(FEATURES.items(), range(draws)):
        matrix = feature_matrix(name, shape, width, seed)
        target = target_weight("he_normal", channels, channels, seed).reshape(-1)
        left = torch.linalg.svd(matrix)[0]
        solution = torch.linalg.lstsq(matrix, target[:, None], driver="gelsd").solution[:, 0]
        rows.append(
            {
                "features": label,
                "channels": channels,
                "c1": width,
                "missing": n - width,
                "seed": seed,
                "least_squares_error": float((matrix @ solution - target).norm()),
                "norm_of_last_n_minus_r": float((left[:, width:].T @ target).norm()),
                "norm_of_last_r": float((left[:, n - width :].T @ target).norm()),
            }
        )
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each distribution: both norms compared with the least-squares error."""
    lines = []
    for label, group in rows.groupby("features", sort=False):
        first, error = group.iloc[0], group["least_squares_error"]
        lines.append(
            {
                "features": label,
                "channels c0 = c2": int(first["channels"]),
                "r = c1": int(first["c1"]),
                "n - r": int(first["missing"]),
                "least-squares error": mean_interval(list(error)),
                "last n - r components: largest relative difference": (
                    (group["norm_of_last_n_minus_r"] / error - 1).abs().max()
                ),
                "last r components, over the error": mean_interval(
                    list(group["norm_of_last_r"] / error)
                ),
            }
        )
    return pd.DataFrame(lines)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Which projection gives the error?"""
    error = rows["least_squares_error"]
    repaired = (rows["norm_of_last_n_minus_r"] / error - 1).abs().max()
    printed = rows["norm_of_last_r"] / error
    first = rows.iloc[0]
    return [
        Claim(
            "Theorem 4.1",
            "The least error is ‖P_r Uᵀ v‖, where P_r projects a vector to its last r components.",
            "false as stated" if (printed - 1).abs().min() > SAME else "confirmed",
            f"n = {first['c1'] + first['missing']}, r = {first['c1']}: the last r components are "
            f"{printed.min():.1f} to {printed.max():.1f} times as long as the error, the last "
            f"n - r agree with it to {repaired:.0e} ({len(rows)} draws of "
            f"{rows['features'].nunique()} distributions).",
        )
    ]


PART = Experiment(
    where="Theorem 4.1",
    title="The part of a target that too few features cannot represent",
    caption=(
        "The least-squares error of normal targets is compared with the norms of components of "
        "Uᵀ vec(W), where U holds the left singular vectors of M. "
        "The theorem is printed with a projection to the last r components, I_r. "
        "The projection has rank n - r: the error is the norm of the last n - r components. The "
        "proof's last step and the listing of A.3 have this block, so that results computed with "
        "the listing are not affected (docs/errata.md, entry 10). "
        "± is the half-width of the 95% Student-t interval over n draws."
    ),
    tasks=tasks,
    summary=summarize,
    formats={"last n - r components: largest relative difference": ".0e"},
    claims=claims,
)
