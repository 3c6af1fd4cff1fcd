"""What the rows of Theorem 3's part say: Theorem 3, Remark 3, Lemma 9 and Step 4 of its proof."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from bnrecon.construction.sparse_invertibility import predicted_density, without_zero_column
from bnrecon.reproduction.experiment import Claim

__all__ = [
    "INDEPENDENT",
    "SMALL_SIDES",
    "bound_crossing",
    "claims",
    "crossing",
    "large_products",
    "lower_bound",
]

INDEPENDENT = "independent"  # the kind of rows that are not of products
SMALL_SIDES = (3, 4, 5)  # of Lemma 9's rows; those of Theorem 3 have larger d


def products(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of Khatri-Rao products, without those of independent matrices."""
    return rows[rows["kind"] != INDEPENDENT] if "kind" in rows else rows


def large_products(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of Theorem 3, without the small products of Lemma 9."""
    return products(rows)[lambda part: part["side"] > max(SMALL_SIDES)]


def crossing(densities: np.ndarray, probabilities: np.ndarray) -> float:
    """The density at which a probability that rises with it passes 1/2, by linear interpolation."""
    rising = np.maximum.accumulate(probabilities)
    if rising[0] >= 0.5 or rising[-1] < 0.5:
        return float("nan")
    after = int(np.argmax(rising >= 0.5))
    low, high = rising[after - 1], rising[after]
    weight = (0.5 - low) / (high - low)
    return float(densities[after - 1] + weight * (densities[after] - densities[after - 1]))


def bound_crossing(side: int) -> float:
    """The density at which half of the products have no zero column."""
    grid = np.linspace(0.01, 0.99, 981)
    return crossing(grid, np.array([without_zero_column(side, p) for p in grid]))


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 3, Remark 3, Lemma 9 and Step 4, as far as their rows are there."""
    large, small = large_products(rows), products(rows)
    independent = rows[rows["kind"] == INDEPENDENT] if "kind" in rows else rows[:0]
    found = [_theorem_3(large), _remark_3(large)] if len(large) else []
    found += [_lemma_9(small)] if len(small) else []
    return found + ([_step_4(independent)] if len(independent) else [])


def lower_bound(successes: int, draws: int, level: float = 0.95) -> float:
    """The one-sided lower bound of a probability by Clopper and Pearson.

    >>> round(lower_bound(400, 400), 4)  # 0.05^(1/400)
    0.9925
    """
    from scipy.special import betaincinv

    if successes == 0:
        return 0.0
    return float(betaincinv(successes, draws - successes + 1, 1 - level))


def upper_bound(successes: int, draws: int, level: float = 0.95) -> float:
    """The one-sided upper bound of a probability by Clopper and Pearson.

    >>> round(upper_bound(0, 400), 4)  # 1 - 0.05^(1/400)
    0.0075
    """
    return 1 - lower_bound(draws - successes, draws, level)


def _theorem_3(rows: pd.DataFrame) -> Claim:
    """Holds from the least d on from which the lower bound is never below 1 - 1/d.

    Contradicted where at the largest d even the upper bound is below it: else draws are too few.
    """
    least: dict[int, float] = {}
    most: dict[int, float] = {}
    for side, group in rows.groupby("side", sort=True):
        density = round(predicted_density(side, "theorem"), 6)
        there = group[group["density"] == density]
        if len(there):
            counts = int(there["invertible"].sum()), int(there["draws"].sum())
            least[side], most[side] = lower_bound(*counts), upper_bound(*counts)
    held: list[int] = []
    for side in sorted(least, reverse=True):
        if least[side] < 1 - 1 / side:
            break
        held.insert(0, side)
    bounds = ", ".join(f"{bound:.3f} (d = {side})" for side, bound in least.items())
    since = f"at least 1 - 1/d from d = {held[0]} to {held[-1]}" if held else "not shown"
    fails = bool(most) and most[max(most)] < 1 - 1 / max(most)
    return Claim(
        "Theorem 3",
        "A density of order sqrt(log d / d) suffices, with probability 1 - 1/d (here for one layer "
        "of the target).",
        "confirmed" if held else "contradicted" if fails else "open",
        f"at p = 1 · sqrt(log d / d) (the constant 1) {since}: lower 95% "
        f"bounds of the probability of an invertible product (Clopper-Pearson) {bounds}.",
    )


def _remark_3(rows: pd.DataFrame) -> Claim:
    ratios = []
    for side, group in rows.groupby("side", sort=True):
        group = group.sort_values("density")
        share = (group["invertible"] / group["draws"]).to_numpy()
        ratios.append(crossing(group["density"].to_numpy(), share) / bound_crossing(side))
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    return Claim(
        "Remark 3",
        "The order log d / d is believed to suffice.",
        "open",
        "supported up to these sizes: the density at which half of the products are invertible "
        f"is {min(ratios, default=math.nan):.2f} to {max(ratios, default=math.nan):.2f} times "
        "the one at which half have no zero column, about 2 log d / d. No smaller order can "
        "suffice.",
    )


def _lemma_9(rows: pd.DataFrame) -> Claim:
    agree, compared = int(rows["numerical_agrees"].sum()), int(rows["numerical_draws"].sum())
    small = rows[rows["numerical_draws"] == rows["draws"]]
    singular = small["draws"] - small["invertible"] - small["with_zero_column"]
    return Claim(
        "Lemma 9",
        "The product is invertible exactly where the Boolean determinant is 1.",
        "confirmed" if agree == compared else "contradicted",
        f"numerical ranks agree in {agree} of {compared} draws; in {int(singular.sum())} of them "
        "the Boolean determinant is 0 and no column is zero.",
    )


def _step_4(rows: pd.DataFrame) -> Claim:
    """Decided at C = 1, the density in print."""
    shares = []
    for (size, multiple), group in rows.groupby(["side", "multiple"], sort=True):
        draws = group["draws"].sum()
        singular, zero = draws - group["invertible"].sum(), group["with_zero_line"].sum()
        shares.append(
            f"{singular / draws:.3f} and {zero / draws:.3f} at n = {int(size)}, C = {int(multiple)}"
        )
    printed = rows[rows["multiple"] == 1]
    share = 1 - (printed["invertible"] / printed["draws"]).min() if len(printed) else math.nan
    return Claim(
        "Sect. 4.3 (Step 4), Theorem 11",
        '"every Bernoulli i.i.d. matrix Bern(ρ), with ρ = log d²/d², is singular with probability '
        'at most d^-2c for a universal constant c."',
        "false as stated" if share > 0.5 else "open",
        "at C = 1, as in print, the share tends to 1 - e^-2 = 0.865 and d^-2c to 0. Shares of "
        "independent n x n matrices of density C log n / n that have no perfect matching "
        f"(n = d²), and that have a zero row or column: {'; '.join(shares)}. With C > 1 the proof "
        "holds (erratum 28).",
    )
