"""The statements of Theorems 4.2 and 4.3 about probabilities, each with how to simulate it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from bnrecon.studies.random_features.sparse_matching import (
    MakeTarget,
    count_matches,
    degree_bound,
    disjoint_factor,
    disjoint_factor_in_print,
    disjoint_rows,
    partition_probability,
    random_rows,
    width_factor,
    width_factor_in_print,
)

__all__ = ["DISJOINT", "SPECIAL", "Case", "product", "simulate"]

MOST_ROWS = 20_000  # more are not drawn
# c2, c0, q, p and δ of Theorem 4.3.
SETTINGS = (
    (1, 1, 0.5, 0.5, 1 / 16),
    (10, 20, 0.1, 0.7, 0.1),
    (10, 20, 0.2, 0.8, 0.1),
    (50, 50, 0.1, 0.9, 0.1),
    (10, 50, 0.2, 0.5, 0.1),
)
SPECIAL = (5, 10, 0.8, 0.1)  # c2, d, p and δ for Fig. 1 (e), ours
DISJOINT = "own inputs"  # in the rows; the page says "disjoint inputs"


@dataclass(frozen=True)
class Case:
    """A statement about a probability, and how to simulate it.

    Args:
        theorem: whose statement it is.
        setting: its sizes, in words.
        density: p, of the features.
        bound: the probability that the statement gives.
        bound_kind: "at most" or "at least".
        make_target: draws the target.
        rows: number of feature rows.
        draws: how many times to draw; 0 leaves the simulation out.
        partition_probability: what the proof of Theorem 4.3 comes to.
    """

    theorem: str
    setting: str
    density: float
    bound: float
    bound_kind: str
    make_target: MakeTarget
    rows: int
    draws: int
    partition_probability: float = math.nan

    def simulate(self) -> dict[str, Any]:
        """A row: how often the target was found, with the exact 95% interval of the share."""
        matched, low, high = 0, math.nan, math.nan
        if self.draws:
            matched = count_matches(self.make_target, self.rows, self.density, self.draws)
            low, high = stats.binomtest(matched, self.draws).proportion_ci(0.95)
        return {
            "theorem": self.theorem,
            "setting": self.setting,
            "feature_density": self.density,
            "bound": self.bound,
            "bound_kind": self.bound_kind,
            "matched": matched,
            "draws": self.draws,
            "share_low": low,
            "share_high": high,
            "partition_probability": self.partition_probability,
        }


def simulate(draws: int) -> pd.DataFrame:
    """Simulate every statement; large targets are drawn a twentieth as often.

    Returns:
        One row for each statement and setting.
    """
    few = max(50, draws // 20)
    cases = (
        *_bound_cases(draws, few),
        *_width_cases(draws, few),
        *_disjoint_cases(few),
    )
    return pd.DataFrame([case.simulate() for case in cases])


def _bound_cases(draws: int, few: int) -> Iterator[Case]:
    """Theorem 4.2, where the paper says that its bound is attained, and for random targets."""
    for degree, inputs in ((1, 2), (2, 4)):
        density = 0.5 ** (1 / degree)  # p^d = 1/2
        target = disjoint_rows(2, inputs, degree)
        yield Case(
            "4.2",
            f"c2 = 2, d = {degree}, {DISJOINT}",
            density,
            degree_bound(np.array([degree] * 2), density, 2),
            "at most",
            _always(target),
            2,
            draws,
        )
    for density in (0.7, 0.75, 0.8, 0.85, 0.875, 0.9):
        yield Case(
            "4.2",
            "c2 = c0 = 50, d = 10, random",
            density,
            degree_bound(np.array([10] * 50), density, 50),
            "at most",
            random_rows(50, 50, 10),
            50,
            few,
        )


def _width_cases(draws: int, few: int) -> Iterator[Case]:
    """Theorem 4.3, with the printed k and the derived one."""
    for setting in SETTINGS:
        outputs, inputs, target_density, density, failure = setting
        factors = {
            "4.3, k in print": width_factor_in_print(*setting),
            "4.3, k derived": width_factor(*setting),
        }
        for theorem, factor in factors.items():
            k = math.ceil(round(factor, 9))
            drawn = draws if outputs == 1 else few
            yield Case(
                theorem,
                f"c2 = {outputs}, c0 = {inputs}, q = {target_density}, k = {k}",
                density,
                1 - failure,
                "at least",
                _bernoulli_rows(outputs, inputs, target_density),
                k * outputs,
                drawn if k * outputs <= MOST_ROWS else 0,
                partition_probability(k, outputs, inputs, target_density, density),
            )


def _disjoint_cases(few: int) -> Iterator[Case]:
    """The text's k for disjoint supports, and the one of Theorem 4.2's reasoning."""
    outputs, degree, density, failure = SPECIAL
    target = disjoint_rows(outputs, 50, degree)
    factors = {
        "Fig. 1 (e), k in print": disjoint_factor_in_print(*SPECIAL),
        "Fig. 1 (e), k derived": disjoint_factor(*SPECIAL),
    }
    for statement, factor in factors.items():
        k = math.ceil(factor)
        yield Case(
            statement,
            f"c2 = {outputs}, d = {degree}, {DISJOINT}, k = {k}",
            density,
            1 - failure,
            "at least",
            _always(target),
            outputs * k,
            few,
        )


def product(k: int) -> float:
    """(1 - (1 - p^d)^(k c2))^c2 of ``SPECIAL``: each row fits some feature row.

    An upper bound of the probability that the target is found among k c2 feature rows.

    >>> round(product(7), 4)
    0.9096
    """
    outputs, degree, density, _ = SPECIAL
    return float((1 - (1 - density**degree) ** (k * outputs)) ** outputs)


def _always(target: np.ndarray) -> MakeTarget:
    def make(_generator: np.random.Generator) -> np.ndarray:
        return target

    return make


def _bernoulli_rows(outputs: int, inputs: int, density: float) -> MakeTarget:
    def make(generator: np.random.Generator) -> np.ndarray:
        return generator.random((outputs, inputs)) < density

    return make
