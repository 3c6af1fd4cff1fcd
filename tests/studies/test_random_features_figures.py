"""Random features, Figures 2 and 4: matrices, targets, tables, claims and figures."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from bnrecon.features.shapes import LayerShape
from bnrecon.studies.random_features import alignment, conditioning, masks, permutation_search
from bnrecon.studies.random_features.conditioning import IDENTIFIED
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix, target_weight
from bnrecon.studies.random_features.permutation_search import with_best
from bnrecon.studies.random_features.solver_errors import (
    SETTINGS,
    condition_number,
    measure_errors,
    scaled_target,
)


@pytest.mark.parametrize("name", FEATURES.values())
def test_feature_matrices_have_the_requested_width(name):
    shape = LayerShape(4, 5)
    matrix = feature_matrix(name, shape, 13, seed=3)
    assert matrix.shape == (20, 13)
    assert torch.equal(matrix, feature_matrix(name, shape, 13, seed=3))
    assert torch.linalg.matrix_rank(matrix) == 13
    if name in ("id_cond", "ortho_cond"):
        identity = torch.eye(13, dtype=torch.float64)
        torch.testing.assert_close(matrix.T @ matrix, identity, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", FEATURES.values())
def test_targets_follow_the_distribution(name):
    target = target_weight(name, 40, 50, seed=1)
    zeros = float((target == 0).double().mean())
    assert (0.45 < zeros < 0.55) if name in ("sparse_he_normal", "er_sign") else zeros == 0
    if name == "er_sign":
        assert set(target.unique().tolist()) == {-1.0, 0.0, 1.0}
    if name in ("orthogonal", "ortho_cond"):
        identity = torch.eye(40, dtype=torch.float64)
        torch.testing.assert_close(target @ target.T, identity, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", FEATURES.values())
def test_targets_through_hidden_channels_are_products_or_sums_of_features(name):
    few, many = (target_weight(name, 40, 50, seed=1, hidden=hidden) for hidden in (7, 100))
    assert torch.linalg.matrix_rank(few) <= 7
    if name.endswith("_cond"):  # 100 single entries, or outer products of shared vectors
        sums = target_weight(name, 50, 50, seed=1, hidden=100)
        assert 30 < torch.linalg.matrix_rank(sums) < 45
    if name == "id_cond":
        assert sorted(few.flatten().unique().tolist()) == [0, 1]
        assert (few.sum(), many.sum()) == (7, 100)
    elif name == "ortho_cond":  # 7 outer products of orthonormal vectors
        seven = torch.tensor(7.0, dtype=torch.float64)
        torch.testing.assert_close(few.square().sum(), seven, rtol=1e-5, atol=0)
    else:
        assert (torch.linalg.matrix_rank(few), torch.linalg.matrix_rank(many)) == (7, 40)


@pytest.mark.parametrize("name", FEATURES.values())
def test_targets_of_figure_2_have_one_scale_and_float32_values(name):
    target = scaled_target(name, 10, seed=2)
    assert float(target.square().mean()) == pytest.approx(2 / 10, rel=1e-6)
    assert torch.equal(target, target.float().double())
    drawn = target_weight(name, 10, 10, seed=2)
    torch.testing.assert_close(target / target.norm(), drawn / drawn.norm(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "excess"),
    [("he_normal", 0), ("orthogonal", 0), ("er_sign", 10), ("ortho_cond", 0)],
)
def test_condition_numbers_of_figure_2_are_those_of_m(name, excess):
    matrix = feature_matrix(name, LayerShape(8, 8), 64 + excess, seed=1)
    assert condition_number(matrix) == pytest.approx(float(torch.linalg.cond(matrix)), rel=1e-3)
    singular = matrix[:, :60] @ matrix[:, :60].T
    assert condition_number(singular) > IDENTIFIED


def test_half_the_error_means_a_quarter_of_the_missing_features():
    """Random targets and features, as in Figure 4's last column; against least squares."""
    errors = {}
    for missing in (5, 20):
        squares = []
        for seed in range(40):
            matrix = feature_matrix("he_normal", LayerShape(10, 10), 100 - missing, seed)
            wanted = target_weight("he_normal", 10, 10, seed).reshape(-1, 1)
            residual = wanted - matrix @ torch.linalg.lstsq(matrix, wanted).solution
            squares.append(float(residual.square().sum() / wanted.square().sum()))
        errors[missing] = np.mean(squares) ** 0.5
        row = {"assignment": [errors[missing]], "exchanges": [1.0], "channels": [10]}
        equivalent = with_best(pd.DataFrame(row))["missing"][0]
        assert equivalent == pytest.approx(missing, rel=0.15)
    assert errors[5] / errors[20] == pytest.approx(0.5, rel=0.1)


