"""Theorem 2: narrow, deep sources with skip connections, and the limits of float64."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from torch import nn

from bnrecon.construction.random_linear import REFINEMENTS, khatri_rao, scale_of, solve_scales
from bnrecon.construction.relu_target import read_relu_network
from bnrecon.construction.skip_source import RebuiltChain, SkipChain, block_sizes, skip_chain
from bnrecon.features.portable_random import Stream
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, draw_legend, new_figure
from bnrecon.reproduction.parts import Decisions, join, part, sweep, table
from bnrecon.runtime.errors import RunError
from bnrecon.studies.giannou2023.many_digits import solve_in_digits
from bnrecon.studies.giannou2023.theorem1 import SEEDS, random_target

# (d, k): deep to shallow, including pairs where k does not divide d.
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
# (d, k, l): targets of l layers, and (d, k): targets whose last block of columns is zero.
DEEP = {
    "smoke": ((4, 2, 2),),
    "laptop": tuple((*pair, n) for pair in ((4, 1), (8, 2), (16, 4), (32, 8)) for n in (2, 4, 8)),
}
DEEP["paper"] = DEEP["laptop"]
ZERO = {"smoke": ((4, 2),), "laptop": ((4, 1), (8, 2), (16, 4)), "paper": ((4, 1), (8, 2), (16, 4))}
DIGITS = 100  # of the arithmetic that counts as exact
MOST_CONDITION = 1e16  # 1 over float64's rounding: float64 cannot measure more
HELD = 1e-6  # float64 suffices up to this functional error
MOST_UNKNOWNS = 24  # systems up to this size are also solved in ``DIGITS`` digits


def rebuild(
    side: int, block: int, seeds: int, digits: int, refinements: int, depth: int = 1
) -> pd.DataFrame:
    """One row per seed, for a target of l layers of width d and blocks of k.

    Only small systems have errors in ``digits`` decimal digits. The refined errors are those of LU
    solutions corrected ``refinements`` times.
    """
    rows = []
    for seed in range(seeds):
        target = random_target(side, depth, seed)
        refined = _chain(target, block, seed=seed, refinements=refinements, conditions=True)
        plain = _chain(target, block, seed=seed, refinements=0)
        exact = rounded = math.nan
        if side * block <= MOST_UNKNOWNS:
            layers = enumerate(read_relu_network(target))
            solved = [solve_in_digits(layer.weight, block, seed, digits, n) for n, layer in layers]
            exact, rounded = map(max, zip(*solved, strict=True))
        # |γ| by block, of all layers; the smallest ratio to the largest is a column.
        chains = [module for module in refined.network if isinstance(module, SkipChain)]
        scales = [scale_of(one.norm).abs() for chain in chains for one in chain.segments()]
        row: dict[str, Any] = {"side": side, "block": block, "depth": depth, "seed": seed}
        row |= {"layers": -(-side // block), "width": side * block}
        row |= {"error": max(segment.relative_error for segment in plain.segments)}
        row |= {"refined_error": max(segment.relative_error for segment in refined.segments)}
        row |= {"functional_error": refined.functional_error}
        row |= {"condition": max(segment.condition or 0.0 for segment in refined.segments)}
        row |= {"smallest_scale": min(float(scale.min() / scale.max()) for scale in scales)}
        rows.append(row | {"digits_error": exact, "rounded_error": rounded})
    return pd.DataFrame(rows)


def _chain(target: nn.Sequential, block: int, **options: Any) -> RebuiltChain:
    """Return the chain even if its errors, the result, are too large for ``skip_chain``."""
    try:
        return skip_chain(target, block, **options)
    except RunError as error:
        if not isinstance(error.reconstruction, RebuiltChain):
            raise
        return error.reconstruction


def solve_zero_block(side: int, block: int, seeds: int) -> pd.DataFrame:
    """One row per seed: the printed chain for a target whose last block of columns is zero.

    ``zero_scale`` is the largest |γ| of that block's layer, ``zero_condition`` its system's
    condition: if regular, γ = 0 is the only solution, and no earlier block reaches the output.
    """
    rows = []
    for seed in range(seeds):
        sizes = block_sizes(side, block)
        chain = SkipChain(torch.arange(side), sizes, side, side * block, Stream(seed, 0))
        last, after = chain.segments()[-1], chain.out.weight
        before = last.mix.weight @ last.lift.weight
        scale = solve_scales(after, before, torch.zeros(side, block, dtype=torch.float64))
        condition = float(torch.linalg.cond(khatri_rao(after, before)))
        row = {"side": side, "block": block, "seed": seed, "zero_condition": condition}
        rows.append(row | {"zero_scale": float(scale.abs().max())})
    return pd.DataFrame(rows)


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


def split_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the rows into rebuilt targets, with their depth, and zero blocks."""
    rows = rows.reindex(columns=dict.fromkeys([*rows, "depth", "zero_condition", "zero_scale"]))
    zero = rows["zero_condition"].notna()
    return rows[~zero].fillna({"depth": 1}), rows[zero]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per d, k and l of the rebuilt targets."""
    columns: dict[str, Any] = {
        "d": "side",
        "k": "block",
        "l": lambda group: int(group["depth"].iloc[0]),
        "width d k": lambda group: int(group["width"].iloc[0]),
        "layers": lambda group: int(group["depth"].iloc[0] * (group["layers"].iloc[0] + 1)),
        "condition": lambda group: _seeds(group["condition"], MOST_CONDITION),
        "block, float64": lambda group: _seeds(group["error"]),
        "block, refined": lambda group: _seeds(group["refined_error"]),
        f"block, {DIGITS} digits": lambda group: _seeds(group["digits_error"]),
        "block, rounded to float64": lambda group: _seeds(group["rounded_error"]),
        "function, refined": lambda group: _seeds(group["functional_error"]),
        "seeds": len,
    }
    return table(split_rows(rows)[0], ["depth", "side", "block"], **columns)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw error and condition of one-layer targets against the number of blocks."""
    rows = split_rows(rows)[0].query("depth == 1")
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.9))
    for (side, group), colour in zip(rows.groupby("side", sort=True), PALETTE, strict=False):
        shown = group.assign(condition=group["condition"].clip(upper=MOST_CONDITION))
        medians = shown.groupby("layers")[["refined_error", "condition"]].median()
        for axes, name in ((left, "refined_error"), (right, "condition")):
            axes.semilogy(shown["layers"], shown[name], "o", color=colour, markersize=3)
            axes.semilogy(medians.index, medians[name], color=colour, label=f"d = {side}")
    blocks = "number of blocks, ceil(d / k)"
    left.set(title="(a) every seed; lines: medians", xlabel=blocks)
    left.set_ylabel("relative error of the worst block")
    right.set(title="(b)", xlabel=blocks, ylabel="condition of the worst block")
    right.axhline(MOST_CONDITION, color="grey", linestyle=":")
    draw_legend(figure, 6)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Theorem 2 in many digits and in float64, its printed form, and its lemmas.

    Lemma 2 is tested where one block is the whole layer, Lemma 3 where float64 solves all blocks of
    a one-layer target.
    """
    chains, zero = split_rows(rows)
    single, deep = chains[chains["depth"] == 1], chains[chains["depth"] > 1]
    verdicts: dict[str, bool | str] = {}
    numbers: dict[str, Any] = {"digits": DIGITS, "unknowns": MOST_UNKNOWNS, "held": HELD}
    if len(single):
        exact = single["digits_error"].max()
        verdicts["exact"] = "undecided" if math.isnan(exact) else bool(exact < 1e-50)
        numbers |= {"exact": exact} | limits(single)
    if len(deep):
        off, worst = deep["functional_error"].max(), deep["digits_error"].max()
        unknown = off <= HELD and math.isnan(worst)  # no system is small
        verdicts["layers"] = "undecided" if unknown else bool(off <= HELD and worst < 1e-50)
        numbers |= {"off": off, "deep_exact": worst, "networks": len(deep)}
        numbers |= {"depth": deep["depth"].max(), "wide": deep["side"].max()}
    if len(zero):
        regular, scale = zero["zero_condition"].max(), zero["zero_scale"].max()
        cut = regular < MOST_CONDITION / 1e4 and scale == 0
        verdicts["every target"] = "needs a condition" if cut else "undecided"
        numbers |= {"systems": len(zero), "regular": regular, "zero_scale": scale}
    if len(whole := single[single["block"] == single["side"]]):
        worst = whole["condition"].max()
        verdicts["rank"] = "confirmed" if worst < 1e12 else "undecided"
        numbers |= {"products": len(whole), "side": whole["side"].max(), "worst": worst}
    if len(single) and len(solved := single[single["functional_error"] <= HELD]):
        least = solved["smallest_scale"].min()
        verdicts["scales"] = "confirmed" if least > 1e-10 else "undecided"
        numbers |= {"least": least, "chains": len(solved)}
    return verdicts, numbers


def limits(rows: pd.DataFrame) -> dict[str, Any]:
    """The settings at which float64 fails for some seed, and the number of others.

    >>> limits(pd.DataFrame({"block": [1, 2], "side": [8, 8], "functional_error": [0.5, 1e-9]}))
    {'lost': 'd = 8 (k = 1)', 'kept': 1, 'settings': 2}
    """
    errors = rows.fillna({"functional_error": math.inf}).groupby(["block", "side"])
    worst = errors["functional_error"].max()
    lost = worst.index[worst > HELD].to_frame(index=False)
    sides = lost["side"].astype(str).groupby(lost["block"]).agg(", ".join)
    listed = (f"d = {of_block} (k = {block})" for block, of_block in sides.items())
    kept = len(worst) - len(lost)
    return {"lost": "; ".join(listed) or "none", "kept": kept, "settings": len(worst)}


FIXED = {"seeds": SEEDS, "digits": DIGITS, "refinements": REFINEMENTS}
NAME = "d = {side}, k = {block}"
TASKS = join(
    sweep(rebuild, NAME, {("side", "block"): SETTINGS}, FIXED),
    sweep(rebuild, f"{NAME}, l = {{depth}}", {("side", "block", "depth"): DEEP}, FIXED),
    sweep(solve_zero_block, f"{NAME}, zero block", {("side", "block"): ZERO}, {"seeds": SEEDS}),
)


def excerpt(table: pd.DataFrame) -> pd.DataFrame:
    """The narrowest and widest networks for each target."""
    if table.empty:
        return table
    extreme = (table["k"] == 1) | (table["k"] == table["d"])
    dropped = ["width d k", "block, float64", "block, rounded to float64", "layers", "seeds"]
    return table[extreme].drop(columns=dropped)


PART = part(__file__, TASKS, summarize, draw, decide, excerpt=excerpt)
