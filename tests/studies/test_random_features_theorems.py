"""Theorems of the second paper that fail as printed: counterexamples by brute force."""

import itertools
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats

from bnrecon.features import spectrum
from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape
from bnrecon.studies.random_features import (
    descent,
    example_density,
    few_channels,
    matching,
    minimum_width,
    projection,
    ranks,
    sparse_matching,
)
from bnrecon.studies.random_features import spectrum as spectrum_part
from bnrecon.studies.random_features.exact_rank import PRIME, modular_rank, residues


def verdicts(part, rows):
    return {claim.where: claim.verdict for claim in part.claims(rows)}


def test_residues_are_float32_numbers_modulo_the_prime():
    values = torch.randn(50, generator=torch.Generator().manual_seed(0)) * 1e-3
    for value, residue in zip(values.tolist(), residues(values).tolist(), strict=True):
        exact = Fraction(value)
        assert exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME == residue


def test_modular_ranks_match_small_integer_matrices():
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        matrix = generator.integers(-1, 2, (5, generator.integers(3, 8)))
        rank = modular_rank(matrix)
        assert rank == np.linalg.matrix_rank(matrix)
        seen.add(rank)
    assert {3, 4, 5} <= seen


def test_full_rank_factors_do_not_make_m_full_rank():
    """Theorem 2.1: (e1 e1ᵀ, e2 e2ᵀ) twice and four symmetric features; ranks 2 and 3 of 4."""
    for (first, second), rank in zip(ranks.EXAMPLES.values(), (2, 3, 4), strict=True):
        columns = [np.outer(np.array(second)[:, k], first[k]).ravel() for k in range(4)]
        assert np.linalg.matrix_rank(first) == np.linalg.matrix_rank(second) == 2
        assert np.linalg.matrix_rank(np.stack(columns, 1)) == rank
    rows = ranks.examples()
    assert list(rows["smallest_rank"]) == [2, 3, 4]
    assert verdicts(ranks.PART, rows) == {"Theorem 2.1": "needs a condition"}
    assert verdicts(ranks.PART, rows[2:]) == {"Theorem 2.1": "undecided"}
    (claim,) = ranks.PART.claims(rows)
    assert "two bases" not in claim.evidence  # it is no counterexample


def test_moment_curve_features_have_rank_c0_plus_c2_minus_1():
    first = np.vander(np.arange(-4, 5), 3, increasing=True)
    assert all(
        np.linalg.matrix_rank(first[list(rows)]) == 3
        for rows in itertools.combinations(range(9), 3)
    )
    product = np.stack([np.outer(row, row).ravel() for row in first], 1)
    assert modular_rank(product) == 3 + 3 - 1


def test_ranks_of_draws_are_those_of_m():
    rows = ranks.measure_ranks("ER sign", [2], 40).iloc[0]
    full = [0, 0]
    for seed in range(40):
        first, second = (
            part.flatten(1).numpy()
            for part in draw("er_sign", LayerShape(2, 2), 4, seed, 0).weights()
        )
        if np.linalg.matrix_rank(first) == np.linalg.matrix_rank(second) == 2:
            product = np.einsum("ik,kj->ijk", second, first).reshape(4, 4)
            full[0] += 1
            full[1] += np.linalg.matrix_rank(product) == 4
    assert (rows["full_factors"], rows["full_products"]) == tuple(full)
    assert full[1] < full[0]
    assert ranks.measure_ranks("He normal", [2, 5], 20)["full_products"].tolist() == [20, 20]


def printed_mass(aspect):
    low, high = spectrum_part.printed_edges(aspect)
    return integrate.quad(lambda x: spectrum_part.printed_density(x, aspect), low, high)[0]


@pytest.mark.parametrize("aspect", [0.5, 1.0, 1.2, 3.0])
def test_printed_density_lacks_the_atom_above_n_features(aspect):
    """Its mass is n/c1 for c1 ≥ n; for c1 < n it is the law of the inverse aspect."""
    assert printed_mass(aspect) == pytest.approx(min(aspect, 1 / aspect), abs=1e-6)
    x = np.linspace(*spectrum.edges(max(aspect, 1 / aspect)), 52)[1:-1]
    printed = spectrum_part.printed_density(x, aspect) / printed_mass(aspect)
    np.testing.assert_allclose(printed, spectrum.density(x, max(aspect, 1 / aspect)), rtol=1e-5)
    shares = spectrum_part.printed_distribution(x, aspect)
    expected = spectrum.distribution(x, max(aspect, 1 / aspect))
    np.testing.assert_allclose(shares, expected, atol=1e-3)


