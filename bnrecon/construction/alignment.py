"""Permuting a target's outputs so that too few features fit it (Random features for normalization layers, Sect. 4 and A.3)."""

from __future__ import annotations

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


def complement(matrix: torch.Tensor) -> torch.Tensor:
    """Orthonormal basis (n, n - r) of what M (n, c1) cannot reach: the last n - r left singular vectors, up to a rotation.

    From a QR decomposition: a random block is projected off M's range, twice, and orthonormalized, so that the whole n x n factor is
    never formed. Where M's columns turn out dependent (empty or repeated features), from singular values.

    >>> _ = torch.manual_seed(0)
    >>> matrix = torch.randn(8, 5, dtype=torch.float64)
    >>> basis = complement(matrix)
    >>> basis.shape, bool((matrix.T @ basis).abs().max() < 1e-12)
    (torch.Size([8, 3]), True)
    """
    n, width = matrix.shape
    if width < n:
        range_, triangle = torch.linalg.qr(matrix)
        pivots = triangle.diagonal().abs()
        if float(pivots.min()) > 1e-10 * float(pivots.max()):
            generator = torch.Generator().manual_seed(0)
            block = torch.randn(n, n - width, generator=generator, dtype=matrix.dtype).to(matrix.device)
            for _ in range(2):
                block = torch.linalg.qr(block - range_ @ (range_.T @ block))[0]
            return block
    left, values, _ = torch.linalg.svd(matrix)
    rank = int((values > 1e-10 * values[0]).sum())
    return left[:, rank:]


def row_scores(missing: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """G (c2, c2, n - r): what target row p, (c2, c0), leaves unreached when it stands at output i; ``missing`` (n, n - r).

    The error of a permutation π is ‖Σ_i G[i, π(i)]‖ (Thm 4.1): U2^T vec(P W), summed by rows.
    """
    outputs, inputs = target.shape
    return torch.einsum("ijk,pj->ipk", missing.reshape(outputs, inputs, -1), target)


def alignment_error(scores: torch.Tensor, permutation: torch.Tensor) -> float:
    """min_γ ‖M γ - vec(P W)‖ for the target whose output i is row ``permutation[i]`` (Thm 4.1)."""
    return float(scores[torch.arange(len(permutation)), permutation].sum(0).norm())


def greedy_permutation(missing: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The greedy search of A.3 (svd_permute_fc): outputs in the order of their weight in the complement take their best free row.

    Output i exchanges rows with the output that holds row p, for the p still free that lowers the error most. The listing computes
    each candidate's error from the singular vectors; here all candidates of an output are one subtraction of rows of G.

    Returns π (c2,) with output i given row π(i), and the error.

    >>> _ = torch.manual_seed(0)
    >>> missing = complement(torch.randn(20, 15, dtype=torch.float64))
    >>> target = torch.randn(5, 4, dtype=torch.float64)
    >>> permutation, error = greedy_permutation(missing, target)
    >>> error <= alignment_error(row_scores(missing, target), torch.arange(5))
    True
    """
    outputs = len(target)
    scores = row_scores(missing, target)
    weight = missing.reshape(outputs, -1).square().sum(1)
    permutation, place = torch.arange(outputs), torch.arange(outputs)
    free = torch.ones(outputs, dtype=torch.bool)
    total = scores[permutation, permutation].sum(0)
    for output in weight.argsort(descending=True).tolist():
        held = int(permutation[output])
        rows = free.nonzero()[:, 0]
        others = place[rows]
        changed = total - scores[output, held] + scores[output, rows] + scores[others, held] - scores[others, rows]
        changed[rows == held] = total  # no exchange
        errors = changed.square().sum(1)
        best = int(errors.argmin())
        if float(errors[best]) < float(total.square().sum()):
            row, other = int(rows[best]), int(others[best])
            total = changed[best]
            permutation[output], permutation[other] = row, held
            place[row], place[held] = output, other
        free[permutation[output]] = False
    return permutation, alignment_error(scores, permutation)


def overlap_permutation(available: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The best permutation for sparse ID cond features, M = diag(mask): a linear assignment, solved exactly.

    What output i cannot reach of row p is Σ_j (1 - mask_ij) w_pj², a sum over outputs: the listing's id_permute searches for its minimum
    greedily and by the distance of thresholded masks, which the assignment cannot do worse than. ``available`` (c2, c0) is the mask.

    Returns π as ``greedy_permutation`` does, and the error.

    >>> mask = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> overlap_permutation(mask, torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    (tensor([1, 0]), 0.0)
    """
    cost = (1 - available.double()) @ target.double().square().T
    rows, columns = linear_sum_assignment(cost.cpu().numpy())
    return torch.as_tensor(columns), float(cost[rows, columns].sum()) ** 0.5


def best_random_permutation(missing: torch.Tensor, target: torch.Tensor, tries: int, seed: int = 0) -> tuple[torch.Tensor, float]:
    """The baseline of A.3: the best of ``tries`` random permutations."""
    scores, generator = row_scores(missing, target), torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(len(target), generator=generator) for _ in range(tries)]
    errors = [alignment_error(scores, permutation) for permutation in drawn]
    best = min(range(tries), key=errors.__getitem__)
    return drawn[best], errors[best]
