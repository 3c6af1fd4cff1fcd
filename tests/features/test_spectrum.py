"""The law of singular values (Random features, Theorem 2.2), by quadrature and simulation."""

import numpy as np
import pytest
from scipy import integrate

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.studies.random_features.feature_matrices import normalized_matrix


@pytest.mark.parametrize("aspect", [0.25, 0.8, 1.0, 1.2, 3.0])
def test_law_is_a_probability_with_the_matrix_second_moment(aspect):
    """The mean of x² over min(n, c1) values is ‖M‖² / min(n, c1) = max(1, λ)."""
    low, high = spectrum.edges(aspect)
    mass, _ = integrate.quad(
        lambda x: float(spectrum.density(np.array([x]), aspect)[0]), low, high, limit=200
    )
    second, _ = integrate.quad(
        lambda x: x * x * float(spectrum.density(np.array([x]), aspect)[0]), low, high, limit=200
    )
    assert mass == pytest.approx(1, abs=1e-6)
    assert second == pytest.approx(max(1, aspect), rel=1e-6)


@pytest.mark.parametrize("aspect", [0.5, 1.0, 1.3])
def test_distribution_and_quantile_are_the_integral_and_its_inverse(aspect):
    low, high = spectrum.edges(aspect)
    for x in np.linspace(low + 1e-3, high - 1e-3, 7):
        integral, _ = integrate.quad(
            lambda t: float(spectrum.density(np.array([t]), aspect)[0]), low, x, limit=200
        )
        assert spectrum.distribution(np.array([x]), aspect)[0] == pytest.approx(integral, abs=1e-6)
    shares = np.linspace(0.01, 0.99, 9)
    np.testing.assert_allclose(
        spectrum.distribution(spectrum.quantile(shares, aspect), aspect), shares, atol=1e-9
    )


@pytest.mark.parametrize(
    ("name", "far"),
    [("He normal", 0.03), ("orthogonal", 0.03), ("ER sign", 0.03), ("ER normal", 0.08)],
)
def test_feature_matrices_follow_the_law(name, far):
    """Entries of M are dependent products; the law is a limit. n = 900, at c1 = n and 1.2 n."""
    for aspect in (1.0, 1.2):
        matrix = normalized_matrix(name, LayerShape(30, 30), round(aspect * 900), seed=0)
        distance = spectrum.distance(np.linalg.svd(matrix.numpy(), compute_uv=False), aspect)
        assert distance < far


def test_printed_edges_are_wrong_below_n_features():
    """c1 = 0.8 n, entries of variance 1/n; printed: |1 ∓ sqrt(n/c1)|, 0.118 and 2.118."""
    n, width = 1000, 800
    matrix = np.random.default_rng(0).normal(0, n**-0.5, (n, width))
    values = np.linalg.svd(matrix, compute_uv=False)
    assert spectrum.distance(values, width / n) < 0.01
    assert spectrum.distance(values, n / width) > 0.06
    assert spectrum.edges(n / width)[1] - values[0] > 0.2


@pytest.mark.parametrize(("size", "near"), [(20, 0.11), (40, 0.06)])
def test_uncentred_weights_follow_the_law_on_another_scale(size, near):
    """docs/errata.md, entry 8: mean and deviation 1 in both factors, c0 = c2, c1 = n."""
    n, rng = size**2, np.random.default_rng(0)
    first, second = rng.normal(1, 1, (2, n, size))
    matrix = np.einsum("ki,kj->ijk", second, first).reshape(n, n)
    variance = 2**2 - 1  # of b a, where E b² = E a² = 2
    values = np.linalg.svd(matrix / np.sqrt(n * variance), compute_uv=False)
    assert 0.26 < spectrum.distance(values, 1.0) < 0.31
    assert spectrum.distance(values * np.sqrt(1 + 2), 1.0) < near


@pytest.mark.parametrize("condition", [2, 1541601, 1e9])
def test_quantiles_reach_both_edges(condition):
    low, high = spectrum.quantile(np.array([0.0, 1.0]), spectrum.aspect_of_condition(condition))
    assert high / low == pytest.approx(condition, rel=1e-6)


@pytest.mark.parametrize("condition", [1.5, 5413, 10123, 1541601])
def test_aspects_give_the_requested_condition_numbers(condition):
    aspect = spectrum.aspect_of_condition(condition)
    assert aspect < 1
    assert spectrum.condition_of_aspect(aspect) == pytest.approx(condition, rel=1e-6)
    assert spectrum.condition_of_aspect(1 / aspect) == pytest.approx(condition, rel=1e-6)
