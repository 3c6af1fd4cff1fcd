"""Lemma 10.

Sums of products of Bernoulli variables vanish less often than sums of independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from bnrecon.construction.sparse_invertibility import (
    iid_zero_probability,
    product_zero_probability,
)
from bnrecon.reproduction.experiment import Claim, Experiment, Task

__all__ = ["PART", "compare_sets", "compare_staircases", "staircases", "summarize"]

SIDES = {"smoke": (2, 3), "laptop": (2, 3, 4, 5, 6, 7), "paper": (2, 3, 4, 5, 6, 7, 8)}
DRAWS = {"smoke": 1000, "laptop": 200_000, "paper": 1_000_000}
SETS = {"smoke": 5, "laptop": 40, "paper": 100}
SHARES = (0.02, 0.1, 0.25, 0.49)  # q d, so that p = sqrt(2 q d) stays below 1


def staircases(side: int) -> Iterator[tuple[int, ...]]:
    """Sets S by their row sizes a_1 >= ... >= a_d, without the empty one."""

    def below(rows: int, most: int) -> Iterator[tuple[int, ...]]:
        if rows == 0:
            yield ()
            return
        for size in range(most, -1, -1):
            for rest in below(rows - 1, size):
                yield (size, *rest)

    return (rows for rows in below(side, side) if rows[0])


def compare_staircases(side: int) -> pd.DataFrame:
    """One row per q.

    The smallest ratio of the right side to the left one over all staircases, exact.
    """
    rows = []
    for share in SHARES:
        q, p = share / side, math.sqrt(2 * share)
        ratios = {
            sizes: iid_zero_probability(sizes, q) / product_zero_probability(sizes, p)
            for sizes in staircases(side)
        }
        tightest = min(ratios, key=lambda sizes: ratios[sizes])
        rows.append(
            {
                "kind": "staircases, exact",
                "side": side,
                "qd": share,
                "sets": len(ratios),
                "violated": sum(ratio < 1 - 1e-12 for ratio in ratios.values()),
                "smallest_ratio": ratios[tightest],
                "tightest": " ".join(map(str, tightest)),
            }
        )
    return pd.DataFrame(rows)


def compare_sets(side: int, sets: int, draws: int, seed: int) -> pd.DataFrame:
    """The same for random sets S, the left side simulated.

    A set counts as violated where the simulated probability is more than four standard errors
    above the right side.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    rows = []
    for share in SHARES:
        q, p = share / side, math.sqrt(2 * share)
        u = generator.random((draws, side)) < p
        v = generator.random((draws, side)) < p
        violated, ratios = 0, []
        for _ in range(sets):
            chosen = generator.random((side, side)) < generator.random()
            if not chosen.any():
                chosen[0, 0] = True
            zero = ~((u @ chosen) & v).any(axis=1)
            left, right = zero.mean(), (1 - q) ** chosen.sum()
            violated += left > right + 4 * math.sqrt(right * (1 - right) / draws)
            ratios.append(right / max(left, 1 / draws))
        rows.append(
            {
                "kind": "random sets, simulated",
                "side": side,
                "qd": share,
                "sets": sets,
                "violated": int(violated),
                "smallest_ratio": min(ratios),
                "tightest": "",
            }
        )
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """Staircases up to a small d, random sets for one of each size."""
    exact = [
        Task(f"staircases, d = {side}", compare_staircases, {"side": side}) for side in SIDES[scale]
    ]
    drawn = {"sets": SETS[scale], "draws": DRAWS[scale], "seed": 0}
    simulated = [
        Task(f"random sets, d = {side}", compare_sets, {"side": side} | drawn)
        for side in (*SIDES[scale][-1:], 2 * SIDES[scale][-1])
    ]
    return exact + simulated


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per kind of set and d, over all q."""
    lines = []
    for (kind, side), group in rows.groupby(["kind", "side"], sort=False):
        tightest = group.loc[group["smallest_ratio"].idxmin()]
        lines.append(
            {
                "sets S": kind,
                "d": side,
                "compared": int(group["sets"].sum()),
                "violated": int(group["violated"].sum()),
                "smallest ratio of the right side to the left": f"{tightest['smallest_ratio']:.4f}",
                "at q d": f"{tightest['qd']:g}",
                "rows of that S": tightest["tightest"],
            }
        )
    return pd.DataFrame(lines)


CAPTION = (
    "P(no product u_i v_j of S is 1) against (1 - q)^|S| at p = sqrt(2 q d); the lemma says that "
    "the ratio is at least 1. Staircases are the sets that the proof reduces to, each computed "
    "exactly. The proof then takes the smallest h with at most h rows of size h or more, which "
    "need not hold an h x h square (rows 2, 1 do not); the largest h with at least h such rows "
    "does, and |S| <= 2 d h holds for it too, so that the lemma stands. The reduction to "
    "staircases is right for another reason than in print: for given u the union of the rows of S "
    "is at least as large as the largest of them."
)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Lemma 10, decided by the sets that violate it."""
    violated, compared = int(rows["violated"].sum()), int(rows["sets"].sum())
    return [
        Claim(
            "Lemma 10",
            "P(sum of u_i v_j over S is 0) <= P(sum of x_i over S is 0) for p >= sqrt(2 q d).",
            "confirmed" if violated == 0 else "contradicted",
            f"{violated} of {compared} pairs of a set and a q violate it; two steps of the proof "
            "are wrong and easily repaired (erratum 20).",
        )
    ]


PART = Experiment(
    "Lemma 10",
    "Products of Bernoulli variables against independent ones",
    tasks,
    summarize,
    CAPTION,
    claims=claims,
)
