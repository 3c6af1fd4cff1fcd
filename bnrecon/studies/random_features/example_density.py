"""The example after Theorem 4.2: which feature density p finds a target of degree 10."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from bnrecon.reporting.figures import COLUMN, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.study import read_reported
from bnrecon.studies.random_features.sparse_matching import (
    critical_density,
    degree_bound,
    disjoint_rows,
    random_rows,
    required_density,
    required_density_in_print,
)

__all__ = ["PART", "measure_density", "quantile_interval"]

REPORTED = read_reported(__package__)["example"]
OUTPUTS, DEGREE, DENSITY, WANTED = (
    REPORTED[name] for name in ("outputs", "degree", "density", "probability")
)
# By name, c0 of the target; rows with inputs of their own need c2 d of them (Fig. 1 (e)).
INPUTS = {"random rows": REPORTED["inputs"], "rows of own inputs": OUTPUTS * DEGREE}
SHOWN = {"random rows": "random rows", "rows of own inputs": "rows with disjoint inputs"}
DRAWS = {"smoke": 40, "laptop": 2000, "paper": 10_000}
PROBABILITIES = (0.1, 0.5, WANTED, 0.9)


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each kind of target."""
    return [
        Task(target, measure_density, {"target": target, "draws": DRAWS[scale]})
        for target in INPUTS
    ]


def measure_density(target: str, draws: int) -> pd.DataFrame:
    """The smallest density at which the target is found: one row for each draw of both."""
    inputs = INPUTS[target]
    generator = np.random.default_rng(0)
    make = random_rows(OUTPUTS, inputs, DEGREE)
    rows = []
    for number in range(draws):
        fixed = target == "rows of own inputs"
        drawn = disjoint_rows(OUTPUTS, inputs, DEGREE) if fixed else make(generator)
        found = critical_density(drawn, generator.random((OUTPUTS, inputs)))
        rows.append({"target": target, "inputs": inputs, "draw": number, "critical_density": found})
    return pd.DataFrame(rows)


def quantile_interval(values: np.ndarray, share: float) -> tuple[float, float, float]:
    """A quantile with its exact 95% interval from order statistics, which assumes no distribution.

    >>> quantile_interval(np.arange(1.0, 101.0), 0.5)
    (50.0, 40.0, 61.0)
    """
    ordered, n = np.sort(values), len(values)
    low, high = stats.binom(n, share).ppf([0.025, 0.975]).astype(int)
    ranks = (int(np.ceil(share * n)), max(int(low), 1), min(int(high) + 1, n))
    value, lowest, highest = (float(ordered[rank - 1]) for rank in ranks)
    return value, lowest, highest


def _share(values: np.ndarray, density: float) -> tuple[float, float, float]:
    """How often the target is found at a density, with the exact 95% interval."""
    found = int((values <= density).sum())
    low, high = stats.binomtest(found, len(values)).proportion_ci(0.95)
    return found / len(values), float(low), float(high)


