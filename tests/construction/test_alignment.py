"""Permuting outputs (Random features, Theorem 4.1, A.3) against the paper's loops."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch
from random_layer import gaussian

from bnrecon.construction.alignment import (
    TIE,
    alignment_error,
    assignment_permutation,
    best_random_permutation,
    complement,
    exchange_permutation,
    greedy_permutation,
    mask_permutation,
    row_scores,
)
from bnrecon.features.shapes import LayerShape
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix
from bnrecon.studies.random_features.masks import bernoulli_mask

DOUBLE = torch.float64


def khatri_rao(outputs, inputs, width, seed, sparse=False):
    generator = torch.Generator().manual_seed(seed)
    second = torch.randn(outputs, width, generator=generator, dtype=DOUBLE)
    first = torch.randn(width, inputs, generator=generator, dtype=DOUBLE)
    if sparse:
        second, first = (
            w * (torch.rand(w.shape, generator=generator) < 0.5) for w in (second, first)
        )
    return torch.einsum("ik,kj->ijk", second, first).reshape(outputs * inputs, width)


def random_target(outputs, inputs, seed):
    return gaussian(outputs, inputs, seed=100 + seed)


def by_the_listing(missing, target, tie=0.0):
    """A.3's svd_permute_fc, candidate by candidate from the singular vectors.

    Of outputs with equal weight the first is first.

    ``tie``: errors that differ by less are equal, as rounding would decide between candidates.
    """
    outputs, inputs = target.shape
    vectors = missing.reshape(outputs, inputs, -1)
    permutation, free = torch.arange(outputs), torch.arange(outputs)
    weight = vectors.square().sum((1, 2)).sqrt().numpy().round(10)
    for output in sorted(range(outputs), key=lambda output: -weight[output]):
        total = torch.einsum("ijk,ij->k", vectors, target[permutation])
        held = int(permutation[output])
        without = total - torch.einsum("jk,j->k", vectors[output], target[held])
        now = float(total.square().sum())
        least, best, holder = now, held, output
        for row in free.tolist():
            other = int((permutation == row).nonzero()[0])
            changed = (
                without
                + torch.einsum("jk,j->k", vectors[output], target[row])
                + torch.einsum("jk,j->k", vectors[other], target[held])
            )
            error = float(
                (changed - torch.einsum("jk,j->k", vectors[other], target[row])).square().sum()
            )
            if error < least - tie * now:
                least, best, holder = error, row, other
        permutation[output], permutation[holder] = best, held
        free = free[free != best]
    return permutation


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(6, 5, 24), (5, 7, 30), (8, 4, 25)])
@pytest.mark.parametrize("seed", range(3))
def test_search_matches_the_listing(seed, shape, sparse):
    outputs, inputs, width = shape
    missing = complement(khatri_rao(outputs, inputs, width, seed, sparse))
    target = random_target(outputs, inputs, seed)
    permutation, error = greedy_permutation(missing, target)
    assert torch.equal(permutation, by_the_listing(missing, target))
    assert sorted(permutation.tolist()) == list(range(outputs))
    assert error == pytest.approx(alignment_error(row_scores(missing, target), permutation))


@pytest.mark.parametrize("name", FEATURES.values())
@pytest.mark.parametrize("density", [None, 0.05, 0.2, 0.5])
def test_search_matches_the_listing_for_every_distribution(name, density):
    """Masks have many ties, which sparse ID cond features meet without rounding."""
    for seed in range(3):
        missing = complement(feature_matrix(name, LayerShape(20, 20), 360, seed))
        target = (
            random_target(20, 20, seed) if density is None else bernoulli_mask(20, density, seed)
        )
        exact = density is None or name == "id_cond"
        assert torch.equal(
            greedy_permutation(missing, target)[0],
            by_the_listing(missing, target, 0.0 if exact else TIE),
        )


def test_complement_is_that_of_the_full_svd():
    matrix = khatri_rao(25, 25, 600, 0)
    missing = torch.linalg.svd(matrix)[0][:, 600:]
    basis = complement(matrix)
    torch.testing.assert_close(basis @ (basis.T @ missing), missing)  # the same space


@pytest.mark.parametrize("sparse", [False, True])
def test_error_is_that_of_least_squares(sparse):
    """Theorem 4.1 against a least-squares solve with singular values."""
    matrix, target = khatri_rao(6, 5, 22, 1, sparse), random_target(6, 5, 1)
    missing = complement(matrix)
    for permutation in (
        torch.arange(6),
        torch.randperm(6, generator=torch.Generator().manual_seed(2)),
    ):
        wanted = target[permutation].reshape(-1)
        solution = torch.linalg.lstsq(matrix, wanted[:, None], driver="gelsd").solution[:, 0]
        residual = float((matrix @ solution - wanted).norm())
        assert alignment_error(row_scores(missing, target), permutation) == pytest.approx(
            residual, rel=1e-9
        )


def test_projection_uses_the_last_n_minus_r_components_not_the_last_r():
    """Theorem 4.1 prints I_r and "its last r components"; the projector has rank n - r."""
    matrix, target = khatri_rao(5, 4, 14, 3), random_target(5, 4, 3).reshape(-1)
    vectors = torch.linalg.svd(matrix)[0]
    residual = float((target - matrix @ torch.linalg.pinv(matrix) @ target).norm())
    assert float((vectors[:, 14:].T @ target).norm()) == pytest.approx(residual)
    assert float((vectors[:, -14:].T @ target).norm()) != pytest.approx(residual, rel=0.01)


def test_last_r_components_are_not_the_error_of_two_columns():
    """docs/errata.md, entry 10: n = 3, r = 2; distinct singular values determine U."""
    matrix = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=DOUBLE)
    target = torch.tensor([0.0, 1.0, 0.0], dtype=DOUBLE)
    components = torch.linalg.svd(matrix)[0].T @ target
    assert float((target - matrix @ torch.linalg.pinv(matrix) @ target).norm()) < 1e-15
    assert float(components[2:].norm()) < 1e-15
    assert float(components[-2:].norm()) == pytest.approx(1)


def test_dependent_features_widen_the_complement():
    """Empty and repeated features: complement of the true range; the listing counts columns."""
    matrix = khatri_rao(5, 4, 12, 4)
    matrix[:, 3] = 0
    matrix[:, 7] = 2 * matrix[:, 5]
    basis = complement(matrix)
    assert basis.shape == (20, 10)
    torch.testing.assert_close(basis.T @ basis, torch.eye(10, dtype=DOUBLE))
    assert (matrix.T @ basis).abs().max() < 1e-12
    assert complement(khatri_rao(4, 4, 20, 0)).shape == (16, 0)


def test_dependence_without_a_small_pivot_is_detected():
    # Pivots of 1, a singular value of 2^-59.
    triangle = torch.eye(60, dtype=DOUBLE) - torch.ones(60, 60, dtype=DOUBLE).triu(1)
    matrix = torch.cat([triangle, torch.zeros(5, 60, dtype=DOUBLE)])
    assert complement(matrix).shape == (65, 6)
    low = khatri_rao(5, 4, 4, 0) @ random_target(4, 15, 0)
    assert complement(low).shape == (20, 16)
    assert complement(khatri_rao(5, 4, 15, 0).float()).dtype == DOUBLE


def of_all_permutations(missing, target):
    """The least error of Theorem 4.1, by enumeration."""
    vectors = missing.reshape(*target.shape, -1)
    return min(
        float(torch.einsum("ijk,ij->k", vectors, target[list(order)]).norm())
        for order in itertools.permutations(range(len(target)))
    )


@pytest.mark.parametrize("seed", range(5))
def test_assignment_is_the_best_of_all_permutations(seed):
    """For sparse ID cond features by their mask: singular vectors are entries of the target."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(6, 4, generator=generator) < 0.5).double()
    target = random_target(6, 4, seed)
    missing = complement(torch.eye(24, dtype=DOUBLE)[:, mask.reshape(-1) == 1])
    permutation, error = assignment_permutation(missing, target)
    assert error == pytest.approx(of_all_permutations(missing, target))
    assert error == pytest.approx(float(((1 - mask) * target[permutation]).norm()))
    assert error <= greedy_permutation(missing, target)[1] + 1e-12