def test_fewer_features_than_equations_decide_on_the_printed_density():
    where = "Theorem 2.2, density"
    rows = {
        aspect: spectrum_part.measure_spectrum("orthogonal", aspect, 30, 2) for aspect in (0.8, 1.2)
    }
    assert verdicts(spectrum_part.PART, rows[0.8])[where] == "needs a correction"
    assert verdicts(spectrum_part.PART, rows[1.2])[where] == "undecided"
    blurred = rows[0.8].assign(mean_distance=0.1)
    assert verdicts(spectrum_part.PART, blurred)[where] == "undecided"
    printed = np.diff(spectrum_part.printed_distribution(spectrum_part.BINS, 0.8))
    drawn_from_it = rows[0.8].assign(
        density=printed / np.diff(spectrum_part.BINS), mean_distance=0.08, distance_half_width=0.01
    )
    assert verdicts(spectrum_part.PART, drawn_from_it)[where] == "confirmed"


def test_normal_features_have_the_derived_fourth_moment():
    """E tr (MᵀM)² / c1 at c2 = 1, where the law has 2, and at c2 = c0 = 12."""
    for outputs, inputs in ((1, 144), (12, 12)):
        moment = few_channels.measure_distances("He normal", outputs, inputs, 20)["fourth_moment"]
        expected = few_channels.expected_fourth_moment(outputs, inputs)
        assert abs(moment.mean() - expected) < 5 * moment.std() / 20**0.5 + 0.01
        assert expected > 2.3


def test_few_output_channels_keep_the_spectrum_from_the_law():
    far = few_channels.measure_distances("He normal", 1, 400, 2)["distance"]
    near = few_channels.measure_distances("He normal", 20, 20, 2)["distance"]
    assert far.min() > 0.15 > 0.06 > near.max()


def test_blocks_assumed_independent_by_appendix_a2_are_correlated():
    rows = few_channels.measure_distances("He normal", 1, 400, 3)
    assert rows["block_correlation"].mean() == pytest.approx(1 / 4, abs=0.05)
    independent = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    assert abs(few_channels.block_correlation(independent, 20)) < 0.01


def test_law_for_few_channels_is_decided_by_whole_intervals():
    """Distances at c2 = 1 from n = 16 to n = 64; half of the first is 0.1."""

    def verdict(smallest, largest):
        rows = [
            {"features": "He normal", "outputs": 1, "inputs": n, "n": n, "distance": distance}
            | {"block_correlation": 0.25 + distance / 1000}
            for n, distances in ((16, smallest), (64, largest))
            for distance in distances
        ]
        return next(iter(verdicts(few_channels.PART, pd.DataFrame(rows)).values()))

    first = [0.199, 0.2, 0.201]
    assert verdict(first, [0.149, 0.15, 0.151]) == "needs a condition"
    assert verdict(first, [0.049, 0.05, 0.051]) == "confirmed"
    assert verdict(first, [0.01, 0.09, 0.13]) == "undecided"
    assert verdict(first, [0.05, 0.11, 0.2]) == "undecided"


@pytest.mark.parametrize("size", [2, 5])
def test_eq_3_rebuilds_targets_without_zeros_with_condition_root_c2(size):
    features = draw("id_cond", LayerShape(size, size), size**2 - size + 1, 0, 0)
    weight = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
    rebuilt, _ = minimum_width.rebuild(features, weight)
    torch.testing.assert_close(rebuilt, weight)
    condition, balanced = minimum_width.condition_numbers(features)
    assert (condition, balanced) == (pytest.approx(size**0.5), pytest.approx(1))


def test_eq_3_misses_the_identity_but_not_a_target_without_its_first_input():
    features = draw("id_cond", LayerShape(2, 2), 3, 0, 0)
    rebuilt, largest = minimum_width.rebuild(features, torch.eye(2))
    assert float((rebuilt - torch.eye(2)).norm()) == pytest.approx(minimum_width.PIVOT)
    assert largest == pytest.approx(1 / minimum_width.PIVOT)
    without = torch.tensor([[0.0, 2.0], [0.0, 3.0]])
    assert not minimum_width.lost_rows(without).any()
    torch.testing.assert_close(minimum_width.rebuild(features, without)[0], without)


def test_no_scales_of_eq_3_give_the_identity():
    """W' = [[g1 s, g1 a], [g2 s, g2 b]]: w22 = 1 and w21 = 0 give s = 0, and then w11 = 0."""
    first, second = draw("id_cond", LayerShape(2, 2), 3, 0, 0).weights()
    scales = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for s, a, b in scales:
        weight = second.flatten(1) @ torch.diag(torch.stack([s, a, b])) @ first
        torch.testing.assert_close(weight, torch.stack([torch.stack([s, a]), torch.stack([s, b])]))


def test_verdicts_on_eq_3_need_every_type_of_target():
    rows = {name: minimum_width.measure_targets(name, [2, 4], 3) for name in minimum_width.TARGETS}
    density, every = "Eq. 3, targets from a continuous distribution", "Eq. 3, any target"
    normal = verdicts(minimum_width.PART, rows["normal"])
    assert (normal[density], normal[every]) == ("confirmed", "undecided")
    identity = verdicts(minimum_width.PART, rows["identity"])
    assert (identity.get(density), identity[every]) == (None, "undecided")
    every_type = verdicts(minimum_width.PART, pd.concat(rows.values(), ignore_index=True))
    assert (every_type[density], every_type[every]) == ("confirmed", "needs a condition")


