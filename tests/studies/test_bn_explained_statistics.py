"""Batch normalization explained: the statistics of mini-batches (Proposition 2, Figure 7)."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

from bnrecon.studies.bn_explained import batch_statistics, figure7, proposition2

SKEW = np.array([0.0, 1.0, 5.0, 7.0, 8.5, 8.5, -20.0])


def all_batches(values, batch):
    return np.array(list(itertools.product(values, repeat=batch)))


def fourth_moment(values):
    return ((values - values.mean()) ** 4).mean()


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_equation_13_needs_the_unbiased_variance(batch):
    """All mini-batches of a skew distribution on three values, exact."""
    values = SKEW[:3]
    variance = values.var()
    batches = all_batches(values, batch)
    printed = batch_statistics.variance_of_variance(variance, fourth_moment(values), batch)
    assert batches.var(1, ddof=1).var() == pytest.approx(printed)
    assert batches.var(1).var() == pytest.approx(printed * batch_statistics.biased(batch))
    assert batches.mean(1).var() == pytest.approx(variance / batch)


def test_variance_of_the_mean_needs_no_diagonal_covariance():
    """Proposition 2: var(μ) = wᵀ Σ w / B for inputs of any covariance Σ and mean, exact."""
    points, w = np.array([[1.0, 2.0], [3.0, 5.0], [-2.0, 0.5]]), np.array([2.0, -1.0])
    covariance = np.cov(points.T, ddof=0)
    assert abs(covariance[0, 1]) > 1
    for batch in (2, 3):
        means = np.array([np.mean(choice) for choice in all_batches(points @ w, batch)])
        assert means.var() == pytest.approx(w @ covariance @ w / batch)
        assert means.var() != pytest.approx(w**2 @ np.diag(covariance) / batch, rel=0.1)


def test_counterexample_to_equation_13():
    """With z = ±1 and B = 2, sigma² is 0 or 1 with variance 1/4; Eq. 13 says 1."""
    row = proposition2.enumerate_batches(2).iloc[0]
    assert row["measured_variance"] == 0.25
    assert row["predicted_variance"] == 1
    assert sorted(all_batches([-1, 1], 2).var(1)) == [0, 0, 1, 1]


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_sampling_without_replacement_has_smaller_variances(batch):
    """All mini-batches of seven numbers, exact."""
    drawn = np.array(list(itertools.combinations(SKEW, batch)))
    expected = SKEW.var() / batch * batch_statistics.finite_population(batch, len(SKEW))
    assert drawn.mean(1).var() == pytest.approx(expected)
    exact = batch_statistics.variance_of_drawn_variance(
        SKEW.var(), fourth_moment(SKEW), batch, len(SKEW)
    )
    assert drawn.var(1, ddof=1).var() == pytest.approx(exact)


def test_measured_moments_are_those_of_the_mini_batches():
    batches = np.random.Generator(np.random.Philox(0)).exponential(size=(40_000, 4)) + 2
    chunks = iter(np.split(batches, range(8192, 40_000, 8192)))
    measured = batch_statistics.measure_statistics(lambda _size: next(chunks), 4, 40_000)
    assert measured["own_variance"] == pytest.approx(batches.var())
    assert measured["own_fourth"] == pytest.approx(fourth_moment(batches))
    assert measured["measured_mean"] == pytest.approx(batches.mean(1).var(ddof=1))
    assert measured["measured_variance"] == pytest.approx(batches.var(1).var(ddof=1))
    halves = [part.mean(1).var() for part in np.split(batches, 100)]
    assert measured["mean_error"] == pytest.approx(np.std(halves) / 10, rel=0.3)


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
def test_counterexample_to_equation_13_above_a_normalized_layer(slope):
    """B = 2: h is (1, -1) or (-1, 1) in every mini-batch, so mu and sigma² never vary."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.BatchNorm1d(1, eps=1e-20), nn.LeakyReLU(slope)).double().train()
    z = torch.stack([layer(torch.randn(2, 1, dtype=torch.float64)) for _ in range(20)])
    assert z.mean(1).detach().numpy() == pytest.approx((1 - slope) / 2)
    assert z.var(1, unbiased=False).detach().numpy() == pytest.approx(((1 + slope) / 2) ** 2)
    rho = z.var(unbiased=False).item()  # over all inputs, half of them 1, half -slope
    assert rho / 2 > 0.1


@pytest.mark.parametrize("slope", proposition2.ACTIVATIONS.values())
def test_share_of_equation_13_is_the_rest_of_the_activation(slope):
    """For large B: a(h) without its components along h and h² - 1, integrated numerically."""

    def expectation(function):
        return sum(
            quad(lambda h: function(h, max(h, 0) + slope * min(h, 0)) * norm.pdf(h), *half)[0]
            for half in ((-np.inf, 0), (0, np.inf))
        )

    mean = expectation(lambda _h, a: a)
    first = expectation(lambda h, a: a * h)
    second = expectation(lambda h, a: a * (h**2 - 1)) / 2
    whole = expectation(lambda _h, a: (a - mean) ** 2)
    rest = expectation(lambda h, a: (a - mean - first * h - second * (h**2 - 1)) ** 2)
    assert proposition2.share_of_equation_13(slope, 10**4) == pytest.approx(rest / whole, abs=1e-4)
    if slope == 0:
        assert rest == pytest.approx((1 - 3 / np.pi) / 4)


