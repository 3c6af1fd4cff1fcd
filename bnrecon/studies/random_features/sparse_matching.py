"""Theorems 4.2 and 4.3: the probability that a sparse target is found among sparse features.

A target row is found in a feature row that is nonzero wherever the target row is. The target is
found if its rows are found in different feature rows: a perfect bipartite matching.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import brentq
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

MakeTarget = Callable[[np.random.Generator], np.ndarray]


def degree_bound(degrees: np.ndarray, density: float, outputs: int) -> float:
    """Theorem 4.2's upper bound, Π_i (1 - (1 - p^{d_i})^{c2}), for in-degrees d_i.

    >>> degree_bound(np.array([1, 1]), 0.5, 2)
    0.5625
    """
    return float(np.prod(1 - (1 - density ** np.asarray(degrees, dtype=float)) ** outputs))


def all_masks(outputs: int, inputs: int) -> np.ndarray:
    """All 2^(outputs · inputs) masks (count, outputs, inputs).

    >>> all_masks(1, 2).astype(int).tolist()
    [[[0, 0]], [[0, 1]], [[1, 0]], [[1, 1]]]
    """
    bits = itertools.product([False, True], repeat=outputs * inputs)
    return np.array(list(bits)).reshape(-1, outputs, inputs)


def exact_probabilities(outputs: int, inputs: int, density: float) -> np.ndarray:
    """P(target found among Ber(p) features of c2 rows), for all targets of ``all_masks``."""
    masks = all_masks(outputs, inputs)
    ones = masks.sum((1, 2))
    weights = density**ones * (1 - density) ** (outputs * inputs - ones)
    # Whether each target lies in each mask for some permutation of its rows.
    fits = (~masks[:, None, :, None] | masks[None, :, None]).all(-1)
    rows = range(outputs)
    orders = itertools.permutations(rows)
    matched = np.any([fits[:, :, rows, order].all(-1) for order in orders], axis=0)
    return matched @ weights


def enumerate_targets(outputs: int, inputs: int, densities: Sequence[float]) -> pd.DataFrame:
    """The target nearest to Theorem 4.2's bound among those with two rows or more to match.

    One row per density: the target's probability and bound.
    """
    targets = all_masks(outputs, inputs)
    degrees = targets.sum(2)
    several = (degrees > 0).sum(1) > 1  # one row alone attains the bound
    rows = []
    for density in densities:
        probabilities = exact_probabilities(outputs, inputs, density)
        bounds = np.array([degree_bound(degree, density, outputs) for degree in degrees])
        nearest = np.where(several, probabilities / bounds, 0).argmax()
        setting = f"the nearest of all targets of c2 = {outputs}, c0 = {inputs}"
        row = {"theorem": "4.2", "setting": setting, "feature_density": density}
        row |= {"bound": bounds[nearest], "bound_kind": "at most"}
        rows.append(row | {"exact": probabilities[nearest]})
    return pd.DataFrame(rows)


def width_factor_in_print(
    outputs: int, inputs: int, target_density: float, density: float, failure: float
) -> float:
    """Theorem 4.3's k as printed: k c2 features find a Ber(q) target with probability 1 - δ.

    k = log(1 - (1 - δ)^{1/c2}) / log(1 - (1 - q (1 - p))^c0). It treats the k candidates of a row
    as independent, but they share the row's in-degree D: none fits with probability E (1 - p^D)^k,
    which is above (1 - E p^D)^k (Jensen). ``width_factor`` is enough.

    Args:
        outputs: rows c2 of the target.
        inputs: c0.
        target_density: q.
        density: p, of the features.
        failure: δ.

    The theorem promises 15/16 here; the probability is 7/8:

    >>> round(width_factor_in_print(1, 1, 0.5, 0.5, 1 / 16), 9)
    2.0
    >>> partition_probability(2, 1, 1, 0.5, 0.5)
    0.875
    """
    fits = (1 - target_density * (1 - density)) ** inputs
    return math.log(1 - (1 - failure) ** (1 / outputs)) / math.log(1 - fits)


def partition_probability(
    factor: float, outputs: int, inputs: int, target_density: float, density: float
) -> float:
    """The probability that every row of a Ber(q) target fits one of its own k candidates.

    (1 - E (1 - p^D)^k)^c2 with D ~ Bin(c0, q): appendix A.2 divides the features like this. It is a
    lower bound on the probability that the target is found among all k c2 features. ``factor`` is
    k; the others are arguments of ``width_factor_in_print``.
    """
    degrees = np.arange(inputs + 1)
    none = stats.binom.pmf(degrees, inputs, target_density) @ (1 - density**degrees) ** factor
    return float((1 - none) ** outputs)


def width_factor(
    outputs: int, inputs: int, target_density: float, density: float, failure: float
) -> float:
    """The k for which Theorem 4.3's proof holds: ``partition_probability`` is 1 - δ.

    Args and result are those of ``width_factor_in_print``.

    >>> round(width_factor(1, 1, 0.5, 0.5, 1 / 16), 6)
    3.0
    """

    def excess(log_factor: float) -> float:
        numbers = (outputs, inputs, target_density, density)
        return partition_probability(math.exp(log_factor), *numbers) - (1 - failure)

    largest = 1.0
    while excess(largest) < 0:
        largest *= 2
    return math.exp(brentq(excess, -50, largest))


def has_perfect_matching(target: np.ndarray, features: np.ndarray) -> bool:
    """Whether the rows of a target (c2, c0) lie within different rows of features (rows, c0).

    >>> target = np.array([[True, False], [False, True]])
    >>> has_perfect_matching(target, np.array([[True, True], [True, False]]))
    True
    >>> has_perfect_matching(target, np.array([[True, False], [True, False]]))
    False
    """
    return _matches_all((target.astype(np.int32) @ (1 - features.astype(np.int32)).T) == 0)


def _matches_all(fits: np.ndarray) -> bool:
    """Whether all rows can be matched to different columns that fit them."""
    matching = maximum_bipartite_matching(csr_matrix(fits.astype(np.int8)), perm_type="column")
    return bool((matching >= 0).all())


def critical_density(target: np.ndarray, draw: np.ndarray) -> float:
    """The smallest p at which a target is found among the features ``draw`` < p.

    Entry (k, j) of the features exists from p = u_kj on, with u uniform on [0, 1]: one draw of u
    gives features of every density. Solved as a bottleneck assignment of target to feature rows.

    Args:
        target: (c2, c0), true where the target has a weight.
        draw: u (rows, c0).

    >>> target = np.array([[True, False], [False, True]])
    >>> critical_density(target, np.array([[0.1, 0.7], [0.4, 0.3]]))
    0.3
    """
    needed = np.where(target[:, None, :], draw[None], 0.0).max(2)  # (target row, feature row)
    levels = np.unique(needed).tolist()
    smaller = levels[:-1]  # at the largest, a matching needs no test
    return levels[bisect.bisect_left(smaller, True, key=lambda p: _matches_all(needed <= p))]


def count_matches(make_target: MakeTarget, rows: int, density: float, draws: int) -> int:
    """Count the draws in which a target (c2, c0) is found among random features.

    The features have ``rows`` rows, in which each entry exists with probability ``density``.
    """
    generator = np.random.default_rng(0)
    count = 0
    for _ in range(draws):
        target = make_target(generator)
        features = generator.random((rows, target.shape[1])) < density
        count += has_perfect_matching(target, features)
    return count


def disjoint_rows(outputs: int, inputs: int, degree: int) -> np.ndarray:
    """Rows of ``degree`` ones with disjoint inputs (Fig. 1 (e)), if there are enough inputs.

    >>> disjoint_rows(2, 4, 2).astype(int)
    array([[1, 1, 0, 0],
           [0, 0, 1, 1]])
    """
    target = np.zeros((outputs, inputs), dtype=bool)
    for row in range(outputs):
        target[row, [(row * degree + step) % inputs for step in range(degree)]] = True
    return target


def random_rows(outputs: int, inputs: int, degree: int) -> MakeTarget:
    """Rows of ``degree`` ones at random positions."""
    return lambda generator: generator.random((outputs, inputs)).argsort(1) < degree
