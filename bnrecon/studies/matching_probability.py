"""Theorems 4.2 and 4.3 of Random features for normalization layers: can a sparse target be found among sparse features?"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

__all__ = ["bound_4_2", "probability", "simulated", "summary", "width_factor"]


def bound_4_2(degrees: np.ndarray, density: float, outputs: int) -> float:
    """Π_i (1 - (1 - p^{d_i})^{c2}): Theorem 4.2's upper bound of the probability that a target with these in-degrees is matched.

    >>> bound_4_2(np.array([1, 1]), 0.5, 2)
    0.5625
    """
    return float(np.prod(1 - (1 - density ** np.asarray(degrees, dtype=float)) ** outputs))


def width_factor(outputs: int, inputs: int, target_density: float, density: float, failure: float) -> float:
    """Theorem 4.3's k: how many times as many outputs find a Ber(q) target of ``outputs`` with probability 1 - δ.

    >>> round(width_factor(50, 50, 0.1, 0.9, 0.1), 1)
    6.6
    """
    each = (1 - target_density * (1 - density)) ** inputs
    return math.log(1 - (1 - failure) ** (1 / outputs)) / math.log(1 - each)


def matched(target: np.ndarray, mask: np.ndarray) -> bool:
    """Whether every target row lies within a mask row of its own: a perfect bipartite matching."""
    fits = (target.astype(np.int32) @ (1 - mask.astype(np.int32)).T) == 0
    found = maximum_bipartite_matching(csr_matrix(fits.astype(np.int8)), perm_type="column")
    return bool((found >= 0).all())


def probability(
    make: Callable[[np.random.Generator], np.ndarray], rows: int, density: float, draws: int, seed: int = 0
) -> tuple[int, int]:
    """Number of draws of ``rows`` Ber(p) mask rows among which the target, ``make(generator)``, is matched; and the draws."""
    generator = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        target = make(generator)
        hits += matched(target, generator.random((rows, target.shape[1])) < density)
    return hits, draws


def disjoint(outputs: int, inputs: int, degree: int) -> np.ndarray:
    """Rows of ``degree`` ones in places of their own (Fig. 1 (e)), where there is room; the last rows overlap if there is not."""
    target = np.zeros((outputs, inputs), dtype=bool)
    for row in range(outputs):
        target[row, [(row * degree + step) % inputs for step in range(degree)]] = True
    return target


def random_rows(outputs: int, inputs: int, degree: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Rows of ``degree`` ones in random places."""

    def make(generator: np.random.Generator) -> np.ndarray:
        return generator.random((outputs, inputs)).argsort(1) < degree

    return make


def simulated(scale: str) -> pd.DataFrame:
    """Matching probabilities by simulation beside both theorems'."""
    draws = {"smoke": 200, "laptop": 20_000, "paper": 100_000}[scale]
    few = max(50, draws // 20)
    lines = []
    for degree, inputs in ((1, 2), (2, 4)):  # p^d = 1/2 both times
        density = 0.5 ** (1 / degree)
        target = disjoint(2, inputs, degree)
        hits, of = probability(lambda _, target=target: target, 2, density, draws)
        lines.append(
            _line(
                "4.2",
                f"c2 = 2, d = {degree}, disjoint",
                density,
                bound_4_2(np.array([degree] * 2), density, 2),
                "at most",
                hits,
                of,
            )
        )
    for density in (0.7, 0.75, 0.8, 0.85, 0.9):
        bound = bound_4_2(np.array([10] * 50), density, 50)
        hits, of = probability(random_rows(50, 50, 10), 50, density, few)
        lines.append(_line("4.2", "c2 = c0 = 50, d = 10, random", density, bound, "at most", hits, of))
    for outputs, inputs, sparsity, density in ((10, 20, 0.1, 0.7), (10, 20, 0.2, 0.8), (50, 50, 0.1, 0.9)):
        k = math.ceil(width_factor(outputs, inputs, sparsity, density, 0.1))
        make = lambda generator, o=outputs, i=inputs, q=sparsity: generator.random((o, i)) < q  # noqa: E731
        hits, of = probability(make, k * outputs, density, few)
        lines.append(_line("4.3", f"c2 = {outputs}, c0 = {inputs}, q = {sparsity}, k = {k}", density, 0.9, "at least", hits, of))
        hits, of = probability(make, outputs, density, few)
        lines.append(_line("4.3", f"c2 = {outputs}, c0 = {inputs}, q = {sparsity}, k = 1", density, None, "", hits, of))
    return pd.DataFrame(lines)


def _line(theorem: str, setting: str, density: float, bound: float | None, sense: str, hits: int, draws: int) -> dict:
    interval = stats.binomtest(hits, draws).proportion_ci(0.95)
    return {
        "theorem": theorem, "setting": setting, "feature density p": density, "bound": bound, "sense": sense, "matched": hits, "draws": draws,
        "low": interval.low, "high": interval.high,
    }  # fmt: skip


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a setting, with whether the bound holds and whether it is attained."""
    lines = []
    for _, row in frame.iterrows():
        share = row["matched"] / row["draws"]
        line = {"theorem": row["theorem"], "setting": row["setting"], "feature density p": f"{row['feature density p']:.4g}"}
        line["simulated"] = f"{share:.4f} [{row['low']:.4f}, {row['high']:.4f}] (n={row['draws']})"
        if row["sense"]:
            bound = float(row["bound"])
            line["theorem says"] = f"{row['sense']} {bound:.4f}"
            holds = row["low"] <= bound if row["sense"] == "at most" else row["high"] >= bound
            line["holds"] = "yes" if holds else "no"
        if "disjoint" in row["setting"]:  # which the paper says attain it
            line["attained"] = "yes" if row["low"] <= bound <= row["high"] else "no"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")
