"""Permuting outputs so that too few features fit a target (Random features, Sect. 4 and A.3)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

__all__ = [
    "alignment_error",
    "best_random_permutation",
    "complement",
    "greedy_permutation",
    "overlap_permutation",
    "row_scores",
]

TIE = 1e-10  # errors that differ by less count as equal


def complement(matrix: torch.Tensor) -> torch.Tensor:
    """Orthonormal basis (n, n - r) of the complement of M's range, in float64.

    The last n - r left singular vectors, up to a rotation: the last n - r columns of Householder's
    Q, in which the reflections are applied to n - r unit vectors and Q is never formed. Where M's
    columns turn out to be dependent (empty or repeated features), they come from singular values.

    Args:
        matrix: M (n, c1).

    Raises:
        ValueError: ``matrix`` is no matrix.

    >>> _ = torch.manual_seed(0)
    >>> matrix = torch.randn(8, 5, dtype=torch.float64)
    >>> basis = complement(matrix)
    >>> basis.shape, bool((matrix.T @ basis).abs().max() < 1e-12)
    (torch.Size([8, 3]), True)
    """
    if matrix.ndim != 2 or not matrix.numel():
        raise ValueError(f"M is a matrix (n, c1), not of shape {tuple(matrix.shape)}")
    matrix = matrix.double()
    n, width = matrix.shape
    if width < n:
        reflections, factors = torch.geqrf(matrix)
        if _smallest(reflections[:width].triu()) > 1e-10 * float(matrix.norm()):
            last = matrix.new_zeros(n, n - width)
            last[width:].fill_diagonal_(1)
            return torch.ormqr(
                reflections, factors, last
            ).contiguous()  # by rows, as the search reads it
    left, values, _ = torch.linalg.svd(matrix)
    rank = int((values > 1e-10 * values[0]).sum())
    return left[:, rank:].contiguous()


def _smallest(triangle: torch.Tensor) -> float:
    """About the smallest singular value of R, by inverse iteration; 0 where a pivot is 0."""
    if not float(triangle.diagonal().abs().min()) > 0:
        return 0.0
    vector, value = triangle.new_ones(len(triangle), 1), 0.0
    for _ in range(4):
        vector = vector / vector.norm()
        back = torch.linalg.solve_triangular(triangle.T, vector, upper=False)
        vector = torch.linalg.solve_triangular(triangle, back, upper=True)
        value = float(vector.norm()) ** -0.5
    return value if value == value else 0.0


def row_scores(missing: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What target row p leaves unreached at output i: G (c2, c2, n - r), G[i, p] for each pair.

    The error of a permutation π is ‖Σ_i G[i, π(i)]‖ (Thm 4.1): U2^T vec(P W), summed by rows.

    Args:
        missing: (c2 c0, n - r), from ``complement``.
        target: (c2, c0).

    Raises:
        ValueError: the shapes do not fit.
    """
    if target.ndim != 2 or missing.ndim != 2 or target.numel() != len(missing):
        raise ValueError(
            "a target (c2, c0) goes with a complement (c2 c0, n - r), not "
            f"{tuple(target.shape)} with {tuple(missing.shape)}"
        )
    outputs, inputs = target.shape
    return target.to(missing) @ missing.reshape(outputs, inputs, -1)


def alignment_error(scores: torch.Tensor, permutation: torch.Tensor) -> float:
    """min_γ ‖M γ - vec(P W)‖ where output i of P W is row ``permutation[i]`` of W (Thm 4.1)."""
    return float(scores[torch.arange(len(permutation)), permutation].sum(0).norm())


def greedy_permutation(missing: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The greedy search of A.3 (svd_permute_fc): each output takes its best free row.

    Outputs come in the order of their weight in the complement. Output i exchanges rows with the
    output that holds row p, for the p still free that lowers the error most. Of rows that lower it
    equally, to ten digits, it is the first, as of outputs of equal weight, so that rounding
    decides nothing. The listing computes each candidate's error from the singular vectors; here
    all candidates of an output are one subtraction of rows of G.

    Args:
        missing: (c2 c0, n - r), from ``complement``.
        target: W (c2, c0).

    Returns:
        π (c2,), output i being given row π(i), and the error.

    >>> _ = torch.manual_seed(0)
    >>> missing = complement(torch.randn(20, 15, dtype=torch.float64))
    >>> target = torch.randn(5, 4, dtype=torch.float64)
    >>> permutation, error = greedy_permutation(missing, target)
    >>> error <= alignment_error(row_scores(missing, target), torch.arange(5))
    True
    """
    outputs = len(target)
    scores = row_scores(missing, target).cpu().numpy()
    weight = torch.linalg.vector_norm(missing.reshape(outputs, -1), dim=1).cpu().numpy()
    permutation, place = np.arange(outputs), np.arange(outputs)
    free = np.ones(outputs, dtype=bool)
    total = scores[permutation, permutation].sum(0)
    for output in np.argsort(-weight.round(10), kind="stable"):
        held = permutation[output]
        rows = np.flatnonzero(free)
        others = place[rows]
        changed = (
            scores[output, rows]
            - scores[others, rows]
            + scores[others, held]
            + (total - scores[output, held])
        )
        errors, now = np.einsum("pk,pk->p", changed, changed), total @ total
        if errors.min() < now * (1 - TIE):
            best = (errors <= errors.min() + TIE * now).argmax()
            row, other, total = rows[best], others[best], changed[best]
            permutation[output], permutation[other] = row, held
            place[row], place[held] = output, other
        free[permutation[output]] = False
    return torch.as_tensor(permutation), float(
        np.linalg.norm(scores[np.arange(outputs), permutation].sum(0))
    )


def overlap_permutation(
    available: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """The best permutation for sparse ID cond features, M = diag(mask): a linear assignment.

    What output i cannot reach of row p is Σ_j (1 - mask_ij) w_pj², a sum over outputs, whose
    minimum is found exactly. The listing's id_permute searches greedily, by the distance of
    thresholded masks.

    Args:
        available: the mask (c2, c0).
        target: W (c2, c0).

    Returns:
        π (c2,) as ``greedy_permutation`` does, and the error.

    >>> mask = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> overlap_permutation(mask, torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    (tensor([1, 0]), 0.0)
    """
    if available.shape != target.shape or target.ndim != 2:
        raise ValueError(
            f"the mask has the target's shape (c2, c0), not {tuple(available.shape)} for "
            f"{tuple(target.shape)}"
        )
    cost = (1 - available.double()) @ target.double().square().T
    rows, columns = linear_sum_assignment(cost.cpu().numpy())
    return torch.as_tensor(columns), float(cost[rows, columns].sum()) ** 0.5


def best_random_permutation(
    missing: torch.Tensor, target: torch.Tensor, tries: int, seed: int = 0
) -> tuple[torch.Tensor, float]:
    """The baseline of A.3: the best of ``tries`` random permutations.

    Args:
        missing: (c2 c0, n - r), from ``complement``.
        target: W (c2, c0).
        tries: how many.
        seed: of the permutations.
    """
    scores, generator = row_scores(missing, target), torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(len(target), generator=generator) for _ in range(tries)]
    errors = [alignment_error(scores, permutation) for permutation in drawn]
    best = min(range(tries), key=errors.__getitem__)
    return drawn[best], errors[best]