def solved(solver, values, iterations=10, at_limit=False, **row):
    """Rows of Figure 2 with these relative errors, one per seed."""
    common = {"features": "He normal", "channels": 10, "excess": 0, "condition_number": 50.0}
    common |= {"solver": solver, "iterations": iterations, "at_limit": at_limit, "used": "lu"}
    return [
        common | row | {"seed": seed, "rmse": value / 2, "relative_rmse": value}
        for seed, value in enumerate(values)
    ]


def every_solver(values, **row):
    return [one for solver in SETTINGS for one in solved(solver, values, **row)]


def test_zero_errors_are_counted_and_not_averaged():
    rows = every_solver([1e-3, 0.0, 1e-5]) + every_solver([0.0, 0.0], features="ID cond")
    table = conditioning.PART.summary(pd.DataFrame(rows)).set_index("features")
    assert table.loc["He normal", "SVD, LBFGS"] == "1.0e-04, 1 of 3: 0 (10)"
    assert table.loc["ID cond", "SVD, LBFGS"] == "0 (10)"
    assert table.loc["ID cond", "bnrecon"] == "0 (lu)"


def test_iteration_limit_is_reported_and_a_larger_one_lowers_the_error(monkeypatch):
    short = SETTINGS["lbfgs"].__class__("lbfgs", max_iterations=20)
    monkeypatch.setitem(SETTINGS, "lbfgs", short)
    rows = measure_errors("He normal", 6, 0, seeds=2).set_index(["solver", "seed"])
    assert rows.loc["lbfgs", "at_limit"].all()
    assert not rows.loc["lbfgs_long", "at_limit"].any()
    assert (rows.loc["lbfgs", "iterations"] == 20).all()
    assert (rows.loc["lbfgs_long", "rmse"] < 0.1 * rows.loc["lbfgs", "rmse"]).all()
    assert (rows["rmse"] / rows["relative_rmse"]).to_numpy() == pytest.approx(math.sqrt(2 / 6))


def test_id_cond_features_are_solved_exactly_in_float32():
    rows = measure_errors("ID cond", 6, 0, seeds=1)
    assert (rows["rmse"] == 0).all()


def decided(claims, word):
    (claim,) = (claim for claim in claims if word in claim.statement)
    return claim


@pytest.mark.parametrize(
    ("many", "verdict"),
    [
        ([1e-5, 2e-5, 1.5e-5], "confirmed"),
        ([1e-1, 2e-1, 1.5e-1], "contradicted"),
        ([1e-5, 1, 1e-2], "undecided"),
    ],
)
def test_paired_intervals_decide_whether_more_features_help(many, verdict):
    few = [1e-2, 2e-2, 1.5e-2]
    rows = pd.DataFrame(every_solver(few) + every_solver(many, excess=100))
    claim = decided(conditioning.PART.claims(rows), "More or fewer features")
    assert claim.verdict == verdict
    assert "of 2 comparisons" in claim.evidence


