"""Invertibility of sparse Khatri-Rao products (Giannou et al. 2023, Theorem 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching


def bernoulli_masks(side: int, density: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two masks (d, d²) whose entries are true with probability ``density``, independently."""
    draw = np.random.Generator(np.random.Philox(seed)).random((2, side, side**2))
    first, second = draw < density
    return first, second


def khatri_rao_mask(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The Boolean Khatri-Rao product (d², c) of two masks (d, c).

    Row (i, j) is first[i] and second[j].
    """
    return (first[:, None, :] & second[None, :, :]).reshape(-1, first.shape[1])


def boolean_determinant(mask: np.ndarray) -> bool:
    """Whether some permutation meets only true entries of a square mask (Definition 4).

    The recursive definition unrolled: max over permutations of the product of their entries, which
    is 1 exactly if rows and columns have a perfect matching. For independent continuous weights on
    the masks it is, almost surely, whether (W1 ∘ M1) ⊙ (W2 ∘ M2) is invertible (Lemma 9): the
    monomials of different permutations differ, since an entry u_i v_j of a column names its row (i,
    j).

    >>> boolean_determinant(np.array([[True, True], [True, False]]))
    True
    >>> boolean_determinant(np.array([[True, False], [True, False]]))
    False
    """
    matched = maximum_bipartite_matching(csr_matrix(mask), perm_type="column")
    return bool((matched >= 0).all())


def has_zero_line(mask: np.ndarray) -> bool:
    """Whether a row or a column of a mask has no true entry: the event Ω0 of Theorem 4.

    >>> has_zero_line(np.array([[True, False], [True, False]]))
    True
    """
    return not (mask.any(axis=0).all() and mask.any(axis=1).all())


def numerical_rank(first: np.ndarray, second: np.ndarray, seed: int) -> int:
    """Rank in float64 of (W1 ∘ M1) ⊙ (W2 ∘ M2) for normal weights.

    It counts singular values above 1e-12 of the largest.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    u = generator.standard_normal(first.shape) * first
    v = generator.standard_normal(second.shape) * second
    values = np.linalg.svd((u[:, None] * v[None]).reshape(-1, u.shape[1]), compute_uv=False)
    return int((values > 1e-12 * max(values[0], 1e-300)).sum())


def without_zero_column(side: int, density: float) -> float:
    """P(no column of M1 ⊙ M2 is zero) = (1 - (1 - p)^d)^(2 d²), an upper bound of P(invertible).

    A column is zero if either factor's column is. P falls from 1 to 0 around p = 2 log d / d.

    >>> round(without_zero_column(2, 0.5), 4)
    0.1001
    """
    return (1 - (1 - density) ** side) ** (2 * side**2)


def predicted_density(side: int, kind: str) -> float:
    """A density of the paper or of the bound: ``theorem``, ``conjecture`` or ``zero column``.

    sqrt(log d / d) (Theorem 3), log d / d (Remark 3), 2 log d / d (``without_zero_column``), each
    up to a constant factor.
    """
    ratio = math.log(side) / side
    return {"theorem": math.sqrt(ratio), "conjecture": ratio, "zero column": 2 * ratio}[kind]


def product_zero_probability(rows: Sequence[int], density: float) -> float:
    """P(sum over S of u_i v_j = 0), S the first ``rows[i]`` entries of row i (Lemma 10, left).

    Such staircases have the largest overlaps among sets of these row sizes. It is exact: v's first
    1 is at column j with probability p (1 - p)^j, and then every u_i with rows[i] > j must be 0.

    >>> round(product_zero_probability([1], 0.5), 4)  # 1 - p²
    0.75
    """
    width = max(rows)
    total = (1 - density) ** width  # no v at all
    for column in range(width):
        blocked = sum(size > column for size in rows)
        total += density * (1 - density) ** column * (1 - density) ** blocked
    return total


def iid_zero_probability(rows: Sequence[int], density: float) -> float:
    """P(sum over S of x_i = 0) = (1 - q)^|S| for Bernoulli(q) variables (Lemma 10, right)."""
    return (1 - density) ** sum(rows)
