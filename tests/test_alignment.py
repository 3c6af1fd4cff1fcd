"""Permuting a target's outputs (Random features for normalization layers, Thm 4.1 and A.3), against the paper's loops and brute force."""

import itertools
import time

import pytest
import torch

from bnrecon.construction.alignment import (
    alignment_error,
    best_random_permutation,
    complement,
    greedy_permutation,
    overlap_permutation,
    row_scores,
)

DOUBLE = torch.float64


def khatri_rao(outputs, inputs, width, seed, sparse=False):
    generator = torch.Generator().manual_seed(seed)
    second = torch.randn(outputs, width, generator=generator, dtype=DOUBLE)
    first = torch.randn(width, inputs, generator=generator, dtype=DOUBLE)
    if sparse:
        second, first = (w * (torch.rand(w.shape, generator=generator) < 0.5) for w in (second, first))
    return torch.einsum("ik,kj->ijk", second, first).reshape(outputs * inputs, width)


def random_target(outputs, inputs, seed):
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(100 + seed), dtype=DOUBLE)


def by_the_papers_loops(missing, target):
    """A.3's search as its text describes it: every candidate's error from the singular vectors, one exchange at a time."""
    outputs, inputs = target.shape
    blocks = missing.reshape(outputs, inputs, -1)

    def error(rows):
        return float(sum(blocks[i].T @ target[rows[i]] for i in range(outputs)).square().sum())

    permutation = list(range(outputs))
    free = set(range(outputs))
    for output in blocks.square().sum((1, 2)).argsort(descending=True).tolist():
        smallest, best = error(permutation), None
        for row in sorted(free):
            tried = list(permutation)
            other = tried.index(row)
            tried[output], tried[other] = row, permutation[output]
            if error(tried) < smallest:
                smallest, best = error(tried), tried
        permutation = best or permutation
        free.discard(permutation[output])
    return torch.tensor(permutation)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(6, 5, 24), (5, 7, 30), (8, 4, 25)])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_gives_the_answer_of_the_papers_loops(seed, shape, sparse):
    outputs, inputs, width = shape
    missing = complement(khatri_rao(outputs, inputs, width, seed, sparse))
    target = random_target(outputs, inputs, seed)
    permutation, error = greedy_permutation(missing, target)
    assert torch.equal(permutation, by_the_papers_loops(missing, target))
    assert sorted(permutation.tolist()) == list(range(outputs))
    assert error == pytest.approx(alignment_error(row_scores(missing, target), permutation))


def test_the_search_is_at_least_twenty_times_as_fast_as_the_loops():
    missing = complement(khatri_rao(40, 20, 780, 0))
    target = random_target(40, 20, 0)
    seconds = []
    for search, times in ((by_the_papers_loops, 1), (greedy_permutation, 5)):
        started = time.process_time()
        for _ in range(times):
            search(missing, target)
        seconds.append((time.process_time() - started) / times)
    assert seconds[0] > 20 * seconds[1]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_error_is_that_of_least_squares(sparse):
    """Theorem 4.1 against a least-squares solve with singular values."""
    matrix, target = khatri_rao(6, 5, 22, 1, sparse), random_target(6, 5, 1)
    missing = complement(matrix)
    for permutation in (torch.arange(6), torch.randperm(6, generator=torch.Generator().manual_seed(2))):
        wanted = target[permutation].reshape(-1)
        solution = torch.linalg.lstsq(matrix, wanted[:, None], driver="gelsd").solution[:, 0]
        residual = float((matrix @ solution - wanted).norm())
        assert alignment_error(row_scores(missing, target), permutation) == pytest.approx(residual, rel=1e-9)


def test_the_projection_onto_the_last_n_minus_r_components_and_not_the_last_r():
    """Theorem 4.1 prints I_r and "its last r components"; the projector has rank n - r."""
    matrix, target = khatri_rao(5, 4, 14, 3), random_target(5, 4, 3).reshape(-1)
    left = torch.linalg.svd(matrix)[0]
    residual = float((target - matrix @ torch.linalg.pinv(matrix) @ target).norm())
    assert float((left[:, 14:].T @ target).norm()) == pytest.approx(residual)
    assert float((left[:, -14:].T @ target).norm()) != pytest.approx(residual, rel=0.01)


def test_dependent_features_widen_the_complement():
    """Empty and repeated features: the complement of the true range, where the listing counts columns."""
    matrix = khatri_rao(5, 4, 12, 4)
    matrix[:, 3] = 0
    matrix[:, 7] = 2 * matrix[:, 5]
    basis = complement(matrix)
    assert basis.shape == (20, 10)
    torch.testing.assert_close(basis.T @ basis, torch.eye(10, dtype=DOUBLE))
    assert (matrix.T @ basis).abs().max() < 1e-12
    assert complement(khatri_rao(4, 4, 20, 0)).shape == (16, 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_assignment_is_the_best_of_all_permutations(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(6, 4, generator=generator) < 0.5).double()
    target = random_target(6, 4, seed)
    permutation, error = overlap_permutation(mask, target)
    brute = min(float((((1 - mask) * target[list(order)]) ** 2).sum()) for order in itertools.permutations(range(6))) ** 0.5
    assert error == pytest.approx(brute)
    left = torch.eye(24, dtype=DOUBLE)[:, mask.reshape(-1) == 0]
    assert alignment_error(row_scores(left, target), permutation) == pytest.approx(error)
    assert error <= greedy_permutation(left, target)[1] + 1e-12


def test_the_best_of_random_permutations_is_the_best_of_those():
    missing, target = complement(khatri_rao(6, 5, 24, 0)), random_target(6, 5, 0)
    scores = row_scores(missing, target)
    generator = torch.Generator().manual_seed(9)
    errors = [alignment_error(scores, torch.randperm(6, generator=generator)) for _ in range(20)]
    assert best_random_permutation(missing, target, 20, seed=9)[1] == pytest.approx(min(errors))