def test_preconditioning_is_judged_at_one_limit_without_excess():
    plain = [1e-2, 2e-2, 1.5e-2]
    rows = every_solver(plain)
    for row in rows:
        if row["solver"].startswith("svd"):
            row["relative_rmse"] = [1e-5, 2e-5, 1e-5][row["seed"]]
    other = solved("lbfgs", plain, excess=100) + solved("svd_lbfgs", [1.0, 2, 3], excess=100)
    other += solved("svd_lu_lbfgs", [1.0, 2, 3], excess=100) + solved("lbfgs_long", plain, excess=9)
    claim = decided(conditioning.PART.claims(pd.DataFrame([*rows, *other])), "reduce the approx")
    assert claim.verdict == "confirmed"
    assert "of 2 comparisons" in claim.evidence


@pytest.mark.parametrize(
    ("power", "verdict"), [(2.0, "confirmed"), (0.0, "undecided"), (-2.0, "contradicted")]
)
def test_growth_with_size_is_the_slope_of_logarithms(power, verdict):
    rows = pd.DataFrame(
        [row for size in (5, 10, 20) for row in every_solver([1e-5] * 3, channels=size)]
    )
    slopes = power + 0.05 * (rows["seed"] - 1)  # of seeds 0, 1 and 2
    rows["condition_number"] = 7 * rows["channels"] ** slopes
    claim, *_ = conditioning.PART.claims(rows)
    assert claim.verdict == verdict
    assert f"power {power:.1f}." in claim.evidence.replace("-0.0", "0.0")


def test_single_seed_decides_nothing():
    rows = pd.DataFrame(every_solver([1e-2]) + every_solver([1e-6], excess=100))
    claims = conditioning.PART.claims(rows)
    assert {claim.verdict for claim in claims} == {"undecided"}


def aligned(features, target, errors, hidden=100, assignment=math.nan, **row):
    """Rows of Figure 4 with these errors after the exchanges, one per draw."""
    common = {"features": features, "target": target, "hidden": hidden, "rank": min(hidden, 50)}
    common |= {"c1": 2400, "channels": 50, "unpermuted": 0.2, "best_random": 0.16}
    common |= {"greedy": 0.1, "printed_masks": 0.13, "masks": 0.12, "assignment": assignment}
    return [common | row | {"seed": seed, "exchanges": error} for seed, error in enumerate(errors)]


def all_pairs(errors, id_cond, **row):
    """``errors`` for all features except ID cond: ``id_cond``, and 0 on its own targets."""
    fitted = {"assignment": 0.0, "exchanges": 0.0}
    return [
        one | (fitted if one["features"] == one["target"] == "ID cond" else {})
        for features in FEATURES
        for target in FEATURES
        for one in aligned(features, target, id_cond if features == "ID cond" else errors, **row)
    ]


@pytest.mark.parametrize(
    ("id_cond", "less", "more"),
    [
        ([0.05, 0.051, 0.049], "contradicted", "confirmed"),
        ([0.1, 0.101, 0.099], "confirmed", "contradicted"),
        ([0.01, 0.2, 0.05], "undecided", "undecided"),
    ],
)
def test_id_cond_suitability_is_decided_per_search(id_cond, less, more):
    """By the paper's greedy pass and by exchanges; never by the exact assignment."""
    rows = pd.DataFrame(all_pairs([0.07, 0.072, 0.071], id_cond))
    rows["assignment"] = rows["assignment"].fillna(0.01).where(rows["features"] == "ID cond")
    claims = alignment.PART.claims(rows.assign(greedy=rows["exchanges"]))
    for word, verdict in (("less suitable", less), ("order depends", more)):
        claim = decided(claims, word)
        assert claim.verdict == verdict
        assert "of 5 " in claim.evidence
    by_greedy = rows["features"].eq("ID cond").map({True: 0.2, False: 0.1}) + 0.01 * rows["seed"]
    claims = alignment.PART.claims(rows.assign(greedy=by_greedy))
    assert decided(claims, "less suitable").verdict == "confirmed"  # whatever exchanges find
    assert decided(claims, "order depends").verdict == more


