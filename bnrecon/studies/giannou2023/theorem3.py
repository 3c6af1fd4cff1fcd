"""Theorem 3: how dense random weights have to be for an invertible Khatri-Rao product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bnrecon.construction import sparse_invertibility as sparse
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import proportion_interval
from bnrecon.reporting.wording import BoundFormatter, span
from bnrecon.reproduction.parts import Decision, Decisions, Task, only, part, sweep

INDEPENDENT = "independent"  # marks rows that are not of products
SIDES = {"smoke": (6, 8), "laptop": (8, 16, 24, 32, 48, 64), "paper": (8, 16, 24, 32, 48, 64)}
DRAWS = {"smoke": 10, "laptop": 400, "paper": 2000}
# Densities as multiples of log d / d, Remark 3's conjecture; the zero-column bound is at 2.
MULTIPLES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5)
THEOREM = "sqrt(log d / d)"  # the density of Theorem 3
NUMERICAL = {"sides": 32, "draws": 10}  # ranks by singular values: largest d, most draws
# Lemma 9 where singular products without a zero column occur; all ranks are computed.
SMALL_SIDES = (3, 4, 5)  # Theorem 3 has larger d
SMALL_DENSITIES = (0.45, 0.5, 0.55, 0.6, 0.65)
SMALL_DRAWS = {"smoke": 20, "laptop": 2000, "paper": 10_000}
# Step 4: (n, C) of independent Bernoulli matrices of density C log n / n.
IID = {
    "smoke": ((8, 1), (8, 2)),
    "laptop": tuple((n, c) for n in (64, 256, 1024) for c in (1, 2, 3)),
}
IID["paper"] = IID["laptop"]
BESIDE: dict[str, Any] = {"xytext": (-6, 5), "textcoords": "offset points"}
IID_DRAWS = {"smoke": 10, "laptop": 1000, "paper": 10_000}


def invertible(side: int, density: float, draws: int, numerical: int) -> pd.DataFrame:
    """One row: how many of ``draws`` pairs of masks have an invertible product.

    The masks are (d, d²), of this density. For the first ``numerical`` pairs, the rank of the
    weighted product is computed, too.
    """
    regulars = with_zero = agree = 0
    for seed in range(draws):
        first, second = sparse.bernoulli_masks(side, density, seed)
        mask = sparse.khatri_rao_mask(first, second)
        zero = not mask.any(axis=0).all()
        regular = not zero and sparse.boolean_determinant(mask)
        regulars += regular
        with_zero += zero
        if seed < numerical:
            agree += regular == (sparse.numerical_rank(first, second, seed) == side**2)
    row = {"side": side, "density": density, "draws": draws, "invertible": regulars}
    row |= {"with_zero_column": with_zero, "numerical_draws": numerical, "numerical_agrees": agree}
    return pd.DataFrame([row])


def singular_shares(size: int, multiple: int, draws: int) -> pd.DataFrame:
    """One row: how many of ``draws`` Bernoulli matrices have a perfect matching, or a zero line.

    The matrices are (n, n), with independent entries of density C log n / n.
    """
    regulars = with_zero = 0
    density = multiple * math.log(size) / size
    for seed in range(draws):
        mask = np.random.Generator(np.random.Philox(seed)).random((size, size)) < density
        zero = sparse.has_zero_line(mask)
        with_zero += zero
        regulars += not zero and sparse.boolean_determinant(mask)
    row = {"kind": INDEPENDENT, "side": size, "multiple": multiple, "density": density}
    row |= {"draws": draws, "invertible": regulars, "with_zero_line": with_zero}
    return pd.DataFrame([row])


SMALL_GRID = {"side": SMALL_SIDES, "density": SMALL_DENSITIES}
SMALL_FIXED = {"draws": SMALL_DRAWS, "numerical": SMALL_DRAWS}
LEMMA_9 = sweep(invertible, "Lemma 9, d = {side}, p = {density}", SMALL_GRID, SMALL_FIXED)
STEP_4_NAME = "Step 4, n = {size}, C = {multiple}"
STEP_4 = sweep(singular_shares, STEP_4_NAME, {("size", "multiple"): IID}, {"draws": IID_DRAWS})


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per d and density, for Lemma 9 at small d, and for independent matrices."""
    large = []
    for side in SIDES[scale]:
        numerical = min(NUMERICAL["draws"], DRAWS[scale]) if side <= NUMERICAL["sides"] else 0
        unit = sparse.predicted_density(side, "conjecture")
        densities = {f"{multiple:g} log d / d": multiple * unit for multiple in MULTIPLES}
        densities[THEOREM] = sparse.predicted_density(side, "theorem")
        for name, density in densities.items():
            if density < 1:
                arguments = {"side": side, "density": round(density, 6), "draws": DRAWS[scale]}
                arguments |= {"numerical": numerical}
                large.append(Task(f"d = {side}, {name}", invertible, arguments))
    return large + LEMMA_9(scale, options) + STEP_4(scale, options)


