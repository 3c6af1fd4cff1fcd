"""Corollary 1: a target of rank r needs a width of d r, at twice the depth again."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import nn

from bnrecon.construction.relu_source import relu_network
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.giannou2023.theorem1 import measure, random_target

__all__ = ["PART", "claims", "low_rank_target", "rebuild", "summarize"]

SETTINGS = {
    "smoke": ((4, 1), (4, 2)),
    "laptop": ((16, 1), (16, 4), (32, 1), (32, 4), (64, 1), (64, 4), (64, 16)),
    "paper": ((16, 1), (16, 4), (32, 1), (32, 4), (64, 1), (64, 4), (64, 16)),
}
SEEDS = {"smoke": 2, "laptop": 3, "paper": 10}

CAPTION = (
    "Two layers of width d and rank r, all nonzero singular values 1 (spectral norm 1), factorized "
    "by singular values; sources with uniform weights; each factor is rebuilt by "
    "two random layers. The proof passes B*x on to the next factor as it stands, but a ReLU "
    "network has a ReLU there: here the shift of the second normalization opens it and the third "
    "takes that off again. Error of the function as in Theorem 1; the largest over seeds."
)


def low_rank_target(side: int, rank: int, seed: int) -> nn.Sequential:
    """Two layers W* of rank r and spectral norm 1."""
    network = random_target(side, 2, seed)
    with torch.no_grad():
        for module in network:
            if isinstance(module, nn.Linear):
                left, _, right = torch.linalg.svd(module.weight)
                weight = left[:, :rank] @ right[:rank]
                module.weight.copy_(weight / torch.linalg.matrix_norm(weight, 2))
    return network


def rebuild(side: int, rank: int, seeds: int) -> pd.DataFrame:
    """One row per seed."""
    rows = []
    for seed in range(seeds):
        rebuilt = relu_network(low_rank_target(side, rank, seed), rank=rank, seed=seed)
        rows.append(
            {
                "side": side,
                "rank": rank,
                "seed": seed,
                **measure(rebuilt),
            }
        )
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per width and rank."""
    return [
        Task(
            f"d = {side}, r = {rank}", rebuild, {"side": side, "rank": rank, "seeds": SEEDS[scale]}
        )
        for side, rank in SETTINGS[scale]
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per width and rank."""
    lines = []
    for (side, rank), group in rows.groupby(["side", "rank"], sort=True):
        lines.append(
            {
                "d": side,
                "rank r": rank,
                "width d r": int(group["width"].max()),
                "width by Theorem 1": side**2,
                "error of a layer": f"{group['layer_error'].max():.0e}",
                "error of the function": f"{group['functional_error'].max():.0e}",
                "seeds": len(group),
            }
        )
    return pd.DataFrame(lines)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Corollary 1, decided by the largest error of a function and by the widths."""
    worst = rows["functional_error"].max()
    holds = worst < 1e-6 and (rows["width"] == rows["rank"] * rows["side"]).all()
    return [
        Claim(
            "Corollary 1",
            "A layer of rank r can be rebuilt by four random layers of width d r.",
            "confirmed" if holds else "contradicted",
            f"width r d throughout; largest relative error of the function {worst:.0e} over "
            f"{len(rows)} networks of d up to {rows['side'].max()}, with the ReLU "
            "between the factors opened (erratum 18).",
        )
    ]


PART = Experiment(
    "Corollary 1",
    "Low-rank targets need a width that grows with the rank",
    tasks,
    summarize,
    CAPTION,
    claims=claims,
)