def test_mean_above_batch_normalization_varies_as_derived():
    torch.manual_seed(0)
    norm_layer = nn.BatchNorm1d(
        8 * 5000, eps=1e-20, affine=False
    ).double()  # 5000 mini-batches of 16
    z = norm_layer(torch.randn(16, 8 * 5000, dtype=torch.float64)).relu()
    weight = torch.randn(8, dtype=torch.float64)
    mu = (z.mean(0).reshape(5000, 8) * weight).sum(1)
    printed = weight.square().sum() * z.var() / 16
    assert (mu.var() / printed).item() == pytest.approx(
        proposition2.share_of_equation_13(0.0, 16), rel=0.1
    )


def test_geary_ratio_has_the_moments_of_normal_samples():
    h = np.random.Generator(np.random.Philox(0)).normal(size=(100_000, 5))
    ratio = np.abs(h - h.mean(1, keepdims=True)).mean(1) / h.std(1)
    mean, variance = proposition2.geary(5)
    assert ratio.mean() == pytest.approx(mean, abs=5 * (variance / 1e5) ** 0.5)
    assert ratio.var() == pytest.approx(variance, rel=0.05)


def rows_of(*frames):
    return pd.concat(frames, ignore_index=True)


def test_equation_13_fails_only_above_mini_batch_statistics():
    rows = proposition2.simulate_layer("ReLU", 16, 2000, 0)
    shared, fixed = (rows[rows["kind"] == kind] for kind in ("shared", "fixed"))
    assert proposition2.decide(rows)[0]["setting"] is False
    both_off = rows_of(shared, shared.assign(kind="fixed"))  # the control fails, too
    assert proposition2.decide(both_off)[0]["setting"] == "undecided"
    swapped = fixed.assign(kind="shared", expected_share=1.0)
    assert proposition2.decide(rows_of(swapped, fixed))[0]["setting"] is True


def test_setting_is_undecided_where_noise_hides_the_factor():
    rows = proposition2.enumerate_batches(2)
    verdicts, numbers = proposition2.decide(rows)
    assert verdicts["Proposition 2, Eq. 13, right"] == "needs a correction"
    assert (numbers["contradicted"], numbers["settings"], numbers["undecided"]) == (1, 1, 0)
    numbers = proposition2.decide(rows_of(rows, rows.assign(variance_error=1.0)))[1]
    assert (numbers["contradicted"], numbers["settings"], numbers["undecided"]) == (1, 2, 1)


def test_mean_variance_above_the_bound_is_detected():
    rows = proposition2.enumerate_batches(3)
    assert proposition2.PART.claims(rows)[0].verdict == "confirmed"
    assert proposition2.PART.claims(rows.assign(bound_mean=0.3))[0].verdict == "contradicted"


@pytest.fixture(scope="module")
def unit():
    return figure7.measure_unit(1, 4000, 20, 0)


def row_of(unit, kind, statistic):
    return unit[(unit["kind"] == kind) & (unit["statistic"] == statistic)].iloc[0]


def test_figure_7_uses_the_papers_numbers(unit):
    assert figure7.BATCH == 64
    assert row_of(unit, "independent", "mean")["predicted"] == pytest.approx(3 / 64, rel=0.15)
    for _, part in unit.groupby(["kind", "statistic"]):
        assert (part["density"] * (part["right"] - part["left"])).sum() == pytest.approx(1)


def test_figure_7_noise_has_the_moments_of_the_virtual_batch(unit):
    """The definition of controlled noise in NoisyBatchNorm2d."""
    for statistic in ("mean", "deviation"):
        noisy, real = (row_of(unit, kind, statistic) for kind in ("controlled", "virtual"))
        assert noisy["exact"] == real["exact"]
        assert noisy["variance"] == pytest.approx(real["variance"], rel=0.15)
        assert noisy["average"] == pytest.approx(real["average"], abs=0.02)
    assert figure7.measure_unit(1, 50, 5, 0).equals(figure7.measure_unit(1, 50, 5, 0))


def test_green_curves_have_the_variances_of_equation_13(unit):
    """Moments of the drawn densities, integrated numerically."""
    for statistic, power in (("mean", 1), ("deviation", 2)):
        values = np.linspace(-2, 5, 20_001)
        density = figure7._density(unit, 1, statistic, values)
        first, second = (np.trapezoid(values ** (n * power) * density, values) for n in (1, 2))
        row = row_of(unit, "independent", statistic)
        assert second - first**2 == pytest.approx(row["exact"], rel=1e-3)


def test_figure_7_verdicts_separate_printed_from_repaired(unit):
    def verdicts(error):
        exact = unit.assign(variance=unit["exact"], error=unit["exact"] * error)
        return [claim.verdict for claim in figure7.PART.claims(exact)]

    assert verdicts(0.005) == ["confirmed", "contradicted", "confirmed"]
    assert verdicts(0.05) == ["undecided", "undecided", "undecided"]  # noise hides the factors
    printed = unit.assign(variance=unit["predicted"], error=unit["exact"] * 0.005)
    assert figure7.PART.claims(printed)[1].verdict == "undecided"
    off = unit.assign(variance=1.05 * unit["predicted"], error=unit["exact"] * 0.005)
    assert figure7.PART.claims(off)[0].verdict == "contradicted"
