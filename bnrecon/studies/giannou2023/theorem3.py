"""Theorem 3: how dense random weights have to be for an invertible Khatri-Rao product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.construction.sparse_invertibility import (
    bernoulli_masks,
    boolean_determinant,
    khatri_rao_mask,
    numerical_rank,
    predicted_density,
    without_zero_column,
)
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task

__all__ = ["PART", "crossing", "draw", "invertible", "summarize"]

SIDES = {"smoke": (4, 6), "laptop": (8, 16, 24, 32, 48, 64), "paper": (8, 16, 24, 32, 48, 64)}
DRAWS = {"smoke": 10, "laptop": 400, "paper": 2000}
# Densities as multiples of log d / d, the conjecture of Remark 3; the bound by zero columns is at
# 2.
MULTIPLES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5)
THEOREM = "sqrt(log d / d)"  # the density of Theorem 3
NUMERICAL = {"sides": 32, "draws": 10}  # ranks by singular values: up to this d, so many draws


def invertible(side: int, density: float, draws: int, numerical: int) -> pd.DataFrame:
    """One row: of ``draws`` pairs of masks, how many have an invertible product.

    Args:
        side: d; the masks are (d, d²).
        density: p.
        draws: pairs of masks, each seed its own.
        numerical: for so many of them the rank of the weighted product is computed, too.
    """
    found = with_zero = agree = 0
    for seed in range(draws):
        first, second = bernoulli_masks(side, density, seed)
        mask = khatri_rao_mask(first, second)
        zero = not mask.any(axis=0).all()
        regular = not zero and boolean_determinant(mask)
        found += regular
        with_zero += zero
        if seed < numerical:
            agree += regular == (numerical_rank(first, second, seed) == side**2)
    return pd.DataFrame(
        [
            {
                "side": side,
                "density": density,
                "draws": draws,
                "invertible": found,
                "with_zero_column": with_zero,
                "numerical_draws": numerical,
                "numerical_agrees": agree,
            }
        ]
    )


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per d and density."""
    found = []
    for side in SIDES[scale]:
        numerical = min(NUMERICAL["draws"], DRAWS[scale]) if side <= NUMERICAL["sides"] else 0
        unit = predicted_density(side, "conjecture")
        densities = {f"{multiple:g} log d / d": multiple * unit for multiple in MULTIPLES}
        densities[THEOREM] = predicted_density(side, "theorem")
        for name, density in densities.items():
            if density < 1:
                arguments = {
                    "side": side,
                    "density": round(density, 6),
                    "draws": DRAWS[scale],
                    "numerical": numerical,
                }
                found.append(Task(f"d = {side}, {name}", invertible, arguments))
    return found


def crossing(densities: np.ndarray, probabilities: np.ndarray) -> float:
    """The density at which a probability that rises with it passes 1/2, by linear interpolation."""
    rising = np.maximum.accumulate(probabilities)
    if rising[0] >= 0.5 or rising[-1] < 0.5:
        return float("nan")
    after = int(np.argmax(rising >= 0.5))
    low, high = rising[after - 1], rising[after]
    weight = (0.5 - low) / (high - low)
    return float(densities[after - 1] + weight * (densities[after] - densities[after - 1]))


