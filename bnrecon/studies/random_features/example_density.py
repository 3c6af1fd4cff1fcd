"""The example after Theorem 4.2: which feature density p finds a target of degree 10."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from bnrecon.reporting.figures import COLUMN, PALETTE, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import proportion_interval
from bnrecon.reproduction.parts import Decision, Decisions, below, part, read_reported, sweep
from bnrecon.studies.random_features import sparse_matching

REPORTED = read_reported(__package__)["example"]
OUTPUTS, DEGREE = REPORTED["outputs"], REPORTED["degree"]
DENSITY, WANTED = REPORTED["density"], REPORTED["probability"]
# By name, c0 of the target; rows with disjoint inputs need c2 d of them (Fig. 1 (e)).
INPUTS = {"random rows": REPORTED["inputs"], "rows of own inputs": OUTPUTS * DEGREE}
SHOWN = {"random rows": "random rows", "rows of own inputs": "rows with disjoint inputs"}
DRAWS = {"smoke": 40, "laptop": 2000, "paper": 10_000}
PROBABILITIES = (0.1, 0.5, WANTED, 0.9)


def measure_density(target: str, draws: int) -> pd.DataFrame:
    """The smallest density at which the target is found: one row per draw of both."""
    inputs = INPUTS[target]
    generator = np.random.default_rng(0)
    make = sparse_matching.random_rows(OUTPUTS, inputs, DEGREE)
    rows = []
    for number in range(draws):
        fixed = target == "rows of own inputs"
        drawn = sparse_matching.disjoint_rows(OUTPUTS, inputs, DEGREE) if fixed else make(generator)
        critical = sparse_matching.critical_density(drawn, generator.random((OUTPUTS, inputs)))
        row = {"target": target, "inputs": inputs, "draw": number, "critical_density": critical}
        rows.append(row)
    return pd.DataFrame(rows)


def quantile_interval(values: np.ndarray, share: float) -> tuple[float, float, float]:
    """A quantile with its exact 95% interval from order statistics, which assumes no distribution.

    An end is NaN if there are too few values for it.

    >>> quantile_interval(np.arange(1.0, 101.0), 0.5)
    (50.0, 40.0, 61.0)
    """
    value = np.quantile(values, share, method="inverted_cdf")
    low, high = stats.quantile_test(values, p=share).confidence_interval(0.95)
    return float(value), float(low), float(high)


def _share(values: np.ndarray, density: float) -> tuple[float, float, float]:
    """How often the target is found at a density, with the exact 95% interval."""
    matched = int((values <= density).sum())
    return matched / len(values), *proportion_interval(matched, len(values))


def _bound(density: float) -> float:
    return sparse_matching.degree_bound(np.full(OUTPUTS, DEGREE), density, OUTPUTS)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per type of target: the probability at the printed p, and p by probability."""
    lines = []
    for target, group in rows.groupby("target", sort=False):
        values = group["critical_density"].to_numpy()
        line = {
            "target": SHOWN[str(target)],
            "c0": int(group["inputs"].iloc[0]),
            "draws": len(values),
            f"found at p = {DENSITY:g}": _bracketed(_share(values, DENSITY)),
        }
        for share in PROBABILITIES:
            line[f"p for probability {share:g}"] = _bracketed(quantile_interval(values, share))
        lines.append(line)
    return pd.DataFrame(lines)


def _bracketed(interval: tuple[float, float, float]) -> str:
    value, low, high = interval
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the probability that the target is found over p, and Theorem 4.2's bound."""
    figure, axes = new_figure(size=(COLUMN, 2.7))
    densities = np.linspace(0.7, 1, 301)
    axes.plot(densities, list(map(_bound, densities)), color="black", label="bound, Thm 4.2")
    for (target, group), colour in zip(rows.groupby("target", sort=False), PALETTE, strict=False):
        values = np.sort(group["critical_density"])
        shares = np.searchsorted(values, densities, side="right") / len(values)
        label = f"{SHOWN[str(target)]}, $c_0={group['inputs'].iloc[0]}$, {len(values)} draws"
        axes.plot(densities, shares, color=colour, label=label)
    axes.axvline(DENSITY, color="grey", linestyle=":", linewidth=1)
    style: dict[str, Any] = {"textcoords": "offset points", "rotation": 90, "fontsize": 7}
    axes.annotate("$p$ in print", (DENSITY, 0.15), (3, 0), **style)
    axes.set(xlim=(densities[0], 1), ylim=(0, 1.02), title=f"$c_2={OUTPUTS}$, $d={DEGREE}$")
    axes.set(xlabel="feature density $p$", ylabel="probability of a match")
    draw_legend(figure, side="lower")
    return figure


def caption_numbers(_rows: pd.DataFrame) -> dict[str, float]:
    """The example, and the densities that the text and the bound require."""
    # The density at which the bound is ``WANTED``.
    necessary = (1 - (1 - WANTED ** (1 / OUTPUTS)) ** (1 / OUTPUTS)) ** (1 / DEGREE)
    # The text requires 1 - (δ/c2)^(1/c2); to the power 1/d, the bound is about 1 - δ.
    printed = 1 - ((1 - WANTED) / OUTPUTS) ** (1 / OUTPUTS)
    return {
        "outputs": OUTPUTS,
        "degree": DEGREE,
        "density": DENSITY,
        "necessary": necessary,
        "printed": printed,
        "repaired": printed ** (1 / DEGREE),
    }


def decide(rows: pd.DataFrame) -> Decisions:
    """Is more than the printed density needed?"""
    return [_more(str(target), group) for target, group in rows.groupby("target", sort=False)]


def _more(target: str, rows: pd.DataFrame) -> Decision:
    """Confirmed if the target is surely found too rarely at the printed density."""
    values = rows["critical_density"].to_numpy()
    share, needed = _share(values, DENSITY), quantile_interval(values, WANTED)
    verdict = "confirmed" if share[2] < WANTED else "undecided"
    numbers = {"degree": DEGREE, "density": DENSITY, "wanted": WANTED, "bound": _bound(DENSITY)}
    numbers |= {"inputs": rows["inputs"].iloc[0], "more": needed[0] - DENSITY}
    numbers |= {"needed": _bracketed(needed), "share": _bracketed(share), "draws": len(values)}
    return target, "contradicted" if share[1] > WANTED else verdict, numbers


TASKS = sweep(measure_density, "{target}", {"target": tuple(INPUTS)}, {"draws": DRAWS})
PART = part(__file__, TASKS, summarize, draw, decide, caption_numbers, excerpt=below)
