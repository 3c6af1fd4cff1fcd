"""How well too few features fit a target before and after permuting its outputs (Figure 4)."""

from __future__ import annotations

import torch

from bnrecon.construction.alignment import (
    alignment_error,
    best_random_permutation,
    greedy_permutation,
    row_scores,
)

__all__ = ["CHANNELS", "DRAWS", "SEARCHES", "TRIES", "missing_features", "permutation_errors"]

CHANNELS = {"smoke": 10, "laptop": 50, "paper": 50}
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}
TRIES = 200  # random permutations
# Columns of the rows, and what they are called in tables and figures.
SEARCHES = {
    "unpermuted": "not permuted",
    "greedy": "greedy permutation",
    "best_random": f"best of {TRIES} random",
}


def missing_features(of_2500: int, channels: int) -> int:
    """How many features short of n, as many in proportion as the paper's of its 2500.

    >>> missing_features(100, 50), missing_features(100, 10)
    (100, 4)
    """
    return max(1, of_2500 * channels**2 // 2500)


def permutation_errors(
    complement: torch.Tensor, target: torch.Tensor, seed: int
) -> dict[str, float]:
    """Root mean squared errors of a target by the search for a permutation of its outputs.

    Args:
        complement: orthonormal basis (n, n - r) of what the features cannot represent.
        target: the target (c2, c0).
        seed: of the random permutations.

    Returns:
        The errors, by the names of ``SEARCHES``.
    """
    root = target.numel() ** 0.5
    unpermuted = alignment_error(row_scores(complement, target), torch.arange(len(target)))
    return {
        "unpermuted": unpermuted / root,
        "greedy": greedy_permutation(complement, target)[1] / root,
        "best_random": best_random_permutation(complement, target, TRIES, seed)[1] / root,
    }