@pytest.mark.parametrize(
    ("low", "verdict"),
    [
        ([0.0690, 0.0701, 0.0712], "confirmed"),  # little, and in every draw
        ([0.08, 0.081, 0.083], "contradicted"),
        ([0.01, 0.15, 0.07], "undecided"),
    ],
)
def test_low_rank_is_easier_to_match_where_it_leaves_less_error(low, verdict):
    full = [0.07, 0.071, 0.072]
    rows = all_pairs(full, full, hidden=300) + all_pairs(low, low, hidden=10)
    claim = decided(alignment.PART.claims(pd.DataFrame(rows)), "low rank matching")
    assert claim.verdict == verdict
    assert "for rank up to 10 " in claim.evidence


@pytest.mark.parametrize(
    ("same", "verdict"), [(0.069, "confirmed"), (0.05, "contradicted"), (0.0635, "undecided")]
)
def test_one_pooled_interval_decides_on_similar_distributions(same, verdict):
    rows = pd.DataFrame(all_pairs([0.07, 0.0701, 0.0699], [0.05, 0.05, 0.05]))
    alike = rows["features"] == rows["target"]
    jitter = rows["seed"].map({0: 0.99, 1: 1.0, 2: 1.01})
    rows.loc[alike, "exchanges"] = same * jitter[alike]
    assert decided(alignment.PART.claims(rows), "Apart from sparsity").verdict == verdict


@pytest.mark.parametrize(
    ("same", "other", "verdict"),
    [(0.0, 0.1, "confirmed"), (0.1, 0.1, "contradicted"), (0.0, 0.0, "contradicted")],
)
def test_greedy_pass_decides_whether_only_sparse_targets_fit(same, other, verdict):
    rows = pd.DataFrame(all_pairs([0.07, 0.071], [0.05, 0.05]))
    is_own = (rows["features"] == "ID cond") & (rows["target"] == "ID cond")
    sign = (rows["features"] == "ID cond") & (rows["target"] == "ER sign")
    rows.loc[is_own, "greedy"] = same
    rows.loc[sign, "greedy"] = other
    assert decided(alignment.PART.claims(rows), "Only highly sparse").verdict == verdict
    # With a shared feature errors of 0 are limits (erratum 31), which refute nothing.
    shared = rows[rows["features"] == "ID cond"].assign(features=permutation_search.SHARED)
    claims = alignment.PART.claims(pd.concat([rows, shared]))
    verdicts = [claim.verdict for claim in claims if "Only highly sparse" in claim.statement]
    assert verdicts == [verdict, "undecided"]


def test_products_through_more_channels_than_outputs_have_full_rank():
    rows = pd.DataFrame(all_pairs([0.07, 0.071], [0.05, 0.05]))
    assert decided(alignment.PART.claims(rows), "Low rank targets").verdict == "false as stated"
    low = rows.assign(rank=20)
    assert decided(alignment.PART.claims(low), "Low rank targets").verdict == "undecided"


def test_only_id_cond_fits_masks_of_low_density():
    rows = masks.measure_masks(0, 20, 16, list(permutation_search.SEARCHES), list(FEATURES))
    fitted = rows[rows["assignment"] < 1e-9]
    assert set(fitted["features"]) == {"ID cond"}
    assert 0.1 in set(fitted["density"])
    assert 1.0 not in set(fitted["density"])
    assert (rows["exchanges"] <= rows["greedy"] + 1e-12).all()
    assert (rows["greedy"] <= rows["unpermuted"] + 1e-12).all()
    others = rows[rows["features"] != "ID cond"]
    assert others[["printed_masks", "masks", "assignment"]].isna().all(axis=None)
    id_cond = rows[rows["features"] == "ID cond"]
    assert (id_cond[["printed_masks", "masks"]].min(axis=1) >= id_cond["assignment"] - 1e-12).all()


