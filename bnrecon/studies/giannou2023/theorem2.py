"""Theorem 2: narrow, deep sources with skip connections, and where float64 ends them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import nn

from bnrecon.construction.random_linear import REFINEMENTS, scale_of
from bnrecon.construction.relu_target import read_relu_network
from bnrecon.construction.skip_source import RebuiltChain, SkipChain, skip_chain
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.runtime.errors import RunError
from bnrecon.studies.giannou2023.comparison import place_legend
from bnrecon.studies.giannou2023.many_digits import solve_in_digits
from bnrecon.studies.giannou2023.theorem1 import random_target

__all__ = ["DIGITS", "PART", "draw", "rebuild", "summarize"]

# (d, k): deep to shallow, and pairs of which k does not divide d.
SETTINGS = {
    "smoke": ((3, 1), (4, 2), (5, 3)),
    "laptop": (
        *((4, k) for k in (1, 2, 4)),
        *((8, k) for k in (1, 2, 3, 4, 8)),
        *((12, k) for k in (1, 2, 3, 4, 6, 12)),
        *((16, k) for k in (1, 2, 3, 4, 8, 16)),
        *((24, k) for k in (2, 3, 4, 6, 12)),
        *((32, k) for k in (4, 8, 12, 16)),
    ),
}
SETTINGS["paper"] = SETTINGS["laptop"]
SEEDS = {"smoke": 2, "laptop": 3, "paper": 10}
DIGITS = 100  # of the arithmetic that stands for exact numbers
MOST_CONDITION = 1e16  # 1 over the rounding of float64: what is above cannot be measured in it
HELD = 1e-6  # an error of the function up to which float64 suffices
MOST_UNKNOWNS = 24  # systems up to this size are solved in so many digits, too

CAPTION = (
    "One target layer of spectral norm 1, with normal weights, as ceil(d / k) layers of width d k "
    "and a last one, with uniform weights. Where k does not divide d the first block is the "
    "smaller one, and the shortest of its solutions is taken. Error of a block: the largest "
    "||P diag(γ) W A - W*|| / ||W*||, in float64 by LU (or least squares, where that is closer), "
    "and after two corrections by iterative refinement; where the systems are small, the same with "
    f"scales found in {DIGITS} digits, and with these rounded to float64. Error of the function: "
    "of the refined chain, as in Theorem 1. Condition: the largest of a block's system; float64 "
    "cannot tell those above 1e16 apart. Medians over seeds, with the largest in parentheses. In "
    "print L_1 = Γ_1 W_1 z_1 lacks its A_1, the product of the inductive step (Eq. 52 to 54) runs "
    "from i - 1 where it has to run from i + 1, and A is once k x dk and once dk x k."
)


def rebuild(side: int, block: int, seeds: int, digits: int, refinements: int) -> pd.DataFrame:
    """One row per seed; the errors in many digits only where the systems are small.

    Args:
        side: d.
        block: k.
        seeds: how many targets and chains.
        digits: decimal digits of the nearly exact solution.
        refinements: corrections of each LU solution for the refined errors.
    """
    rows = []
    for seed in range(seeds):
        target = random_target(side, 1, seed)
        refined = _chain(target, block, seed=seed, refinements=refinements, conditions=True)
        plain = _chain(target, block, seed=seed, refinements=0)
        row = {
            "side": side,
            "block": block,
            "seed": seed,
            "layers": -(-side // block),
            "width": side * block,
            "error": max(segment.relative_error for segment in plain.segments),
            "refined_error": max(segment.relative_error for segment in refined.segments),
            "functional_error": refined.functional_error,
            "condition": max(segment.condition or 0.0 for segment in refined.segments),
            "smallest_scale": min(
                _smallest_share(module)
                for module in refined.network
                if isinstance(module, SkipChain)
            ),
            "digits_error": float("nan"),
            "rounded_error": float("nan"),
        }
        if side * block <= MOST_UNKNOWNS:
            weight = read_relu_network(target)[0].weight
            exact, rounded = solve_in_digits(weight, block, seed, digits)
            row |= {"digits_error": exact, "rounded_error": rounded}
        rows.append(row)
    return pd.DataFrame(rows)


def _chain(target: nn.Sequential, block: int, **options: Any) -> RebuiltChain:
    """The chain, whose errors are the result, also where they are too large for ``skip_chain``."""
    try:
        return skip_chain(target, block, **options)
    except RunError as error:
        if not isinstance(error.reconstruction, RebuiltChain):
            raise
        return error.reconstruction


def _smallest_share(chain: SkipChain) -> float:
    """The smallest |γ| of a block's scales over its largest, the least over the blocks."""
    scales = [scale_of(segment.norm).abs() for segment in chain.segments()]
    return min(float(scale.min() / scale.max()) for scale in scales)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per d and k."""
    return [
        Task(
            f"d = {side}, k = {block}",
            rebuild,
            {
                "side": side,
                "block": block,
                "seeds": SEEDS[scale],
                "digits": DIGITS,
                "refinements": REFINEMENTS,
            },
        )
        for side, block in SETTINGS[scale]
    ]


def _seeds(values: pd.Series, most: float = math.inf) -> str:
    """The median over seeds, and the largest.

    >>> _seeds(pd.Series([6e-9, 0.16, 2e-9])), _seeds(pd.Series([1e3, 1e17]), most=1e16)
    ('6e-09 (2e-01)', '> 1e16 (> 1e16)')
    """
    values = values.dropna()
    if values.empty:
        return ""
    median, largest = (
        f"> {most:.0e}".replace("e+", "e") if value > most else f"{value:.0e}"
        for value in (values.median(), values.max())
    )
    return f"{median} ({largest})"


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per d and k."""
    lines = []
    for (side, block), group in rows.groupby(["side", "block"], sort=True):
        lines.append(
            {
                "d": side,
                "k": block,
                "width d k": int(group["width"].iloc[0]),
                "layers": int(group["layers"].iloc[0]) + 1,
                "condition": _seeds(group["condition"], MOST_CONDITION),
                "block, float64": _seeds(group["error"]),
                "block, refined": _seeds(group["refined_error"]),
                f"block, {DIGITS} digits": _seeds(group["digits_error"]),
                "block, rounded to float64": _seeds(group["rounded_error"]),
                "function, refined": _seeds(group["functional_error"]),
                "seeds": len(group),
            }
        )
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Error and condition against the number of blocks."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.9))
    for (side, group), colour in zip(rows.groupby("side", sort=True), PALETTE, strict=False):
        shown = group.assign(condition=group["condition"].clip(upper=MOST_CONDITION))
        medians = shown.groupby("layers")[["refined_error", "condition"]].median()
        for axes, name in ((left, "refined_error"), (right, "condition")):
            axes.semilogy(shown["layers"], shown[name], "o", color=colour, markersize=3)
            axes.semilogy(medians.index, medians[name], color=colour, label=f"d = {side}")
    left.set_title("(a) every seed; lines: medians")
    left.set_xlabel("number of blocks, ceil(d / k)")
    left.set_ylabel("relative error of the worst block")
    right.set_title("(b)")
    right.set_xlabel("number of blocks, ceil(d / k)")
    right.set_ylabel("condition of the worst block")
    right.axhline(MOST_CONDITION, color="grey", linestyle=":")
    place_legend(figure, 6)
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 2 in many digits and in float64, its lemmas, and where the printed one is false."""
    exact = rows["digits_error"].max()
    return [
        Claim(
            "Theorem 2",
            "A random network of width d k and depth ceil(d / k) + 1 with skip connections "
            "computes a target layer.",
            "open" if math.isnan(exact) else "confirmed" if exact < 1e-50 else "contradicted",
            f"largest error of a block {exact:.0e} in {DIGITS} digits, up to {MOST_UNKNOWNS} "
            f"unknowns. Largest error of the function in float64: {limits(rows)}.",
        ),
        Claim(
            "Theorem 2",
            "It does so for every target with ||W*|| <= 1.",
            "false as stated",
            "a block of zeros in W* has zero scales as its only solution and cuts off all earlier "
            "layers (erratum 17); inputs that a layer does not read get no block here.",
        ),
        *_lemmas(rows),
    ]


def _lemmas(rows: pd.DataFrame) -> list[Claim]:
    """Lemma 2 where one block is the whole layer, Lemma 3 where float64 solves all blocks."""
    whole = rows[rows["block"] == rows["side"]]
    solved = rows[rows["functional_error"] <= HELD]
    found = []
    if len(whole):
        worst = whole["condition"].max()
        found.append(
            Claim(
                "Remark 5, Lemma 2 (6)",
                "The Khatri-Rao product of the matrices of a block, V ⊙ (W A)ᵀ, has full rank.",
                "confirmed" if worst < 1e12 else "open",
                f"largest condition of {len(whole)} products (k = d) up to d = "
                f"{whole['side'].max()}: {worst:.0e}.",
            )
        )
    if len(solved):
        least = solved["smallest_scale"].min()
        found.append(
            Claim(
                "Lemma 3 (8)",
                "All scales of a block are nonzero.",
                "confirmed" if least > 1e-10 else "open",
                f"the smallest scale is at least {least:.0e} of its block's largest, in "
                f"{len(solved)} chains whose function has an error of at most {HELD:g}.",
            )
        )
    return found


def limits(rows: pd.DataFrame) -> str:
    """For every k the widths d up to which float64 suffices, and those at which it does not."""
    found = []
    for block, group in rows.groupby("block", sort=True):
        worst = group.fillna({"functional_error": math.inf}).groupby("side")["functional_error"]
        bad = [f"{error:.0e} at d = {side}" for side, error in worst.max().items() if error > HELD]
        good = [int(side) for side, error in worst.max().items() if error <= HELD]
        below = [f"below 1e-6 at d = {', '.join(map(str, good))}"] if good else []
        found.append(f"k = {block}: {', '.join(below + bad)}")
    return "; ".join(found)


PART = Experiment(
    "Theorem 2, Lemmas 2 and 3",
    "Narrow, deep random networks with skip connections",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
