"""Permute outputs so that too few features fit a target (Random features, Sect. 4 and A.3).

Each search takes ``missing`` (c2 c0, n - r), from ``complement``, and a target W (c2, c0). It
returns the error and π (c2,), which gives output i row π(i).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg.lapack import dtrcon
from scipy.optimize import linear_sum_assignment

TIE = 1e-10  # errors that differ by less count as equal


def complement(matrix: torch.Tensor) -> torch.Tensor:
    """Orthonormal basis (n, n - r) of the complement of the range of M (n, c1), in float64.

    The last n - r left singular vectors, up to a rotation: the last n - r columns of Householder's
    Q, by applying the reflections to n - r unit vectors without forming Q. If M's columns are
    dependent (empty or repeated features), they come from singular values.

    >>> _ = torch.manual_seed(0)
    >>> matrix = torch.randn(8, 5, dtype=torch.float64)
    >>> basis = complement(matrix)
    >>> basis.shape, bool((matrix.T @ basis).abs().max() < 1e-12)
    (torch.Size([8, 3]), True)
    """
    matrix = matrix.double()
    n, width = matrix.shape
    if width < n:
        reflections, factors = torch.geqrf(matrix)
        reciprocal_condition, _ = dtrcon(reflections[:width].triu().cpu().numpy())
        if reciprocal_condition > 1e-10:
            last = matrix.new_zeros(n, n - width)
            last[width:].fill_diagonal_(1)
            basis = torch.ormqr(reflections, factors, last)
            return basis.contiguous()  # by rows, for the search
    left, values, _ = torch.linalg.svd(matrix)
    rank = int((values > 1e-10 * values[0]).sum())
    return left[:, rank:].contiguous()


def row_scores(missing: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The part of target row p not reached at output i: G (c2, c2, n - r), G[i, p] for each pair.

    The error of a permutation π is ‖Σ_i G[i, π(i)]‖ (Theorem 4.1): U2^T vec(P W), summed by rows.
    """
    outputs, inputs = target.shape
    return target.to(missing) @ missing.reshape(outputs, inputs, -1)


def alignment_error(scores: torch.Tensor, permutation: torch.Tensor) -> float:
    """min_γ ‖M γ - vec(P W)‖ where output i of P W is row ``permutation[i]`` of W (Theorem 4.1)."""
    return float(scores[torch.arange(len(permutation)), permutation].sum(0).norm())