@pytest.mark.parametrize("name", FEATURES.values())
def test_error_is_a_sum_over_outputs_only_for_id_cond(name):
    missing = complement(feature_matrix(name, LayerShape(6, 5), 25, 0))
    target = random_target(6, 5, 0)
    if name == "id_cond":
        error = assignment_permutation(missing, target)[1]
        assert error == pytest.approx(of_all_permutations(missing, target))
    else:
        with pytest.raises(ValueError, match="involve several outputs"):
            assignment_permutation(missing, target)


def by_the_second_listing(mask, target, as_printed):
    """A.3's id_permute, candidate by candidate: the lesser error of its two permutations."""
    rows, free = list(range(len(target))), list(range(len(target)))
    now = float(((1 - mask)[rows] * target).square().sum())
    for i in torch.argsort(target.square().sum(1), descending=True).tolist():
        least, best, before = now, rows, now
        for row in free:
            holder = rows.index(row)
            tried = list(rows)
            tried[i], tried[holder] = row, rows[i]
            change = float(((1 - mask)[tried] * target).square().sum()) - before
            error = (least if as_printed else before) + change
            if error < least - 1e-9:
                least, best = error, tried
        rows = best
        now = float(((1 - mask)[rows] * target).square().sum())
        free.remove(rows[i])
    share, size = float(mask.mean()), target.numel()
    ordered = target.abs().flatten().sort(descending=True).values
    threshold = ordered[min(int(size * 2 * share / (1 + share)), size - 1)]
    large = (target.abs() > threshold).double()
    # NumPy's root: some processors round torch's differently, which breaks ties.
    distances = np.sqrt((large[:, None] - mask[None]).square().sum(2).numpy())
    matched = scipy.optimize.linear_sum_assignment(distances)[1]
    return min(now**0.5, float(((1 - mask)[matched] * target).norm()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("outputs", "inputs"), [(9, 6), (25, 20)])
@pytest.mark.parametrize("as_printed", [False, True])
def test_mask_search_matches_the_listing_and_never_beats_the_assignment(
    outputs, inputs, seed, as_printed
):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(outputs, inputs, generator=generator) < 0.7).double()
    target = random_target(outputs, inputs, seed)
    missing = complement(torch.eye(mask.numel(), dtype=DOUBLE)[:, mask.reshape(-1) == 1])
    permutation, error = mask_permutation(missing, target, as_printed)
    assert error == pytest.approx(alignment_error(row_scores(missing, target), permutation))
    assert error == pytest.approx(by_the_second_listing(mask, target, as_printed))
    assert torch.equal(mask_permutation(missing, 1e-6 * target, as_printed)[0], permutation)
    assert assignment_permutation(missing, target)[1] <= error + 1e-12


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_exchange_helps_after_the_exchanges(seed, sparse):
    missing, target = complement(khatri_rao(7, 5, 29, seed, sparse)), random_target(7, 5, seed)
    start, greedy = greedy_permutation(missing, target)
    kept = start.clone()
    permutation, error = exchange_permutation(missing, target, start)
    assert torch.equal(start, kept)
    assert sorted(permutation.tolist()) == list(range(7))
    scores = row_scores(missing, target)
    assert error == pytest.approx(alignment_error(scores, permutation))
    assert of_all_permutations(missing, target) <= error + 1e-12
    assert error <= greedy + 1e-12
    for one, other in itertools.combinations(range(7), 2):
        exchanged = permutation.clone()
        exchanged[[one, other]] = permutation[[other, one]]
        assert alignment_error(scores, exchanged) >= error * (1 - 1e-9)


def test_exchanges_improve_the_greedy_pass_and_approach_the_best():
    """Figure 4's ID cond features, 50 x 50, 100 missing, from any start."""
    missing = complement(feature_matrix("id_cond", LayerShape(50, 50), 2400, 0))
    target = random_target(50, 50, 0)
    start, greedy = greedy_permutation(missing, target)
    best = assignment_permutation(missing, target)[1]
    for begin in (start, torch.arange(50), torch.arange(50).flip(0)):
        exchanged = exchange_permutation(missing, target, begin)[1]
        assert best <= exchanged < 1.3 * best < 0.8 * greedy


def test_best_of_random_permutations():
    missing, target = complement(khatri_rao(6, 5, 24, 0)), random_target(6, 5, 0)
    scores = row_scores(missing, target)
    generator = torch.Generator().manual_seed(9)
    errors = [alignment_error(scores, torch.randperm(6, generator=generator)) for _ in range(20)]
    assert best_random_permutation(missing, target, 20, seed=9)[1] == pytest.approx(min(errors))