def products(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of Khatri-Rao products, without those of independent matrices."""
    return rows[rows["kind"] != INDEPENDENT] if "kind" in rows else rows


def large_products(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of Theorem 3, without the small products of Lemma 9."""
    return products(rows)[lambda part: part["side"] > max(SMALL_SIDES)]


def crossing(densities: np.ndarray, probabilities: np.ndarray) -> float:
    """The density at which a rising probability passes 1/2, by linear interpolation."""
    rising = np.maximum.accumulate(probabilities)
    if not rising[0] < 0.5 <= rising[-1]:
        return float("nan")
    after = int(np.argmax(rising >= 0.5))
    both = slice(after - 1, after + 1)
    return float(np.interp(0.5, rising[both], densities[both]))


def bound_crossing(side: int) -> float:
    """The density at which half of the products have no zero column."""
    grid = np.linspace(0.01, 0.99, 981)
    return crossing(grid, np.array([sparse.without_zero_column(side, p) for p in grid]))


def half_density(rows: pd.DataFrame) -> float:
    """The density at which half of the products of one d are invertible."""
    rows = rows.sort_values("density")
    return crossing(rows["density"].to_numpy(), (rows["invertible"] / rows["draws"]).to_numpy())


def theorem_3_density(side: int) -> float:
    """The theorem's density, rounded as in the rows."""
    return round(sparse.predicted_density(side, "theorem"), 6)


def at_theorem_3(rows: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """By d, at the theorem's density: the numbers of invertible products and of draws."""
    theorem = rows[rows["density"] == rows["side"].map(theorem_3_density)]
    counts = theorem.groupby("side")[["invertible", "draws"]].sum()
    return {int(side): (int(n), int(of)) for side, n, of in counts.itertuples()}


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per d: where the probability passes 1/2, and the predictions."""

    def line(side: int, group: pd.DataFrame) -> dict[str, Any]:
        half, total = half_density(group), group.sum(numeric_only=True)
        least = [proportion_interval(*count, 0.9)[0] for count in at_theorem_3(group).values()]
        return {
            "d": side,
            "density at probability 1/2": f"{half:.3f}",
            "the same, no column zero": f"{bound_crossing(side):.3f}",
            "over log d / d": f"{half / sparse.predicted_density(side, 'conjecture'):.2f}",
            "over p3": f"{half / sparse.predicted_density(side, 'theorem'):.2f}",
            "probability at p3": BoundFormatter().format("{!d:.3f}", *least) if least else "",
            "1 - 1/d": f"{1 - 1 / side:.3f}",
            "singular draws": int(total["draws"] - total["invertible"]),
            "draws per density": int(group["draws"].iloc[0]),
        }

    groups = large_products(rows).groupby("side", sort=True)
    return pd.DataFrame([line(side, group) for side, group in groups])


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the probability against p and p / (log d / d), and failures at Theorem 3's density."""
    figure, (left, middle, right) = new_figure(1, 3, (PAGE, 2.9))
    large = large_products(rows)
    for (side, group), colour in zip(large.groupby("side"), PALETTE, strict=False):
        group = group.sort_values("density")
        density, share = group["density"], group["invertible"] / group["draws"]
        theorem = list((density == theorem_3_density(side)).to_numpy().nonzero()[0])
        unit = sparse.predicted_density(side, "conjecture")
        style: dict[str, Any] = {"marker": "D", "markevery": theorem, "markersize": 4.5}
        left.plot(density, share, color=colour, label=f"d = {side}", **style)
        middle.plot(density / unit, share, color=colour, **style)
        grid = np.linspace(0.02, density.max(), 200)
        left.plot(grid, [sparse.without_zero_column(side, p) for p in grid], ":", color=colour)
    left.plot([], [], ":", color="black", label="no zero column")
    left.plot([], [], "D", color="black", markersize=4.5, label="p = sqrt(log d / d)")
    left.set(title="(a)", xlabel="density p", ylabel="probability of an invertible product")
    middle.set(title="(b)", xlabel="p / (log d / d)")
    _draw_failures(right, at_theorem_3(large))
    draw_legend(figure, 4)
    return figure


def _draw_failures(axes: Axes, counts: Mapping[int, tuple[int, int]]) -> None:
    """Draw how often products at Theorem 3's density are singular, and its 1/d."""
    for side, (regular, draws) in counts.items():
        low, high = proportion_interval(draws - regular, draws, 0.9)
        share = 1 - regular / draws
        bars = [[share - low], [high - share]]
        if regular == draws:  # on a logarithmic axis: only the upper bound
            axes.plot(side, high, "v", color="black", markerfacecolor="none")
        else:
            axes.errorbar(side, share, bars, marker="D", capsize=2, color="black", markersize=4.5)
    axes.plot(list(counts), [1 / side for side in counts], "--", color=PALETTE[3])
    if counts:
        axes.annotate("1/d", (max(counts), 1 / max(counts)), color=PALETTE[3], **BESIDE)
    axes.set(title="(c) p = sqrt(log d / d)", xlabel="d", ylabel="probability of a singular one")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(list(counts), [str(side) for side in counts])
    axes.minorticks_off()


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Theorem 3, Remark 3, Lemma 9 and Step 4 where their rows exist."""
    independent = rows[rows["kind"] == INDEPENDENT] if "kind" in rows else rows[:0]
    large = large_products(rows)
    chosen = {
        decide_theorem_3: large,
        decide_remark_3: large,
        decide_lemma_9: products(rows),
        decide_step_4: independent,
    }
    return [decide_one(group) for decide_one, group in chosen.items() if len(group)]


def decide_theorem_3(rows: pd.DataFrame) -> Decision:
    """Holds from the smallest d from which the lower bound is never below 1 - 1/d.

    Contradicted if even the upper bound is below it at the largest d: else draws are too few.
    """
    counts = at_theorem_3(rows)
    bounds = {d: proportion_interval(*count, 0.9) for d, count in counts.items()}
    least, most = ({d: ends[end] for d, ends in bounds.items()} for end in (0, 1))
    short = [side for side, bound in least.items() if bound < 1 - 1 / side]
    held = [side for side in least if side > max(short, default=0)]
    fails = bool(most) and most[max(most)] < 1 - 1 / max(most)
    verdict = "confirmed" if held else "contradicted" if fails else "undecided"
    since = f"at least 1 - 1/d from d = {held[0]} to {held[-1]}" if held else "not shown"
    missed = [side for side in short if most[side] < 1 - 1 / side]
    unclear = [side for side in short if side not in missed]
    for words, sides in (("missed", missed), ("not shown", unclear)):
        if held and sides:
            since += f", {words} at d = {', '.join(map(str, sides))}"
    orders = (theorem_3_density(d) / sparse.predicted_density(d, "conjecture") for d in counts)
    return "Theorem 3", verdict, {"since": since, "orders": span(orders, ".1f")}


def decide_remark_3(rows: pd.DataFrame) -> Decision:
    """Undecided at any size; reports how far the products follow the zero columns."""
    ratios = (half_density(group) / bound_crossing(side) for side, group in rows.groupby("side"))
    units = {d: sparse.predicted_density(d, "conjecture") for d in rows["side"]}
    densest = rows["side"].map(lambda d: round(MULTIPLES[-1] * units[d], 6))  # as in the rows
    most = rows[rows["density"] == densest]
    counts = zip(most["invertible"], most["draws"], strict=True)
    least = min((proportion_interval(*count, 0.9)[0] for count in counts), default=0.0)
    numbers = {"ratios": span(ratios, ".2f"), "multiple": MULTIPLES[-1], "least": least}
    numbers |= {"regular": most["invertible"].sum(), "draws": most["draws"].sum()}
    return "Remark 3", "undecided", numbers | {"sides": span(rows["side"], ".0f")}


def decide_lemma_9(rows: pd.DataFrame) -> Decision:
    """Decide by the numerical ranks, which only smaller d have."""
    agree, compared = int(rows["numerical_agrees"].sum()), int(rows["numerical_draws"].sum())
    small = rows[rows["numerical_draws"] == rows["draws"]]
    singular = small["draws"] - small["invertible"] - small["with_zero_column"]
    numbers = {"agree": agree, "compared": compared, "singular": int(singular.sum())}
    return "Lemma 9", agree == compared if compared else "undecided", numbers


def decide_step_4(rows: pd.DataFrame) -> Decision:
    """Decided at C = 1, the printed density."""
    singular, zeros = 1 - rows["invertible"] / rows["draws"], rows["with_zero_line"] / rows["draws"]
    printed = rows["multiple"] == 1
    numbers = {f"at_{c}": span(singular[rows["multiple"] == c], ".3f") for c in (1, 2, 3)}
    numbers |= {"zeros": span(zeros[printed], ".3f"), "sizes": span(rows["side"], ".0f")}
    wrong = singular[printed].max() > 0.5
    return "Step 4", "needs a correction" if wrong else "undecided", numbers


SMALL_LISTED = {"small": ", ".join(map(str, SMALL_SIDES))}
EXCERPT = only(drop=["singular draws", "draws per density"])
PART = part(__file__, tasks, summarize, draw, decide, lambda _: SMALL_LISTED, excerpt=EXCERPT)
