"""Theorem 2.1: full rank of both frozen weights does not give M full rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape
from bnrecon.reproduction.parts import Decisions, join, only, part, sweep
from bnrecon.studies.random_features.exact_rank import modular_rank, residues
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH, FEATURES

# W1 (c1, c0) and W2 (c2, c1) for c0 = c2 = 2 and c1 = 4 = n, all of rank 2.
TWICE = ([[1, 0], [1, 0], [0, 1], [0, 1]], [[1, 1, 0, 0], [0, 0, 1, 1]])
SYMMETRIC = ([[1, 0], [0, 1], [1, 1], [1, -1]], [[1, 0, 1, 1], [0, 1, 1, -1]])
BASES = ([[1, 0], [0, 1], [1, 0], [0, 1]], [[1, 1, 1, 1], [1, 1, -1, -1]])
EXAMPLES = {
    "e1 e1ᵀ and e2 e2ᵀ, twice each": TWICE,
    "a aᵀ for four a, no two parallel": SYMMETRIC,
    "b aᵀ for all a, b of two bases": BASES,
}
CHANNELS = {"smoke": [2, 3], "laptop": [2, 3, 5, 10, 20], "paper": [2, 3, 5, 10, 20]}
DRAWS = {"smoke": 20, "laptop": 1000, "paper": 1000}
MOST_WORK = 2_000_000  # most entries in all draws of M, beyond 10 draws


def examples() -> pd.DataFrame:
    """One row per example, like those of ``measure_ranks``."""
    ranks = {name: _ranks(*map(np.array, factors)) for name, factors in EXAMPLES.items()}
    return pd.DataFrame([_row(name, 2, [triple]) for name, triple in ranks.items()])


def measure_ranks(features: str, channels: Sequence[int], draws: int) -> pd.DataFrame:
    """Ranks of W1, W2 and M for c1 = n = c0 c2, in exact arithmetic.

    One row per value of c0 = c2 in ``channels``: in how many draws both factors have full rank, in
    how many of these M has, and the smallest rank of M among them. Large M have fewer draws, and ID
    cond, where nothing is random, has one.
    """
    rows = []
    for size in channels:
        shape = LayerShape(size, size)
        few = max(10, min(draws, MOST_WORK // shape.equations**2))
        few = 1 if features == "ID cond" else few
        ranks = []
        for seed in range(few):
            first, second = draw(FEATURES[features], shape, shape.equations, seed, 0).weights()
            ranks.append(_ranks(residues(first), residues(torch.flatten(second, 1))))
        rows.append(_row(features, size, ranks))
    return pd.DataFrame(rows)


def _ranks(first: np.ndarray, second: np.ndarray) -> tuple[int, int, int]:
    """The ranks of W1, W2 and M = (w2_ik w1_kj)."""
    # Reduced twice: a product of two residues fits into 64 bits.
    product = (second[:, None, :] * first.T[None]).reshape(-1, len(first))
    return modular_rank(first), modular_rank(second), modular_rank(product)


def _row(features: str, channels: int, ranks: Sequence[tuple[int, int, int]]) -> dict[str, object]:
    products = [product for first, second, product in ranks if first == second == channels]
    row = {"features": features, "constructed": features in EXAMPLES, "channels": channels}
    row |= {"n": channels**2, "draws": len(ranks), "full_factors": len(products)}
    row |= {"full_products": sum(rank == channels**2 for rank in products)}
    return row | {"smallest_rank": min(products, default=0)}


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per example and distribution: M of rank n among draws with factors of full rank."""
    lines = []
    for label, group in rows.groupby("features", sort=False):
        line: dict[str, object] = {"features": label}
        for row in group.to_dict("records"):
            counts = f"{row['full_products']} of {row['full_factors']}"
            rank = f"rank {row['smallest_rank']}"
            line[f"c0 = c2 = {row['channels']}"] = rank if row["constructed"] else counts
        line["draws"] = ", ".join(str(draws) for draws in group["draws"])
        line["largest n - rank"] = int((group["n"] - group["smallest_rank"]).max())
        lines.append(line)
    printed = pd.DataFrame(lines).fillna("")
    sizes = [name for name in printed if name.startswith("c0")]
    return printed[["features", *sizes, "largest n - rank", "draws"]]


def decide(rows: pd.DataFrame) -> Decisions:
    """Does full rank of the factors suffice?"""
    failed = rows[rows["full_products"] < rows["full_factors"]]
    shares = failed["full_products"] / failed["full_factors"]
    worst = failed.loc[shares.groupby(failed["constructed"]).idxmin()[::-1]]  # one of each kind
    named = (f"{row['features']}: {_ranks_of(row)}" for row in worst.to_dict("records"))
    verdict = "needs a condition" if len(failed) else "undecided"
    return {"Theorem 2.1": verdict}, {"counterexamples": "; ".join(named) or "none in these rows"}


def _ranks_of(row: dict[str, Any]) -> str:
    if row["constructed"]:
        return f"M has rank {row['smallest_rank']}, n = {row['n']}"
    counts = f"rank n in {row['full_products']} of {row['full_factors']} draws"
    return f"{counts}, c0 = c2 = {row['channels']}"


SIZE = {"channels": CHANNELS, "draws": DRAWS}
TASKS = join(
    sweep(examples, "examples", {}),
    sweep(measure_ranks, "{features}", {"features": tuple(FEATURES)}, SIZE),
)
DROPPED = ["draws", "c0 = c2 = 10", "c0 = c2 = 20", "largest n - rank"]
EXCERPT = only("features", *ANY_WIDTH, drop=DROPPED)
PART = part(__file__, TASKS, summarize, decide=decide, excerpt=EXCERPT)
