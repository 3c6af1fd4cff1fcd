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
    has_zero_line,
    khatri_rao_mask,
    numerical_rank,
    predicted_density,
    without_zero_column,
)
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.giannou2023.comparison import place_legend
from bnrecon.studies.giannou2023.theorem3_claims import (
    INDEPENDENT,
    SMALL_SIDES,
    bound_crossing,
    claims,
    crossing,
    large_products,
)

__all__ = ["PART", "draw", "invertible", "summarize"]

SIDES = {"smoke": (6, 8), "laptop": (8, 16, 24, 32, 48, 64), "paper": (8, 16, 24, 32, 48, 64)}
DRAWS = {"smoke": 10, "laptop": 400, "paper": 2000}
# Densities as multiples of log d / d, the conjecture of Remark 3; the bound by zero columns is at
# 2.
MULTIPLES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5)
THEOREM = "sqrt(log d / d)"  # the density of Theorem 3
NUMERICAL = {"sides": 32, "draws": 10}  # ranks by singular values: up to this d, so many draws
# Lemma 9 where singular products without a zero column are seen, all of their ranks computed.
SMALL_DENSITIES = (0.45, 0.5, 0.55, 0.6, 0.65)
SMALL_DRAWS = {"smoke": 20, "laptop": 2000, "paper": 10_000}
# Step 4: (n, C) of independent Bernoulli matrices of density C log n / n.
IID = {
    "smoke": ((8, 1), (8, 2)),
    "laptop": tuple((n, c) for n in (64, 256, 1024) for c in (1, 2, 3)),
}
IID["paper"] = IID["laptop"]
IID_DRAWS = {"smoke": 10, "laptop": 1000, "paper": 10_000}


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


def singular_shares(size: int, multiple: int, draws: int) -> pd.DataFrame:
    """One row: of ``draws`` Bernoulli matrices how many have a perfect matching, or a zero line.

    Args:
        size: n; the matrices are (n, n), the entries independent.
        multiple: C; the density is C log n / n.
        draws: matrices, each seed its own.
    """
    found = with_zero = 0
    density = multiple * math.log(size) / size
    for seed in range(draws):
        mask = np.random.Generator(np.random.Philox(seed)).random((size, size)) < density
        zero = has_zero_line(mask)
        with_zero += zero
        found += not zero and boolean_determinant(mask)
    return pd.DataFrame(
        [
            {
                "kind": INDEPENDENT,
                "side": size,
                "multiple": multiple,
                "density": density,
                "draws": draws,
                "invertible": found,
                "with_zero_line": with_zero,
            }
        ]
    )


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per d and density, for Lemma 9 at small d, and for independent matrices."""
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
    draws = {"draws": SMALL_DRAWS[scale], "numerical": SMALL_DRAWS[scale]}
    found += [
        Task(f"Lemma 9, d = {side}, p = {p}", invertible, {"side": side, "density": p} | draws)
        for side in SMALL_SIDES
        for p in SMALL_DENSITIES
    ]
    found += [
        Task(
            f"Step 4, n = {size}, C = {multiple}",
            singular_shares,
            {"size": size, "multiple": multiple, "draws": IID_DRAWS[scale]},
        )
        for size, multiple in IID[scale]
    ]
    return found


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per d: where the probability passes 1/2, beside what is predicted."""
    lines = []
    for side, group in large_products(rows).groupby("side", sort=True):
        group = group.sort_values("density")
        share = (group["invertible"] / group["draws"]).to_numpy()
        half, unit = (
            crossing(group["density"].to_numpy(), share),
            predicted_density(side, "conjecture"),
        )
        bound = bound_crossing(side)
        singular = int((group["draws"] - group["invertible"]).sum())
        agree, compared = (
            int(group[name].sum()) for name in ("numerical_agrees", "numerical_draws")
        )
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
    return pd.DataFrame(lines) if lines else _summarize_densities(rows)


def _summarize_densities(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per density, where no d of Theorem 3 is there yet."""
    table = rows[["side", "density", "draws", "invertible"]]
    return table.rename(columns={"side": "d", "draws": "draws per density"})


CAPTION = (
    "Invertible: the Boolean determinant is 1, decided by a perfect matching; ranks are those of "
    "the product with normal weights, by singular values. Densities from log d / d to 3.5 log d / "
    "d, and sqrt(log d / d). The second column of densities is where half of the draws have no "
    "zero column, from (1 - (1 - p)^d)^(2 d²), which is about 2 log d / d. Lemma 9 is tried at "
    f"d = {', '.join(map(str, SMALL_SIDES))} too, where some singular products have no zero "
    "column, and Step 4 on independent Bernoulli matrices: see the claims and the CSV file."
)


def draw(rows: pd.DataFrame) -> Figure:
    """Probability against the density, as it is and in units of log d / d."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.9), sharey=True)
    groups = large_products(rows).groupby("side", sort=True)
    for (side, group), colour in zip(groups, PALETTE, strict=False):
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
    place_legend(figure, 7)
    return figure


PART = Experiment(
    "Theorem 3, Remark 3, Lemma 9, Step 4",
    "Invertibility of the Khatri-Rao product of two sparse random matrices",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
