"""Paired differences match the paired t-test; verdicts follow only from intervals."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.intervals import (
    decide,
    decide_within,
    differences_by_seed,
    geometric_mean,
    paired_difference,
    paired_difference_by,
    with_values,
)

ABOVE, BELOW, AROUND = Interval(2.0, 0.5, 3), Interval(-1.0, 0.5, 3), Interval(0.4, 0.5, 3)


def random_rows(seeds, generator):
    """Errors that differ between seeds by much more than the compared effect."""
    by_seed = 10.0 * np.asarray(seeds)
    return pd.DataFrame({"seed": seeds, "error": by_seed + generator.normal(size=len(seeds))})


@pytest.mark.parametrize(("count", "confidence"), [(2, 0.95), (3, 0.95), (7, 0.99), (40, 0.5)])
def test_paired_difference_matches_the_paired_t_test(count, confidence):
    generator = np.random.default_rng(count)
    left = random_rows(range(count), generator)
    right = random_rows(generator.permutation(count), generator)
    interval = paired_difference(left, right, "error", confidence)
    matched = right.set_index("seed").loc[left["seed"], "error"]
    expected = stats.ttest_rel(left["error"], matched).confidence_interval(confidence)
    assert interval.ends == pytest.approx((expected.low, expected.high), rel=1e-7)
    assert interval.n == count


def test_only_seeds_with_values_on_both_sides_are_paired():
    generator = np.random.default_rng(0)
    left, right = random_rows([0, 1, 2, 3], generator), random_rows([5, 3, 2, 1], generator)
    right.loc[right["seed"] == 2, "error"] = math.nan
    differences = differences_by_seed(left, right, "error")
    assert sorted(differences.index) == [1, 3]
    assert paired_difference(left, right, "error").n == 2
    assert paired_difference(left, right[:1], "error") is None
    assert paired_difference(left[:0], right, "error") is None


def test_rows_of_a_seed_are_averaged_before_pairing():
    generator = np.random.default_rng(1)
    left, right = (random_rows([0, 0, 0, 1, 1, 2], generator) for _ in range(2))
    means = [rows.groupby("seed", as_index=False).mean() for rows in (left, right)]
    assert paired_difference(left, right, "error") == paired_difference(*means, "error")


@pytest.mark.parametrize("dtype", [float, object])
@pytest.mark.parametrize("values", [("a", "b"), (False, True), (1.0, 4.0)])
def test_column_selects_the_compared_rows(values, dtype):
    generator = np.random.default_rng(2)
    sides = [random_rows(range(3), generator).assign(kind=value) for value in values]
    rows = pd.concat([*sides, sides[0].assign(kind="another")]).astype({"error": dtype})
    expected = paired_difference(*sides, "error")
    assert paired_difference_by(rows, "kind", *values, "error") == expected
    assert paired_difference_by(rows, "kind", *values[::-1], "error") == -expected
    assert paired_difference_by(rows, "kind", values[0], "missing", "error") is None


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_geometric_mean_has_the_t_interval_of_the_logarithms(count):
    values = np.exp(np.random.default_rng(count).normal(-5, 2, count))
    interval = geometric_mean(values)
    assert interval.mean == pytest.approx(stats.gmean(values), rel=1e-12)
    if count > 1:
        logs = np.log(values)
        expected = np.exp(stats.t.interval(0.95, count - 1, logs.mean(), stats.sem(logs)))
        assert interval.ends == pytest.approx(tuple(expected), rel=1e-9)
        low, high = (f"{end:.1e}" for end in interval.ends)
        assert f"{interval:.1e}" == f"{interval.mean:.1e} ({low} to {high})"
    else:
        assert f"{interval:.1e}" == f"{values[0]:.1e}"


def test_geometric_mean_needs_positive_values_or_a_floor():
    for values in ([1.0, 0.0], [1.0, -1.0], []):
        with pytest.raises(ValueError, match=r"math domain|positive|no values"):
            geometric_mean(values)
    assert geometric_mean([1.0, 0.0], floor=1e-300).mean == pytest.approx(1e-150)
    assert geometric_mean([4e-6, 9e-6], floor=1e-6).mean == pytest.approx(6e-6, rel=1e-12)
    low, high = geometric_mean([1e-300, 1e300]).ends
    assert (low, high) == (0, math.inf)  # without an overflow error


@pytest.mark.parametrize(
    ("intervals", "above", "within"),
    [
        ([ABOVE, None], "undecided", "contradicted"),
        ([BELOW, None], "contradicted", "undecided"),
        ([AROUND, None], "undecided", "undecided"),
        ([Interval(2.0, None, 1)], "undecided", "undecided"),
        ([Interval(0.5, 0.0, 2)], "undecided", "undecided"),
        ([Interval(0.5, 0.0, 3)], "confirmed", "confirmed"),  # no spread, no uncertainty
        ([], "undecided", "undecided"),
    ],
)
def test_intervals_decide_on_all_above_0_and_all_within_a_margin(intervals, above, within):
    assert decide(intervals) == decide(iter(intervals)) == above
    assert decide_within(intervals, 1.0) == within


@pytest.mark.parametrize("least", [2, 3, 4])
def test_fewer_values_than_required_decide_nothing(least):
    few, enough = (Interval(1.0, 0.5, n) for n in (least - 1, least))
    assert (decide([few], least), decide([enough], least)) == ("undecided", "confirmed")
    assert (decide([-few], least), decide([-enough], least)) == ("undecided", "contradicted")
    assert decide([few, enough], least) == "undecided"
    assert with_values([few, enough, None], least) == [enough]


def test_interval_not_computed_yet_counts_as_a_comparison():
    """Alone, -0.6 ± 0.5 is below 0; as one of two it is widened to ± 0.72."""
    below = Interval(-0.6, 0.5, 3)
    assert decide([below]) == "contradicted"
    assert decide([below, ABOVE]) == decide([below, None]) == "undecided"


@pytest.mark.parametrize("pair", [*itertools.product([-2.0, -0.25, 0.0, 0.25, 2.0], repeat=2)])
def test_verdict_follows_from_the_values_in_the_intervals(pair):
    """All of them agree with the statement, those of one interval contradict it, or neither."""
    intervals, margin = [Interval(mean, 1.0, 3) for mean in pair], 1.125
    allowed = [np.linspace(mean - 1, mean + 1, 17) for mean in pair]
    for verdict, agreeing in (
        (decide(intervals), [values > 0 for values in allowed]),
        (decide_within(intervals, margin), [abs(values) < margin for values in allowed]),
    ):
        if np.all(agreeing):
            assert verdict == "confirmed"
        elif any(not part.any() for part in agreeing):
            assert verdict == "contradicted"
        else:
            assert verdict == "undecided"
