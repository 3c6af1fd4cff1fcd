"""Theorem 3 of Giannou et al. 2023: masks, ranks and the lemma about sums of products."""

import itertools
import math

import numpy as np
import pytest

from bnrecon.construction.sparse_invertibility import (
    bernoulli_masks,
    boolean_determinant,
    has_zero_line,
    iid_zero_probability,
    khatri_rao_mask,
    numerical_rank,
    predicted_density,
    product_zero_probability,
    without_zero_column,
)


def by_definition(mask):
    """Definition 4 as printed."""
    if len(mask) == 1:
        return bool(mask[0, 0])
    minors = (np.delete(np.delete(mask, i, 0), 0, 1) for i in range(len(mask)))
    return any(mask[i, 0] and by_definition(minor) for i, minor in enumerate(minors))


@pytest.mark.parametrize("density", [0.2, 0.4, 0.6])
def test_boolean_determinant_is_a_perfect_matching(density):
    draw = np.random.default_rng(0).random((60, 5, 5)) < density
    determinants = [boolean_determinant(mask) for mask in draw]
    assert determinants == [by_definition(mask) for mask in draw]
    assert sum(determinants) + (density > 0.5) > 0


def test_product_mask_is_where_both_factors_are_nonzero():
    first, second = bernoulli_masks(3, 0.5, seed=4)
    expected = [
        [first[i, c] and second[j, c] for c in range(9)] for i in range(3) for j in range(3)
    ]
    assert (khatri_rao_mask(first, second) == np.array(expected)).all()


def test_rank_is_full_exactly_where_the_boolean_determinant_is_one():
    """Lemma 9, on both sides of the threshold."""
    seen = set()
    for seed in range(40):
        first, second = bernoulli_masks(6, 0.7, seed)
        full = boolean_determinant(khatri_rao_mask(first, second))
        assert full == (numerical_rank(first, second, seed) == 36)
        seen.add(full)
    assert seen == {True, False}


def test_bernoulli_matrix_of_density_log_n_over_n_is_mostly_singular():
    """Step 4 prints a probability of at most n^-c. Twice the density suffices."""
    size, draws, random = 64, 300, np.random.default_rng(0)

    def shares(multiple):
        masks = random.random((draws, size, size)) < multiple * math.log(size) / size
        singular = np.mean([not boolean_determinant(mask) for mask in masks])
        return singular, np.mean([has_zero_line(mask) for mask in masks])

    singular, zero = shares(1)
    assert 0.7 < zero <= singular
    singular, zero = shares(2)
    assert zero <= singular < 2 / size + 0.05


def test_staircases_are_the_worst_sets_of_their_row_sizes():
    """Erratum 20: with u = 1 in given rows, their union is at least as large as the largest."""
    cells = list(itertools.product(range(3), repeat=2))
    outcomes = list(itertools.product((0, 1), repeat=6))
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(cells, size) for size in (2, 3, 4)
    ):
        rows = sorted((sum(i == row for i, _ in chosen) for row in range(3)), reverse=True)
        zero = sum(
            0.3 ** sum(uv) * 0.7 ** (6 - sum(uv))
            for uv in outcomes
            if not any(uv[i] * uv[3 + j] for i, j in chosen)
        )
        assert zero <= product_zero_probability(rows, 0.3) + 1e-12


def test_zero_columns_bound_the_probability():
    side, density, draws = 5, 0.5, 4000
    masks = [khatri_rao_mask(*bernoulli_masks(side, density, seed)) for seed in range(draws)]
    share = np.mean([mask.any(axis=0).all() for mask in masks])
    expected = without_zero_column(side, density)
    assert abs(share - expected) < 4 * (expected * (1 - expected) / draws) ** 0.5
    assert np.mean([boolean_determinant(mask) for mask in masks[:400]]) <= expected + 0.1


@pytest.mark.parametrize("rows", [(2, 1), (3, 1, 1), (2, 2), (3, 2, 0)])
def test_probability_of_a_zero_sum_is_the_sum_over_outcomes(rows):
    density, width, total = 0.3, max(rows), 0.0
    for u in itertools.product((0, 1), repeat=len(rows)):
        for v in itertools.product((0, 1), repeat=width):
            if not any(u[i] * v[j] for i, size in enumerate(rows) for j in range(size)):
                ones = sum(u) + sum(v)
                total += density**ones * (1 - density) ** (len(rows) + width - ones)
    assert product_zero_probability(rows, density) == pytest.approx(total)


def staircases(side, rows, most):
    if rows == 0:
        yield ()
        return
    for size in range(most, -1, -1):
        for rest in staircases(side, rows - 1, size):
            yield (size, *rest)


@pytest.mark.parametrize("side", [2, 3, 4, 5])
def test_lemma_10_holds_for_every_staircase(side):
    for rows in staircases(side, side, side):
        for q in (0.01 / side, 0.1 / side, 0.3 / side, 0.49 / side) if rows[0] else ():
            p = (2 * q * side) ** 0.5
            assert product_zero_probability(rows, p) <= iid_zero_probability(rows, q) + 1e-12


def test_proof_of_lemma_10_uses_the_wrong_square():
    """Rows (2, 1) hold no 2x2 square, yet h = 2 is the smallest with at most h such rows."""
    rows, p = (2, 1), 0.3
    smallest = next(h for h in range(1, 4) if sum(size >= h for size in rows) <= h)
    largest = max(h for h in range(1, 4) if sum(size >= h for size in rows) >= h)

    def square(h):
        return 2 * (1 - p) ** h - (1 - p) ** (2 * h)

    assert (smallest, largest) == (2, 1)
    assert product_zero_probability(rows, p) > square(smallest)
    assert product_zero_probability(rows, p) <= square(largest)


def test_predicted_densities_are_those_of_theorem_3_and_remark_3():
    """Log 16 / 16 = 0.17329 (by hand)."""
    kinds = ("theorem", "conjecture", "zero column")
    predicted = [predicted_density(16, kind) for kind in kinds]
    assert predicted == pytest.approx([0.416277, 0.173287, 0.346574], rel=1e-5)
