"""Theorem 2.1: full rank of both frozen weights does not give M full rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.random_features.exact_rank import modular_rank, residues
from bnrecon.studies.random_features.feature_matrices import FEATURES

__all__ = ["EXAMPLES", "PART", "examples", "measure_ranks"]

# W1 (c1, c0) and W2 (c2, c1) of c0 = c2 = 2 and c1 = 4 = n, all of rank 2.
EXAMPLES = {
    "e1 e1ᵀ and e2 e2ᵀ, twice each": (
        [[1, 0], [1, 0], [0, 1], [0, 1]],
        [[1, 1, 0, 0], [0, 0, 1, 1]],
    ),
    "a aᵀ for four a, no two parallel": (
        [[1, 0], [0, 1], [1, 1], [1, -1]],
        [[1, 0, 1, 1], [0, 1, 1, -1]],
    ),
    "b aᵀ for all a, b of two bases": (
        [[1, 0], [0, 1], [1, 0], [0, 1]],
        [[1, 1, 1, 1], [1, 1, -1, -1]],
    ),
}
CHANNELS = {"smoke": (2, 3), "laptop": (2, 3, 5, 10, 20), "paper": (2, 3, 5, 10, 20)}
DRAWS = {"smoke": 20, "laptop": 1000, "paper": 1000}
MOST_WORK = 2_000_000  # draws of M with more entries than this in all are not made


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """The examples, and one task for each distribution."""
    size = {"channels": list(CHANNELS[scale]), "draws": DRAWS[scale]}
    return [
        Task("examples", examples),
        *(Task(label, measure_ranks, {"features": label} | size) for label in FEATURES),
    ]


def examples() -> pd.DataFrame:
    """One row for each of ``EXAMPLES``, like those of ``measure_ranks``."""
    rows = []
    for name, (first, second) in EXAMPLES.items():
        row = _ranks(np.array(first), np.array(second))
        rows.append(_row(name, 2, [row]))
    return pd.DataFrame(rows)


def measure_ranks(features: str, channels: Sequence[int], draws: int) -> pd.DataFrame:
    """Ranks of W1, W2 and M for c1 = n = c0 c2, in exact arithmetic.

    Args:
        features: a distribution, by the paper's name.
        channels: values of c0 = c2.
        draws: how many; fewer where M is large, one of ID cond, where nothing is random.

    Returns:
        One row for each number of channels: in how many draws both factors have full rank, and in
        how many of these M has; the smallest rank of M among them.
    """
    rows = []
    for size in channels:
        shape = LayerShape(size, size)
        few = max(10, min(draws, MOST_WORK // shape.equations**2))
        few = 1 if features == "ID cond" else few
        found = []
        for seed in range(few):
            first, second = draw(FEATURES[features], shape, shape.equations, seed, 0).weights()
            found.append(_ranks(residues(first), residues(torch.flatten(second, 1))))
        rows.append(_row(features, size, found))
    return pd.DataFrame(rows)


def _ranks(first: np.ndarray, second: np.ndarray) -> tuple[int, int, int]:
    """Of W1, W2 and M = (w2_ik w1_kj)."""
    # Reduced twice: a product of two residues fits into 64 bits.
    product = (second[:, None, :] * first.T[None]).reshape(-1, len(first))
    return modular_rank(first), modular_rank(second), modular_rank(product)


def _row(features: str, channels: int, found: Sequence[tuple[int, int, int]]) -> dict[str, object]:
    products = [product for first, second, product in found if first == second == channels]
    return {
        "features": features,
        "constructed": features in EXAMPLES,
        "channels": channels,
        "n": channels**2,
        "draws": len(found),
        "full_factors": len(products),
        "full_products": sum(rank == channels**2 for rank in products),
        "smallest_rank": min(products, default=0),
    }


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
    table = pd.DataFrame(lines).fillna("")
    sizes = [name for name in table if name.startswith("c0")]
    return table[["features", *sizes, "largest n - rank", "draws"]]


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does full rank of the factors suffice?"""
    failed = rows[rows["full_products"] < rows["full_factors"]]
    evidence = [
        f"{label}, M of rank n among draws with factors of full rank: {_counts(group)}"
        for label, group in failed[~failed["constructed"]].groupby("features", sort=False)
    ]
    evidence += [
        f"{row['features']}: rank {row['smallest_rank']} of {row['n']}"
        for row in failed[failed["constructed"]].to_dict("records")
    ]
    return [
        Claim(
            "Theorem 2.1",
            "The problem can be solved with loss 0 if W(1) and W(2) have full rank and c1 ≥ c2 c0.",
            "false as stated" if len(failed) else "open",
            ("; ".join(evidence) or "no counterexample among these rows")
            + ". It restates two papers that assume random continuous weights, whose M has rank "
            "c2 c0 almost surely: that is sufficient, and without second scales necessary for all "
            "targets.",
        )
    ]


def _counts(group: pd.DataFrame) -> str:
    return ", ".join(
        f"{row['full_products']} of {row['full_factors']} (c0 = c2 = {row['channels']})"
        for row in group.to_dict("records")
    )


PART = Experiment(
    where="Theorem 2.1",
    title="Rank of M where both frozen weights have full rank",
    caption=(
        "In how many draws M has rank n = c1, of those in which W1 and W2 have full rank, as all "
        "constructed ones do. Ranks are exact: the float32 weights are rational numbers, and "
        "elimination is modulo "
        "2^31 - 1. Rank n is proven by it; a rank below n of a draw is wrong with a probability of "
        "about n/2^31. Zero features were drawn again. "
        "In the first example every V diag(γ) W is diagonal, second scales included. In the second "
        "no two features are parallel, yet all are symmetric matrices, a space of dimension 3. In "
        "the third rows of W1 are equal, and M has full rank. "
        "ER sign and ER normal have no density: two of their features may be parallel, which "
        "becomes rare for many channels (docs/errata.md, entry 7)."
    ),
    tasks=tasks,
    summary=summarize,
    claims=claims,
)
