"""How well too few features fit a target, by the search for a permutation (Figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from bnrecon.construction import alignment
from bnrecon.features.shapes import LayerShape
from bnrecon.reproduction.parts import PartText
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix

CHANNELS = {"smoke": 10, "laptop": 50, "paper": 50}
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}
TRIES = 200  # random permutations
# Searches only for features whose error is a sum over outputs, and these features.
SEPARATE = ("printed_masks", "masks", "assignment")
SHARED = "ID cond, one shared"
SINGLE_ENTRIES = ("ID cond", SHARED)
NONE = 1e-6  # an error below this is rounding
# Columns of the rows, with their names in tables and figures.
SEARCHES = {
    "unpermuted": "not permuted",
    "greedy": "greedy pass",
    "printed_masks": "by masks (id_permute as printed)",
    "masks": "by masks (best exchanges)",
    "exchanges": "then exchanges",
    "assignment": "best permutation (exact)",
    "best_random": f"best of {TRIES} random",
}
# Searches shown only on the details page
DETAILS = [SEARCHES[name] for name in ("printed_masks", "masks", "best_random")]


def missing_features(of_2500: int, channels: int) -> int:
    """The number of missing features, in proportion to the paper's of 2500.

    >>> missing_features(100, 50), missing_features(100, 10)
    (100, 4)
    """
    return max(1, of_2500 * channels**2 // 2500)


def features_of_width(channels: int, missing: int) -> list[str]:
    """The features of which n - ``missing`` are too few to reach all targets.

    With one feature shared by all outputs, whose entries have the second scales, n - c2 + 1 are
    enough (Random features, Eq. 3).

    >>> features_of_width(10, 4)[-1], features_of_width(50, 60)[-1]
    ('Ortho cond', 'ID cond, one shared')
    """
    return [*FEATURES, SHARED] if missing > channels - 1 else list(FEATURES)


def unreached(label: str, shape: LayerShape, width: int, seed: int) -> torch.Tensor:
    """Orthonormal basis (n, k) of what ``width`` features cannot represent.

    Args:
        label: in ``FEATURES``, or ``SHARED``: all outputs share the first input's feature, and
            reach its c2 entries with their second scales; ``width`` - 1 random entries of other
            inputs have a feature each, so c1 + c2 - 1 are reached, as id_permute counts them. A
            target with a 0 among the shared entries is approached, not attained.
        shape: the layer's shape.
        width: c1.
        seed: the seed of the features and of the kept ones.

    >>> unreached(SHARED, LayerShape(3, 4), 8, seed=0).shape
    torch.Size([12, 2])
    """
    if label != SHARED:
        return alignment.complement(feature_matrix(FEATURES[label], shape, width, seed))
    entries = torch.arange(shape.equations).reshape(shape.outputs, -1)[:, 1:].reshape(-1)
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(seed))
    missing = entries[order[width - 1 :]].sort().values
    return torch.eye(shape.equations, dtype=torch.float64)[:, missing]


def fit_targets(
    targets: Sequence[tuple[Mapping[str, Any], torch.Tensor]],
    channels: int,
    missing: int,
    seed: int,
    searches: Sequence[str],
    features: Sequence[str],
) -> pd.DataFrame:
    """Permute targets to fit n - ``missing`` features: one row per distribution and target.

    Args:
        targets: each with the columns that describe it.
        channels: c0 = c2.
        missing: the number of features below n.
        seed: the seed of features and random permutations.
        searches: names of ``SEARCHES``, those to run.
        features: labels of ``features_of_width``.
    """
    shape, rows = LayerShape(channels, channels), []
    size = {"c1": shape.equations - missing, "channels": channels, "seed": seed}
    for label in features:
        basis = unreached(label, shape, size["c1"], seed)
        for described, target in targets:
            errors = permutation_errors(basis, target, seed, label, searches)
            rows.append({"features": label, **size, **described, **errors})
    return pd.DataFrame(rows)


def say_shared(text: PartText, rows: pd.DataFrame) -> dict[str, str]:
    """The caption's words on rows with a shared feature, which small sizes lack."""
    shared = rows[rows["features"] == SHARED]
    if shared.empty:
        return {"shared": ""}
    channels = int(rows["channels"].iloc[0])
    usual = sorted({int(channels**2 - width) for width in shared["c1"]})
    numbers = {"label": SHARED, "n": channels**2, "usual": " or ".join(map(str, usual))}
    numbers["missing"] = " or ".join(str(count - channels + 1) for count in usual)
    return {"shared": text.sentence("rows with one shared", **numbers)}


def with_best(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the best error, and the number of missing features it is equivalent to.

    The best is by linear assignment where this is exact, else by exchanges. A random target of root
    mean square 1 has the error e = sqrt((n - c1)/n) with n = c0 c2, so n e² are missing: half the
    error is that of a quarter of the missing features.

    >>> rows = {"assignment": [0.2, None], "exchanges": [0.3, 0.1], "channels": 50}
    >>> with_best(pd.DataFrame(rows))["missing"].round(6).tolist()
    [100.0, 25.0]
    """
    best = rows["assignment"].fillna(rows["exchanges"])
    return rows.assign(best=best, missing=rows["channels"] ** 2 * best**2)


def split_shared(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the rows ``with_best`` into those with one shared feature and the others."""
    shared = rows["features"] == SHARED
    return with_best(rows[shared]), with_best(rows[~shared])


def permutation_errors(
    basis: torch.Tensor, target: torch.Tensor, seed: int, label: str, searches: Sequence[str]
) -> dict[str, float]:
    """Root mean squared errors of a target (c2, c0) by the search for a permutation of its outputs.

    Args:
        basis: orthonormal basis (n, n - r) of what the features cannot represent.
        target: the target.
        seed: the seed of the random permutations.
        label: the features' label. For ``SINGLE_ENTRIES``, no missing direction involves two
            outputs, so a linear assignment gives the best permutation. For other features, the
            errors by masks and of the assignment are NaN.
        searches: names of ``SEARCHES``, those to run.
    """
    separate = label in SINGLE_ENTRIES
    start, greedy = alignment.greedy_permutation(basis, target)
    by_search = {
        "unpermuted": lambda: alignment.alignment_error(
            alignment.row_scores(basis, target), torch.arange(len(target))
        ),
        "greedy": lambda: greedy,
        "printed_masks": lambda: alignment.mask_permutation(basis, target, as_printed=True)[1],
        "masks": lambda: alignment.mask_permutation(basis, target)[1],
        "exchanges": lambda: alignment.exchange_permutation(basis, target, start)[1],
        "assignment": lambda: alignment.assignment_permutation(basis, target)[1],
        "best_random": lambda: alignment.best_random_permutation(basis, target, TRIES, seed)[1],
    }
    size = target.numel() ** 0.5
    return {
        search: by_search[search]() / size if separate or search not in SEPARATE else float("nan")
        for search in searches
    }
