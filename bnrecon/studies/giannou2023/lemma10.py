"""Lemma 10: sums of products of Bernoulli variables vanish less often than independent ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from bnrecon.construction import sparse_invertibility as sparse
from bnrecon.reproduction.parts import Decisions, join, only, part, sweep

SIDES = {"smoke": (2, 3), "laptop": (2, 3, 4, 5, 6, 7), "paper": (2, 3, 4, 5, 6, 7, 8)}
DRAWS = {"smoke": 1000, "laptop": 200_000, "paper": 1_000_000}
SETS = {"smoke": 5, "laptop": 40, "paper": 100}
SHARES = (0.02, 0.1, 0.25, 0.49)  # q d, so that p = sqrt(2 q d) stays below 1


def staircases(side: int) -> Iterator[tuple[int, ...]]:
    """Nonempty sets S by their row sizes a_1 >= ... >= a_d.

    >>> list(staircases(2))
    [(2, 2), (2, 1), (2, 0), (1, 1), (1, 0)]
    """
    sizes = itertools.combinations_with_replacement(range(side, -1, -1), side)
    return (rows for rows in sizes if rows[0])


def compare_staircases(side: int) -> pd.DataFrame:
    """One row per q: the exact smallest ratio of the right side to the left over all staircases."""
    rows = []
    for share in SHARES:
        q, p = share / side, math.sqrt(2 * share)
        ratios = {
            sizes: sparse.iid_zero_probability(sizes, q) / sparse.product_zero_probability(sizes, p)
            for sizes in staircases(side)
        }
        tightest = min(ratios, key=lambda sizes: ratios[sizes])
        row = {"kind": "staircases, exact", "side": side, "qd": share, "sets": len(ratios)}
        row |= {"violated": sum(ratio < 1 - 1e-12 for ratio in ratios.values())}
        row |= {"smallest_ratio": ratios[tightest], "tightest": " ".join(map(str, tightest))}
        rows.append(row)
    return pd.DataFrame(rows)


def compare_sets(side: int, sets: int, draws: int, seed: int) -> pd.DataFrame:
    """The same for random sets S, with a simulated left side.

    A set counts as violated if the simulated probability exceeds the right side by more than four
    standard errors.
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
        row = {"kind": "random sets, simulated", "side": side, "qd": share, "sets": sets}
        row |= {"violated": int(violated), "smallest_ratio": min(ratios), "tightest": ""}
        rows.append(row)
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per type of set and d, over all q."""
    lines = []
    for (kind, side), group in rows.groupby(["kind", "side"], sort=False):
        tightest = group.loc[group["smallest_ratio"].idxmin()]
        line = {"sets S": kind, "d": side, "compared": int(group["sets"].sum())}
        line["violated"] = int(group["violated"].sum())
        line["smallest ratio of the right side to the left"] = f"{tightest['smallest_ratio']:.4f}"
        line["at q d"] = f"{tightest['qd']:g}"
        lines.append(line | {"rows of that S": tightest["tightest"]})
    return pd.DataFrame(lines)


def decide(rows: pd.DataFrame) -> Decisions:
    """Confirmed if no set violates it."""
    violated = int(rows["violated"].sum())
    return {"Lemma 10": violated == 0}, {"violated": violated, "compared": int(rows["sets"].sum())}


LARGE = {scale: (sides[-1], 2 * sides[-1]) for scale, sides in SIDES.items()}
DRAWN = {"sets": SETS, "draws": DRAWS, "seed": 0}
TASKS = join(
    sweep(compare_staircases, "staircases, d = {side}", {"side": SIDES}),
    sweep(compare_sets, "random sets, d = {side}", {"side": LARGE}, DRAWN),
)
EXCERPT = only("d", 2, 7, 14, drop=["violated", "at q d", "rows of that S"])
PART = part(__file__, TASKS, summarize, decide=decide, excerpt=EXCERPT)