def test_critical_density_is_the_bottleneck_over_all_permutations():
    generator = np.random.default_rng(0)
    for _ in range(40):
        target, uniform = generator.random((4, 5)) < 0.5, generator.random((5, 5))
        brute = min(
            max((uniform[row][target[i]].max(initial=0) for i, row in enumerate(rows)))
            for rows in itertools.permutations(range(5), 4)
        )
        critical = sparse_matching.critical_density(target, uniform)
        assert critical == brute
        assert sparse_matching.has_perfect_matching(target, uniform <= critical)
        assert not sparse_matching.has_perfect_matching(target, uniform < critical) or critical == 0


def test_quantile_intervals_have_their_coverage():
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        _, low, high = example_density.quantile_interval(generator.random(60), 0.8)
        hits += low <= 0.8 <= high
    assert 0.92 < hits / 400 < 0.995


@pytest.mark.parametrize("density", [0.3, 0.5, 0.9])
def test_bound_of_theorem_4_2_holds_for_every_small_target(density):
    """All targets of 2 x 3 against all features, one by one."""
    masks = sparse_matching.all_masks(2, 3)
    probabilities = sparse_matching.exact_probabilities(2, 3, density)
    for target, probability in list(zip(masks, probabilities, strict=True))[::7]:
        direct = sum(
            density ** mask.sum() * (1 - density) ** (~mask).sum()
            for mask in masks
            if sparse_matching.has_perfect_matching(target, mask)
        )
        assert probability == pytest.approx(direct)
    bounds = np.array([sparse_matching.degree_bound(target.sum(1), density, 2) for target in masks])
    assert (probabilities <= bounds + 1e-12).all()
    several = (masks.any(2)).sum(1) > 1
    assert (probabilities[several] < bounds[several] - 1e-6).all()  # strict
    np.testing.assert_allclose(probabilities[~several], bounds[~several])  # attained by one row


def test_verdicts_follow_the_rows():
    rows = projection.measure_projections(6, 2)
    assert verdicts(projection.PART, rows) == {"Theorem 4.1": "needs a correction"}
    swapped = rows.assign(norm_of_last_r=rows["least_squares_error"])
    assert verdicts(projection.PART, swapped) == {"Theorem 4.1": "confirmed"}
    descended = descent.measure_descent("orthogonal", 8, 6)
    assert verdicts(descent.PART, descended)["Sect. 2.1, orthogonal weights"] == "false as stated"
    flat = descended.assign(condition_number=3.0, largest_off_diagonal=1e-9)
    assert verdicts(descent.PART, flat) == {
        "Sect. 2.1, double descent": "undecided",
        "Sect. 2.1, orthogonal weights": "confirmed",
    }
    enumerated = sparse_matching.enumerate_targets(2, 2, [0.5])
    assert enumerated["exact"].iloc[0] == pytest.approx(7 / 16)
    assert verdicts(matching.PART, enumerated) == {"Theorem 4.2": "confirmed"}
    above = enumerated.assign(exact=0.6)
    assert verdicts(matching.PART, above) == {"Theorem 4.2": "false as stated"}


def test_probability_statement_holds_only_where_its_whole_interval_does():
    """Promised 0.9: a share of 0.897 [0.877, 0.915] decides nothing."""
    row = {"setting": "c2 = 5, own inputs, k = 2", "feature_density": 0.8, "draws": 1000}
    row |= {"theorem": "Fig. 1 (e), k in print", "bound": 0.9, "bound_kind": "at least"}
    shares = {"confirmed": (950, 0.93, 0.96), "undecided": (897, 0.877, 0.915)}
    shares["needs a correction"] = (109, 0.09, 0.13)
    for verdict, (matched, low, high) in shares.items():
        one = row | {"matched": matched, "share_low": low, "share_high": high}
        assert list(verdicts(matching.PART, pd.DataFrame([one])).values()) == [verdict]
    (line,) = matching.PART.summary(
        pd.DataFrame([row | {"matched": 897, "share_low": 0.877, "share_high": 0.915}])
    ).to_dict("records")
    assert (line["holds"], "disjoint inputs" in line["setting"]) == ("undecided", True)


def test_product_behind_the_derived_k_is_a_close_upper_bound():
    """Fig. 1 (e), k = 7: rows compete, 0.908, and the product, which lets them share, is 0.9096."""
    outputs, degree, density, _ = matching.SPECIAL
    product = (1 - (1 - density**degree) ** (7 * outputs)) ** outputs
    target = sparse_matching.disjoint_rows(outputs, 50, degree)
    hits = sparse_matching.count_matches(lambda _: target, 7 * outputs, density, 3000)
    interval = stats.binomtest(hits, 3000).proportion_ci(0.999)
    assert interval.low < product < 0.9097
    assert interval.low <= 0.908 <= interval.high