def greedy_permutation(missing: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The greedy search of A.3 (svd_permute_fc): each output takes its best free row.

    Outputs come in the order of their weight in the complement. Output i exchanges rows with the
    output that has row p, for the free p that lowers the error most. Ties, to ten digits, go to the
    first row and, for weights, to the first output, so that rounding decides nothing. The listing
    computes each candidate's error from the singular vectors; here all candidates of an output are
    one subtraction of rows of G.

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
    permutation, free = np.arange(outputs), np.ones(outputs, dtype=bool)
    total = scores[permutation, permutation].sum(0)
    for output in np.argsort(-weight.round(10), kind="stable").tolist():
        others = np.argsort(permutation)[np.flatnonzero(free)]
        total = _best_exchange(scores, permutation, total, output, others)
        free[permutation[output]] = False
    return _with_error(scores, permutation)


def exchange_permutation(
    missing: torch.Tensor, target: torch.Tensor, start: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """Exchange rows of two outputs until no exchange lowers the error.

    The error is a quadratic assignment problem, ‖Σ_i G[i, π(i)]‖²; this is its usual local search.
    Each output in turn makes the exchange that lowers the error most, starting from ``start``
    (c2,), such as the result of ``greedy_permutation``.

    >>> _ = torch.manual_seed(0)
    >>> missing = complement(torch.randn(20, 15, dtype=torch.float64))
    >>> target = torch.randn(5, 4, dtype=torch.float64)
    >>> start, greedy = greedy_permutation(missing, target)
    >>> exchange_permutation(missing, target, start)[1] <= greedy
    True
    """
    scores = row_scores(missing, target).cpu().numpy()
    permutation, everyone = start.cpu().numpy().copy(), np.arange(len(target))
    total = scores[everyone, permutation].sum(0)
    before = None
    while before is None or not np.array_equal(before, permutation):
        before = permutation.copy()
        for output in range(len(target)):
            total = _best_exchange(scores, permutation, total, output, everyone)
    return _with_error(scores, permutation)


def _best_exchange(
    scores: np.ndarray, permutation: np.ndarray, total: np.ndarray, output: int, others: np.ndarray
) -> np.ndarray:
    """Exchange π(output) with the best of ``others`` if that lowers the error; return the total."""
    held, rows = permutation[output], permutation[others]
    changed = scores[output, rows] - scores[others, rows] + scores[others, held]
    changed = changed + (total - scores[output, held])
    errors, now = np.einsum("pk,pk->p", changed, changed), total @ total
    if not errors.min() < now * (1 - TIE):
        return total
    best = (errors <= errors.min() + TIE * now).argmax()
    permutation[output], permutation[others[best]] = rows[best], held
    return changed[best]


def _with_error(scores: np.ndarray, permutation: np.ndarray) -> tuple[torch.Tensor, float]:
    total = scores[np.arange(len(permutation)), permutation].sum(0)
    return torch.as_tensor(permutation), float(np.linalg.norm(total))


def assignment_permutation(
    missing: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """The best of all permutations if the error is a sum over outputs: a linear assignment.

    With Q_ij (c0, c0) the blocks of U2 U2^T, the squared error is Σ_i w_π(i)^T Q_ii w_π(i) plus
    Σ_{i≠j} w_π(i)^T Q_ij w_π(j). The second sum vanishes for every target and permutation if Q_ij =
    0 for i ≠ j, when no missing direction involves two outputs. This holds for ID cond features,
    whose missing directions are entries of the target, and for none of the paper's other features.
    The listing's id_permute, ``mask_permutation``, seeks the same minimum by other means.

    Raises:
        ValueError: some Q_ij, i ≠ j, is not 0.

    >>> missing = torch.eye(4, dtype=torch.float64)[:, 1:3]  # entries (0, 1) and (1, 0)
    >>> assignment_permutation(missing, torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    (tensor([1, 0]), 0.0)
    """
    scores = row_scores(missing, target)
    outputs, inputs = target.shape
    blocks = (missing @ missing.T).reshape(outputs, inputs, outputs, inputs)
    between = blocks.abs().amax((1, 3)).fill_diagonal_(0)
    if float(between.max()) > TIE:
        raise ValueError(
            "missing directions involve several outputs: the error is no sum over outputs; "
            "use exchange_permutation"
        )
    rows = linear_sum_assignment(scores.square().sum(2).cpu().numpy())[1]
    return _with_error(scores.cpu().numpy(), rows)


def mask_permutation(
    missing: torch.Tensor, target: torch.Tensor, as_printed: bool = False
) -> tuple[torch.Tensor, float]:
    """The second search of A.3 (id_permute), by masks, for features that reach single entries.

    Target rows, in order of decreasing norm, take the free row of entries that lowers the error
    most, which exchanges the two. A second permutation is the linear assignment of least distance
    between the reached entries and the target's largest n 2p/(1 + p) entries, where p is the share
    of reached entries; the better of both is returned, as in the listing. The listing's p is (c1 +
    c2 - 1)/n, which counts a feature shared by all outputs; here every feature is one entry, so p =
    c1/n. The assignment minimizes a quantity other than the error, which ``assignment_permutation``
    minimizes exactly.

    As printed, the loop adds each candidate's change to the least error so far, ``x = sc + ...``
    and ``sc = x``, instead of the error before the exchange: any change below 0 passes, and the
    last of them, in order of the entries' rows, is taken instead of the best (``as_printed``).

    Raises:
        ValueError: a missing direction is not a single entry.

    >>> missing = torch.eye(4, dtype=torch.float64)[:, 1:3]  # entries (0, 1) and (1, 0)
    >>> mask_permutation(missing, torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    (tensor([1, 0]), 0.0)
    """
    scores = row_scores(missing, target).cpu().numpy()
    lost = missing.square().sum(1).reshape(target.shape).cpu().numpy()
    if np.abs(lost - lost.round()).max() > TIE:
        raise ValueError("a missing direction is not a single entry: use greedy_permutation")
    lost, weight = lost.round(), target.double().cpu().numpy()
    weight = weight / (np.abs(weight).max() or 1)  # ties are resolved at any scale
    costs = lost @ np.square(weight).T  # of entries' row p for target row i
    rows, free = np.arange(len(target)), np.ones(len(target), dtype=bool)  # by target row
    for i in np.argsort(-np.square(weight).sum(1).round(10), kind="stable").tolist():
        others = np.argsort(rows)[np.flatnonzero(free)]
        held, taken = rows[i], rows[others]
        changes = costs[taken, i] + costs[held, others] - costs[held, i] - costs[taken, others]
        if changes.min() < -TIE:
            helping = np.flatnonzero(changes < -TIE)
            chosen = int(helping[-1] if as_printed else changes.argmin())
            rows[i], rows[others[chosen]] = taken[chosen], held
        free[rows[i]] = False
    largest = np.sort(np.abs(weight), axis=None)[::-1]
    reached = 1 - lost.mean()
    threshold = largest[min(int(weight.size * 2 * reached / (1 + reached)), weight.size - 1)]
    large, kept = (np.abs(weight) > threshold).astype(float), 1 - lost
    # Counts of entries are exact; a CPU's rounding would resolve ties.
    differing = large.sum(1)[:, None] + kept.sum(1) - 2 * large @ kept.T
    distances = np.sqrt(differing)
    candidates = [
        _with_error(scores, np.argsort(by_target))
        for by_target in (rows, linear_sum_assignment(distances)[1])
    ]
    return min(candidates, key=lambda one: one[1])


def best_random_permutation(
    missing: torch.Tensor, target: torch.Tensor, tries: int, seed: int = 0
) -> tuple[torch.Tensor, float]:
    """The baseline of A.3: the best of ``tries`` random permutations, drawn from ``seed``."""
    scores, generator = row_scores(missing, target), torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(len(target), generator=generator) for _ in range(tries)]
    errors = [alignment_error(scores, permutation) for permutation in drawn]
    best = min(range(tries), key=errors.__getitem__)
    return drawn[best], errors[best]