def _bound_crossing(side: int) -> float:
    grid = np.linspace(0.01, 0.99, 981)
    return crossing(grid, np.array([without_zero_column(side, p) for p in grid]))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per d: where the probability passes 1/2, beside what is predicted."""
    lines = []
    for side, group in rows.groupby("side", sort=True):
        group = group.sort_values("density")
        share = (group["invertible"] / group["draws"]).to_numpy()
        half, unit = (
            crossing(group["density"].to_numpy(), share),
            predicted_density(side, "conjecture"),
        )
        bound = _bound_crossing(side)
        singular = int((group["draws"] - group["invertible"]).sum())
        agree, compared = group["numerical_agrees"].sum(), group["numerical_draws"].sum()
        by_column = group["with_zero_column"].sum() / max(1, singular)
        lines.append(
            {
                "d": side,
                "density at probability 1/2": f"{half:.3f}",
                "the same, no column zero": f"{bound:.3f}",
                "over log d / d": f"{half / unit:.2f}",
                "over sqrt(log d / d)": f"{half / predicted_density(side, 'theorem'):.2f}",
                "singular draws": singular,
                "of them with a zero column": f"{by_column:.0%}",
                "rank agrees": f"{agree} of {compared}",
                "draws per density": int(group["draws"].iloc[0]),
            }
        )
    return pd.DataFrame(lines)


CAPTION = (
    "Invertible: the Boolean determinant is 1, decided by a perfect matching; ranks are those of "
    "the product with normal weights, by singular values. Densities from log d / d to 3.5 log d / "
    "d, and sqrt(log d / d). The second column of densities is where half of the draws have no "
    "zero column, from (1 - (1 - p)^d)^(2 d²), which is about 2 log d / d."
)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 3, Remark 3 and Lemma 9."""
    ratios: list[float] = []
    at_theorem: dict[int, float] = {}
    for side, group in rows.groupby("side", sort=True):
        group = group.sort_values("density")
        share = (group["invertible"] / group["draws"]).to_numpy()
        ratios.append(crossing(group["density"].to_numpy(), share) / _bound_crossing(side))
        density = round(predicted_density(side, "theorem"), 6)
        if (there := (group["density"] == density).to_numpy()).any():
            at_theorem[side] = float(share[there][0])
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    largest = max(at_theorem, default=0)
    suffices = largest > 0 and at_theorem[largest] >= 1 - 1 / largest
    agree, compared = int(rows["numerical_agrees"].sum()), int(rows["numerical_draws"].sum())
    shares = ", ".join(f"{share:.3f} (d = {side})" for side, share in at_theorem.items())
    return [
        Claim(
            "Theorem 3",
            "A density of order sqrt(log d / d) suffices, with probability 1 - 1/d.",
            "confirmed" if suffices else "not confirmed" if at_theorem else "open",
            f"share of invertible products at p = sqrt(log d / d): {shares}.",
        ),
        Claim(
            "Remark 3",
            "The order log d / d is believed to suffice.",
            "open",
            "supported up to these sizes: the density at which half of the products are invertible "
            f"is {min(ratios, default=math.nan):.2f} to {max(ratios, default=math.nan):.2f} times "
            "the one at which half have no zero column, about 2 log d / d, below which no order "
            "can suffice.",
        ),
        Claim(
            "Lemma 9",
            "The product is invertible exactly where the Boolean determinant is 1.",
            "confirmed" if agree == compared else "not confirmed",
            f"numerical ranks agree in {agree} of {compared} draws.",
        ),
    ]


def draw(rows: pd.DataFrame) -> Figure:
    """Probability against the density, as it is and in units of log d / d."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.6), sharey=True)
    for (side, group), colour in zip(rows.groupby("side", sort=True), PALETTE, strict=False):
        group = group.sort_values("density")
        share = group["invertible"] / group["draws"]
        left.plot(group["density"], share, "o-", color=colour, label=f"d = {side}")
        grid = np.linspace(0.02, group["density"].max(), 200)
        left.plot(grid, [without_zero_column(side, p) for p in grid], ":", color=colour)
        unit = predicted_density(side, "conjecture")
        right.plot(group["density"] / unit, share, "o-", color=colour)
    left.plot([], [], ":", color="black", label="no zero column")
    left.set_xlabel("density p")
    left.set_ylabel("probability of an invertible product")
    right.set_xlabel("p / (log d / d)")
    left.legend()
    return figure


PART = Experiment(
    "Theorem 3, Remark 3, Lemma 9",
    "Invertibility of the Khatri-Rao product of two sparse random matrices",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