def test_shared_feature_reaches_the_entries_of_the_first_input():
    shape, width = LayerShape(20, 20), 370
    label = permutation_search.SHARED
    assert label in permutation_search.features_of_width(20, 400 - width)
    assert label not in permutation_search.features_of_width(20, 19)
    missing = permutation_search.unreached(label, shape, width, 0).sum(1).reshape(20, 20)
    assert missing.sum() == 400 - (width + 20 - 1)
    assert not missing[:, 0].any()
    rows = masks.measure_masks(0, 20, 30, ["greedy", "assignment"], ["ID cond", label])
    errors = rows.pivot_table("assignment", "density", "features")
    assert (errors[label] <= errors["ID cond"] + 1e-12).all()
    assert errors.loc[0.7, label] < errors.loc[0.7, "ID cond"]


def test_shared_feature_has_its_own_verdict():
    """The paper does not say which of the two its figure has."""
    rows = all_pairs([0.1, 0.101, 0.1], [0.2, 0.2, 0.201])
    id_cond = [row for row in rows if row["features"] == "ID cond"]
    shared = [row | {"features": permutation_search.SHARED, "greedy": 0.01} for row in id_cond]
    rows = [row | ({"greedy": 0.3} if row["features"] == "ID cond" else {}) for row in rows]
    claims = alignment.PART.claims(pd.DataFrame(rows + shared))
    both = [claim for claim in claims if "less suitable" in claim.statement]
    assert [claim.verdict for claim in both] == ["confirmed", "undecided"]
    assert "51 entries are missing instead of 100" in both[1].evidence


def masked(features, density, greedy, best, **row):
    """Rows of Figure 4 (right) with these errors, one per draw."""
    common = {"features": features, "density": density, "c1": 2400, "channels": 50}
    common |= {"unpermuted": 0.2, "best_random": 0.15, "assignment": math.nan}
    common |= {"printed_masks": math.nan, "masks": math.nan}
    return [
        common | row | {"seed": seed, "greedy": one, "exchanges": best}
        for seed, one in enumerate(greedy)
    ]


@pytest.mark.parametrize(
    ("greedy", "unpermuted", "possible"),
    [
        ([0, 0.01], 0.2, "confirmed"),
        ([0, 0], 0.0, "contradicted"),
        ([0.1, 0.1], 0.2, "contradicted"),
    ],
)
def test_permutation_makes_masks_fit(greedy, unpermuted, possible):
    rows = masked("ID cond", 0.1, greedy, 0.0, unpermuted=unpermuted)
    claims = masks.PART.claims(pd.DataFrame(rows + masked("He normal", 0.1, [0.1, 0.1], 0.1)))
    assert decided(claims, "make reconstruction possible").verdict == possible


@pytest.mark.parametrize(("density", "verdict"), [(0.3, "confirmed"), (0.7, "contradicted")])
def test_density_at_which_every_draw_fits_is_low_or_not(density, verdict):
    rows = masked("ID cond", density, [0.1] * 10, 0.0) + masked("He normal", density, [0.1], 0.1)
    for draws, expected in ((10, verdict), (9, "undecided")):
        some = pd.DataFrame([row for row in rows if row["seed"] < draws])
        assert decided(masks.PART.claims(some), "disappointingly low").verdict == expected


@pytest.mark.parametrize(
    ("greedy", "verdict"),
    [([0.1, 0.102], "contradicted"), ([0.19, 0.195], "confirmed"), ([0.1, 0.19], "undecided")],
)
def test_lower_error_counts_only_from_a_quarter_less(greedy, verdict):
    rows = masked("ID cond", 0.7, greedy, 0.1) + masked("He normal", 0.7, greedy, 0.1)
    assert decided(masks.PART.claims(pd.DataFrame(rows)), "three quarters").verdict == verdict
