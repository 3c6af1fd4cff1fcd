"""Theorem 4.2's bound for all targets and features of a small size, by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bnrecon.studies.random_features.sparse_matching import degree_bound


def all_masks(outputs: int, inputs: int) -> np.ndarray:
    """All 2^(outputs · inputs) masks (count, outputs, inputs).

    >>> all_masks(1, 2).astype(int).tolist()
    [[[0, 0]], [[0, 1]], [[1, 0]], [[1, 1]]]
    """
    bits = itertools.product([False, True], repeat=outputs * inputs)
    return np.array(list(bits)).reshape(-1, outputs, inputs)


def found_in(targets: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Whether targets (t, c2, c0) lie in features (f, c2, c0) for some permutation: (t, f)."""
    fits = (~targets[:, None, :, None] | features[None, :, None]).all(-1)
    rows = range(targets.shape[1])
    orders = itertools.permutations(rows)
    return np.any([fits[:, :, rows, order].all(-1) for order in orders], axis=0)


def exact_probabilities(outputs: int, inputs: int, density: float) -> np.ndarray:
    """P(target found among Ber(p) features of c2 rows), for all targets of ``all_masks``."""
    masks = all_masks(outputs, inputs)
    ones = masks.sum((1, 2))
    weights = density**ones * (1 - density) ** (outputs * inputs - ones)
    return found_in(masks, masks) @ weights


def enumerate_targets(outputs: int, inputs: int, densities: Sequence[float]) -> pd.DataFrame:
    """The target nearest to Theorem 4.2's bound among those with two rows or more to be matched.

    One row for each density: its probability and bound.
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
