"""Random features for normalization layers: mathematics against brute force."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bnrecon.features.shapes import LayerShape
from bnrecon.studies.random_features import equivalence, sparse_matching
from bnrecon.studies.random_features.descent import orthogonality
from bnrecon.studies.random_features.feature_matrices import feature_matrix


def share_of_matches(make_target, rows, draws):
    """The 99.9% interval of the share of draws that contain the target, p = 1/2."""
    hits = sparse_matching.count_matches(make_target, rows, 0.5, draws)
    return stats.binomtest(hits, draws).proportion_ci(0.999)


def test_disjoint_supports_do_not_attain_the_bound_of_theorem_4_2():
    """c2 = 2, p^d = 1/2: 7 of 16 tables of fits have a perfect matching; the bound is 9/16."""
    tables = list(itertools.product([False, True], repeat=4))
    count = sum((a and d) or (b and c) for a, b, c, d in tables)
    assert count / 16 == 0.4375
    assert sparse_matching.degree_bound(np.array([1, 1]), 0.5, 2) == 0.5625
    target = sparse_matching.disjoint_rows(2, 2, 1)
    interval = share_of_matches(lambda _: target, 2, 4000)
    assert interval.low <= 0.4375 <= interval.high < 0.5625


def test_printed_theorem_4_3_fails_where_candidates_share_a_degree():
    """c2 = c0 = 1, p = q = 1/2, k = 2: found with 1 - 1/2 · 1/4 = 7/8, not 15/16."""
    assert sparse_matching.width_factor_in_print(1, 1, 0.5, 0.5, 1 / 16) == pytest.approx(2)
    cases = itertools.product([False, True], repeat=3)  # the target's weight, two candidates'
    assert sum(not target or first or second for target, first, second in cases) / 8 == 7 / 8
    assert sparse_matching.partition_probability(2, 1, 1, 0.5, 0.5) == pytest.approx(7 / 8)
    interval = share_of_matches(lambda generator: generator.random((1, 1)) < 0.5, 2, 4000)
    assert interval.low <= 7 / 8 <= interval.high < 15 / 16


def test_printed_theorem_4_3_fails_for_large_targets():
    """Ten rows of fifty inputs match in a quarter of the draws; the theorem promises 0.9."""
    rows = 10 * math.ceil(sparse_matching.width_factor_in_print(10, 50, 0.2, 0.5, 0.1))
    interval = share_of_matches(lambda generator: generator.random((10, 50)) < 0.2, rows, draws=60)
    assert interval.high < 0.6


@pytest.mark.parametrize(
    "setting", [(1, 1, 0.5, 0.5, 1 / 16), (3, 4, 0.3, 0.6, 0.2), (2, 6, 0.5, 0.7, 0.3)]
)
def test_derived_width_factor_suffices_for_the_partition(setting):
    """Against a sum over in-degrees, and a simulation of the proof's division of candidates."""
    outputs, inputs, target_density, density, failure = setting
    k = sparse_matching.width_factor(*setting)
    degrees = stats.binom(inputs, target_density)
    none = sum(degrees.pmf(d) * (1 - density**d) ** k for d in range(inputs + 1))
    assert (1 - none) ** outputs == pytest.approx(1 - failure)
    generator, whole = np.random.default_rng(0), math.ceil(round(k, 9))
    hits = 0
    for _ in range(3000):
        target = generator.random((outputs, 1, inputs)) < target_density
        candidates = generator.random((outputs, whole, inputs)) < density
        hits += (~target | candidates).all(2).any(1).all()
    interval = stats.binomtest(int(hits), 3000).proportion_ci(0.999)
    assert (
        interval.low <= sparse_matching.partition_probability(whole, *setting[:4]) <= interval.high
    )


def test_orthogonal_weights_do_not_make_columns_of_m_orthogonal():
    """Against the paper's Sect. 2.1; ID cond and Ortho cond do."""
    for name, orthogonal in (("orthogonal", False), ("id_cond", True), ("ortho_cond", True)):
        measures = orthogonality(feature_matrix(name, LayerShape(10, 10), 100, 0))
        assert (measures["largest_off_diagonal"] < 1e-5) == orthogonal
        assert (measures["condition_number"] < 1.001) == orthogonal
        if not orthogonal:
            assert measures["largest_off_diagonal"] > 0.3


def test_training_id_cond_scales_is_training_the_weights():
    """Theorem 3.1 in float64: collapsed pairs are bit-identical, two-convolution controls round."""
    rows = equivalence.train_together("float64", 15)
    assert (rows["gradient_difference_one_convolution"] == 0).all()
    for name in ("two_convolutions", *equivalence.NAMES):
        assert 0 < rows[f"gradient_difference_{name}"].max() < 1e-11
        assert (rows["loss_weights"] - rows[f"loss_{name}"]).abs().max() < 1e-12
    assert rows["loss_weights"].iloc[-1] < rows["loss_weights"].iloc[0]


def test_training_beyond_its_controls_is_not_equivalent():
    single, double = (equivalence.train_together(name, 3) for name in ("float32", "float64"))

    def verdict(*rows):
        (claim,) = equivalence.PART.claims(pd.concat(rows))
        return claim.verdict

    assert verdict(single) == verdict(double) == "undecided"  # one precision alone decides nothing
    assert verdict(single, double) == "confirmed"
    far = {"gradient_difference_two_convolutions": 0.1}
    assert verdict(single.assign(**far), double) == "undecided"
    assert verdict(single, double.assign(**far)) == "contradicted"
    unequal = single.assign(gradient_difference_one_convolution=1e-9)
    assert verdict(unequal, double) == "contradicted"


def test_float32_training_is_judged_by_its_first_steps_and_controls():
    """A training that diverges late, together with a control, is still equivalent."""
    steps, late = np.arange(1, 151), np.arange(1, 151) > 120
    columns = {"step": steps, "precision": "float32", "loss_weights": 1.0}
    for name in (*equivalence.PAIRS, *equivalence.NAMES):
        leaves = late & (name in ("two_convolutions", "rounded_4"))
        small = 0.0 if name == "one_convolution" else 1e-6
        columns[f"gradient_difference_{name}"] = np.where(leaves, 2.0, small)
        columns[f"loss_{name}"] = np.where(leaves, 1.5, 1.0)
    rows = pd.DataFrame(columns)
    halves = {name: rows[name] * 1e-8 for name in rows if name.startswith("gradient")}
    double = rows.assign(precision="float64", **halves)[~late]
    verdicts, numbers = equivalence.decide(pd.concat([rows, double]))
    assert verdicts == {"Theorem 3.1": "confirmed"}
    assert "1 of 11 controls" in numbers["branch"]
