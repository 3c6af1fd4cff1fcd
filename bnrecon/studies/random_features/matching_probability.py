"""Theorems 4.2 and 4.3 of Random features for normalization layers: can a sparse target be found among sparse features?"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import brentq
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

__all__ = [
    "bound_4_2",
    "partitioned",
    "probability",
    "simulated",
    "summary",
    "width_factor",
    "width_factor_in_print",
]


MOST_ROWS = 20_000


def bound_4_2(degrees: np.ndarray, density: float, outputs: int) -> float:
    """Π_i (1 - (1 - p^{d_i})^{c2}): Theorem 4.2's upper bound of the probability that a target with these in-degrees is matched.

    >>> bound_4_2(np.array([1, 1]), 0.5, 2)
    0.5625
    """
    return float(np.prod(1 - (1 - density ** np.asarray(degrees, dtype=float)) ** outputs))


def width_factor_in_print(
    outputs: int, inputs: int, target_density: float, density: float, failure: float
) -> float:
    """Theorem 4.3's k, how many times as many outputs would find a Ber(q) target of ``outputs`` rows with probability 1 - δ.

    log(1 - (1 - δ)^{1/c2}) / log(1 - (1 - q (1 - p))^c0). It takes the k candidates of a row for independent, but they share the row's
    in-degree D: that none fits has probability E[(1 - p^D)^k], which is above (1 - E[p^D])^k (Jensen). ``width_factor`` is what suffices.

    >>> round(width_factor_in_print(1, 1, 0.5, 0.5, 1 / 16), 9), partitioned(2, 1, 1, 0.5, 0.5)  # the theorem says 15/16
    (2.0, 0.875)
    """
    each = (1 - target_density * (1 - density)) ** inputs
    return math.log(1 - (1 - failure) ** (1 / outputs)) / math.log(1 - each)


def partitioned(
    factor: float, outputs: int, inputs: int, target_density: float, density: float
) -> float:
    """(1 - E[(1 - p^D)^k])^c2, D ~ Bin(c0, q): that every row of a Ber(q) target fits one of k candidates of its own, as A.2 divides them.

    A lower bound of the probability that the target is matched among all k c2 rows.
    """
    degrees = np.arange(inputs + 1)
    none = stats.binom.pmf(degrees, inputs, target_density) @ (1 - density**degrees) ** factor
    return float((1 - none) ** outputs)


def width_factor(
    outputs: int, inputs: int, target_density: float, density: float, failure: float
) -> float:
    """The k with which Theorem 4.3's proof holds: ``partitioned`` is 1 - δ.

    >>> round(width_factor(1, 1, 0.5, 0.5, 1 / 16), 6)
    3.0
    """

    def excess(log_factor: float) -> float:
        return partitioned(math.exp(log_factor), outputs, inputs, target_density, density) - (
            1 - failure
        )

    largest = 1.0
    while excess(largest) < 0:
        largest *= 2
    return math.exp(brentq(excess, -50, largest))


def matched(target: np.ndarray, mask: np.ndarray) -> bool:
    """Whether every target row lies within a mask row of its own: a perfect bipartite matching."""
    fits = (target.astype(np.int32) @ (1 - mask.astype(np.int32)).T) == 0
    found = maximum_bipartite_matching(csr_matrix(fits.astype(np.int8)), perm_type="column")
    return bool((found >= 0).all())


def probability(
    make: Callable[[np.random.Generator], np.ndarray],
    rows: int,
    density: float,
    draws: int,
    seed: int = 0,
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


def random_rows(
    outputs: int, inputs: int, degree: int
) -> Callable[[np.random.Generator], np.ndarray]:
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
    for density in (0.7, 0.75, 0.8, 0.85, 0.875, 0.9):
        bound = bound_4_2(np.array([10] * 50), density, 50)
        hits, of = probability(random_rows(50, 50, 10), 50, density, few)
        lines.append(
            _line("4.2", "c2 = c0 = 50, d = 10, random", density, bound, "at most", hits, of)
        )
    for outputs, inputs, sparsity, density, failure in (
        (1, 1, 0.5, 0.5, 1 / 16),
        (10, 20, 0.1, 0.7, 0.1),
        (10, 20, 0.2, 0.8, 0.1),
        (50, 50, 0.1, 0.9, 0.1),
        (10, 50, 0.2, 0.5, 0.1),
    ):
        asked = (outputs, inputs, sparsity, density, failure)
        make = lambda generator, o=outputs, i=inputs, q=sparsity: generator.random((o, i)) < q  # noqa: E731
        about = f"c2 = {outputs}, c0 = {inputs}, q = {sparsity}"
        factors = {
            "4.3, k in print": width_factor_in_print(*asked),
            "4.3, k derived": width_factor(*asked),
        }
        for theorem, exact in factors.items():
            k = math.ceil(round(exact, 9))
            line = {"proof": partitioned(k, outputs, inputs, sparsity, density)}
            if k * outputs > MOST_ROWS:  # too many to draw: what the proof gives stands alone
                lines.append(
                    _line(theorem, f"{about}, k = {k}", density, 1 - failure, "at least", 0, 0)
                    | line
                )
                continue
            hits, of = probability(make, k * outputs, density, draws if outputs == 1 else few)
            lines.append(
                _line(theorem, f"{about}, k = {k}", density, 1 - failure, "at least", hits, of)
                | line
            )
    target, density = (
        disjoint(5, 50, 10),
        0.8,
    )  # the text's k for disjoint supports, and the one of Theorem 4.2's reasoning
    each = math.log(1 - 0.9 ** (1 / 5))
    for theorem, exact in {
        "Fig. 1 (e), k in print": 0.9 ** (1 / 5) / (5 * density**10),
        "Fig. 1 (e), k derived": each / (5 * math.log(1 - density**10)),
    }.items():
        hits, of = probability(lambda _: target, 5 * math.ceil(exact), density, few)
        lines.append(
            _line(
                theorem,
                f"c2 = 5, d = 10, own inputs, k = {math.ceil(exact)}",
                density,
                0.9,
                "at least",
                hits,
                of,
            )
        )
    return pd.DataFrame(lines)


def _line(
    theorem: str,
    setting: str,
    density: float,
    bound: float | None,
    sense: str,
    hits: int,
    draws: int,
) -> dict:
    low, high = stats.binomtest(hits, draws).proportion_ci(0.95) if draws else (math.nan, math.nan)
    return {
        "theorem": theorem,
        "setting": setting,
        "feature density p": density,
        "bound": bound,
        "sense": sense,
        "matched": hits,
        "draws": draws,
        "low": low,
        "high": high,
        "proof": math.nan,
    }


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a setting, with whether the bound holds and whether it is attained."""
    lines = []
    for _, row in frame.iterrows():
        line = {
            "theorem": row["theorem"],
            "setting": row["setting"],
            "feature density p": f"{row['feature density p']:.4g}",
        }
        drawn, bound = row["draws"] > 0, float(row["bound"])
        line["simulated"] = "too many rows to draw"
        if drawn:
            line["simulated"] = (
                f"{row['matched'] / row['draws']:.4f} [{row['low']:.4f}, {row['high']:.4f}] (n={row['draws']})"
            )
        line["the proof's candidates"] = "" if np.isnan(row["proof"]) else f"{row['proof']:.4f}"
        line["theorem says"] = f"{row['sense']} {bound:.4f}"
        if drawn:
            holds = row["low"] <= bound if row["sense"] == "at most" else row["high"] >= bound
            line["holds"] = "yes" if holds else "no"
        if "disjoint" in row["setting"]:  # which the paper says attain it
            line["attained"] = "yes" if row["low"] <= bound <= row["high"] else "no"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")