def _bound(density: float) -> float:
    return degree_bound(np.full(OUTPUTS, DEGREE), density, OUTPUTS)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per kind of target: the probability at the printed p, and p by probability."""
    lines = []
    for target, group in rows.groupby("target", sort=False):
        values = group["critical_density"].to_numpy()
        line = {
            "target": SHOWN[str(target)],
            "c0": int(group["inputs"].iloc[0]),
            "draws": len(values),
            f"found at p = {DENSITY:g}": _bracketed(_share(values, DENSITY)),
        }
        for wanted in PROBABILITIES:
            line[f"p for probability {wanted:g}"] = _bracketed(quantile_interval(values, wanted))
        lines.append(line)
    return pd.DataFrame(lines)


def _bracketed(found: tuple[float, float, float]) -> str:
    value, low, high = found
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The probability that the target is found over p, below Theorem 4.2's bound."""
    figure, axes = new_figure(size=(COLUMN, 2.7))
    densities = np.linspace(0.7, 1, 301)
    axes.plot(
        densities, [_bound(density) for density in densities], color="black", label="bound, Thm 4.2"
    )
    for (target, group), colour in zip(rows.groupby("target", sort=False), PALETTE, strict=False):
        values = np.sort(group["critical_density"])
        shares = np.searchsorted(values, densities, side="right") / len(values)
        label = f"{SHOWN[str(target)]}, $c_0={group['inputs'].iloc[0]}$, {len(values)} draws"
        axes.plot(densities, shares, color=colour, label=label)
    axes.axvline(DENSITY, color="grey", linestyle=":", linewidth=1)
    axes.annotate(
        "$p$ in print",
        (DENSITY, 0.15),
        (3, 0),
        textcoords="offset points",
        rotation=90,
        fontsize=7,
    )
    axes.set_xlim(densities[0], 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("feature density $p$")
    axes.set_ylabel("probability of a match")
    axes.set_title(f"$c_2={OUTPUTS}$, $d={DEGREE}$")
    figure.legend(loc="outside lower center", ncols=1)
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Is more than the printed density needed?"""
    return [
        _claim(str(target), group["critical_density"].to_numpy(), int(group["inputs"].iloc[0]))
        for target, group in rows.groupby("target", sort=False)
    ]


def _claim(target: str, values: np.ndarray, inputs: int) -> Claim:
    """Confirmed where the target is surely found too rarely at the printed density."""
    share, needed = _share(values, DENSITY), quantile_interval(values, WANTED)
    verdict = "confirmed" if share[2] < WANTED else "open"
    where, statement = (
        (
            "After Theorem 4.2, example",
            f'A target with c2 = c0 = {inputs} and d = {DEGREE} "would require more than '
            f'p={DENSITY:g} for target reconstruction with probability 1-δ>{WANTED:g}".',
        )
        if target == "random rows"
        else (
            f"Beyond the example: {SHOWN[target]}",
            f"The same for rows with disjoint inputs, which need c0 = {inputs} (ours).",
        )
    )
    return Claim(
        where,
        statement,
        "contradicted" if share[1] > WANTED else verdict,
        f"more by {needed[0] - DENSITY:.3f}: probability {WANTED:g} needs p = "
        f"{_bracketed(needed)} and 0.9 {_bracketed(quantile_interval(values, 0.9))}; at p = "
        f"{DENSITY:g} the target is found with {_bracketed(share)} ({len(values)} draws), where "
        f"Theorem 4.2's bound is {_bound(DENSITY):.3f}.",
    )


PRINTED = required_density_in_print(OUTPUTS, 1 - WANTED)
REPAIRED = required_density(OUTPUTS, DEGREE, 1 - WANTED)
NECESSARY = (1 - (1 - WANTED ** (1 / OUTPUTS)) ** (1 / OUTPUTS)) ** (1 / DEGREE)  # bound = WANTED

PART = Experiment(
    where="After Theorem 4.2",
    title="The density that finds a target of the example",
    caption=(
        f"Each draw has a target of c2 = {OUTPUTS} rows of {DEGREE} weights and as many feature "
        "rows of c0 uniform numbers u, of which the features with u < p exist; the smallest p at "
        "which a permutation of the rows finds the target is computed exactly. In brackets are "
        "exact 95% intervals, of quantiles from order statistics. Theorem 4.2's bound is the same "
        "for all targets of these degrees. It is the probability that each row fits some feature "
        "row, as if rows did not compete for them, and is reached by none of these targets: a p "
        f"of about {DENSITY:g} is necessary by the bound (exactly {NECESSARY:.4f}), not "
        "sufficient. "
        "The density of the text, as extracted 1 - (δ/c2)^(1/c2), is "
        f"{PRINTED:.3f} in the example; with an exponent 1/d, which print or extraction may have "
        f"lost, it is {REPAIRED:.3f}, the text's own {DENSITY:g} (docs/errata.md, entries 11 and "
        "12)."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    claims=claims,
)
