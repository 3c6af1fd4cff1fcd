"""Corollary 1: a target of rank r needs width d r, at twice Theorem 1's depth."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import nn

from bnrecon.construction.relu_source import relu_network
from bnrecon.reproduction.parts import Decisions, only, part, sweep, table
from bnrecon.studies.giannou2023.theorem1 import SEEDS, measure, random_target

LAPTOP = ((16, 1), (16, 4), (32, 1), (32, 4), (64, 1), (64, 4), (64, 16))
SETTINGS = {"smoke": ((4, 1), (4, 2)), "laptop": LAPTOP, "paper": LAPTOP}  # (d, r)


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
    targets = (low_rank_target(side, rank, seed) for seed in range(seeds))
    rebuilt = (relu_network(one, rank=rank, seed=seed) for seed, one in enumerate(targets))
    common = {"side": side, "rank": rank}
    return pd.DataFrame([common | {"seed": n} | measure(one) for n, one in enumerate(rebuilt)])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per width and rank."""
    columns: dict[str, Any] = {
        "d": "side",
        "rank r": "rank",
        "width d r": lambda group: int(group["width"].max()),
        "error of a layer": lambda group: f"{group['layer_error'].max():.0e}",
        "error of the function": lambda group: f"{group['functional_error'].max():.0e}",
    }
    return table(rows, ["side", "rank"], **columns)


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide by the largest functional error and the widths."""
    worst = rows["functional_error"].max()
    holds = worst < 1e-6 and (rows["width"] == rows["rank"] * rows["side"]).all()
    numbers = {"worst": worst, "networks": len(rows), "side": rows["side"].max()}
    return {"Corollary 1": holds}, numbers


TASKS = sweep(rebuild, "d = {side}, r = {rank}", {("side", "rank"): SETTINGS}, {"seeds": SEEDS})
PART = part(__file__, TASKS, summarize, decide=decide, excerpt=only(drop=["error of a layer"]))
