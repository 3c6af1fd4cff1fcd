"""Batch normalization explained: formulas against independent computations."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from bnrecon.studies.bn_explained import (
    proposition1,
    proposition3,
    theorem1,
    theorem2,
    theorem3,
)
from bnrecon.studies.bn_explained.small_networks import (
    SLOPES,
    Layer,
    SmallNetwork,
    activate,
    affine_pieces,
    draw_network,
    fold,
)
from bnrecon.studies.bn_explained.theorem3 import Fold, formula_angles, measured_angles


def make_generator(seed=0):
    return np.random.Generator(np.random.Philox(seed))


# Theorem 1, Eq. 7-9, Corollary 2


def test_distance_to_a_hyperplane():
    """Against the nearest point on the hyperplane by least squares."""
    generator = make_generator()
    points, weight = generator.normal(size=(6, 4)), generator.normal(size=(3, 4))
    threshold = generator.normal(size=3)
    computed = theorem1.distances(points, weight, threshold)
    for unit in range(3):
        on_plane = np.linalg.lstsq(weight[unit : unit + 1], threshold[unit : unit + 1])[0]
        basis = np.linalg.svd(weight[unit : unit + 1])[2][1:].T
        for number, point in enumerate(points):
            step = np.linalg.lstsq(basis, point - on_plane)[0]
            nearest = on_plane + basis @ step
            assert computed[number, unit] == pytest.approx(np.linalg.norm(point - nearest))


def test_equation_8_has_a_second_term_away_from_the_mean():
    """Its first equality holds for every μ, its second for μ = mean. Eq. 30 lacks the 1 / |Z|."""
    generator = make_generator(8)
    points, weight = generator.normal(size=(20, 3)), generator.normal(size=(2, 3))
    mean, deviation = theorem1.batch_moments(points, weight)
    norm = np.square(weight).sum(1)
    for offset in (-1.0, 0.0, 2.0):
        computed = theorem1.mean_squared_distances(points, weight, mean + offset)
        np.testing.assert_allclose(computed, (deviation**2 + offset**2) / norm)
    sums = np.square(theorem1.distances(points, weight, mean)).sum(0)
    np.testing.assert_allclose(sums, len(points) * deviation**2 / norm)


def test_wrong_mean_is_detected():
    generator = make_generator(2)
    points, weight = generator.normal(size=(30, 5)), generator.normal(size=(4, 5))
    mean, deviation = theorem1.batch_moments(points, weight)
    errors = theorem1.check_layer(points, weight, mean + 0.1 * deviation, generator)
    assert errors["minimizer_error"] == pytest.approx(0.1)
    assert errors["centre_error"] == pytest.approx(0.1)
    assert errors["value_error"] == pytest.approx(0.01)
    assert errors["excess_error"] > 1e-3


def test_sigma_may_vanish_for_inputs_not_orthogonal_to_w():
    """Sect. 2.2 asks only that not all inputs be orthogonal to w."""
    points, weight = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 0.0]])
    assert (points @ weight.T != 0).all()
    assert theorem1.batch_moments(points, weight)[1] == 0


def test_normalized_layers_match_the_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, stride=2, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3 * 4 * 4, 5, bias=False),
            nn.BatchNorm1d(5),
            nn.Linear(5, 2),
        ).double()
        images = torch.randn(6, 2, 8, 8, dtype=torch.float64)
        nn.init.normal_(network[1].bias)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    layers = theorem1.find_normalized_layers(network, images)
    assert [layer.name for layer in layers] == ["0", "4"]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    outputs = network[0](images).detach().permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    np.testing.assert_allclose(layers[0].points @ layers[0].weight.T, outputs, atol=1e-14)
    np.testing.assert_allclose(layers[0].batch_mean, outputs.mean(0), atol=1e-14)
    np.testing.assert_allclose(layers[0].batch_deviation, outputs.std(0), atol=1e-14)
    threshold = torch.tensor(layers[0].stored_threshold).reshape(1, 3, 1, 1)
    assert network[1].eval()(threshold).abs().max() < 1e-14


def test_feature_maps_have_no_common_point_with_channel_statistics():
    """Corollary 2 holds for patches; W z = mu at all positions of a channel has no solution z."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(12, 1, 3, 3, generator=generator, dtype=torch.float64)
    position = torch.linspace(0, 1, 64, dtype=torch.float64).reshape(8, 8)
    images = torch.rand(50, 1, 8, 8, generator=generator, dtype=torch.float64) + position
    conv = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)).double()
    conv[0].weight.data.copy_(weight)
    (layer,) = theorem1.find_normalized_layers(conv, images)
    errors = theorem1.check_layer(layer.points, layer.weight, layer.batch_mean, make_generator())
    assert errors["centre_error"] < 1e-12
    basis = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    rows = nn.functional.conv2d(basis, weight, padding=1).flatten(1).T.numpy()
    channels = np.repeat(layer.batch_mean, 64)
    assert np.linalg.lstsq(rows, channels)[1] > 0.1 * (channels**2).sum()
    elements = rows @ images.mean(0).flatten().numpy()  # with one mean per position
    np.testing.assert_allclose(
        nn.functional.conv2d(images, weight, padding=1).mean(0).flatten(), elements
    )


@pytest.mark.parametrize("padding", [0, 1])
def test_channel_mean_is_the_best_shared_threshold_only_without_padding(padding):
    """Theorem 1 over whole maps: sum of (<w, z> - t)² / ||w||², with w clipped to the map."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1, 1, 3, 3, generator=generator, dtype=torch.float64)
    images = torch.rand(50, 1, 8, 8, generator=generator, dtype=torch.float64)
    outputs = nn.functional.conv2d(images, weight, padding=padding)
    norms = nn.functional.conv2d(torch.ones_like(images[:1]), weight**2, padding=padding)
    best = (outputs / norms).sum() / (50 * (1 / norms).sum())
    assert (abs(float(best - outputs.mean())) < 1e-12) == (padding == 0)


def test_normalized_layer_with_a_bias_is_refused():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="no bias"):
        theorem1.find_normalized_layers(network, torch.randn(4, 2))


# Theorem 2, Corollary 1


@pytest.mark.parametrize("widths", [(6,), (4, 3)])
@pytest.mark.parametrize("activation", SLOPES)
def test_folded_lines_are_where_the_network_reaches_the_threshold(activation, widths):
    """Distances against sampled crossings of a fan of rays."""
    generator = make_generator(3)
    points = generator.normal(size=(32, 2))
    network = draw_network(points, widths, SLOPES[activation], generator)
    weight = generator.normal(size=widths[-1])
    threshold = float((network(points) @ weight).mean())
    segments = fold(affine_pieces(network), weight, threshold)
    along = np.clip(0.0, segments.low, segments.high)
    on = segments.origin + along[:, None] * segments.direction
    np.testing.assert_allclose(network(on) @ weight, threshold, atol=1e-12)
    x, distance = points[0], segments.distances(points[:1])[0]
    angles = np.linspace(0, 2 * np.pi, 2001)
    radii = np.linspace(0, 3 * distance, 1501)
    rays = np.stack([np.cos(angles), np.sin(angles)], 1)
    values = network((x + radii[:, None, None] * rays).reshape(-1, 2)) @ weight - threshold
    crossed = (values.reshape(1501, 2001) * values[0] <= 0).any(1)
    assert distance == pytest.approx(radii[crossed.argmax()], rel=5e-3)


def test_counterexample_to_theorem_2():
    """d(z, H) = 0.6 < 0.9 = d(z, H'), and d(x, F) = 5.1 > 0.9 = d(x, F')."""
    network, x, thresholds = theorem2.opposite_sides()
    batch = np.array([[-1.0, 0.0], [1.0, 0.0]])
    layer = network.layers[0]
    mean, deviation = theorem1.batch_moments(batch, layer.weight)
    assert (mean, deviation) == (layer.mean, layer.deviation)
    output = network(x[None])[0, 0]
    assert np.abs(thresholds - output) == pytest.approx([0.6, 0.9])
    for position, threshold in ((-5.0, thresholds[0]), (1.0, thresholds[1])):
        assert network(np.array([[position, 0.3]]))[0, 0] == pytest.approx(threshold)
    pair = theorem2.compare_pair(affine_pieces(network), np.ones(1), x, output, thresholds)
    assert (pair["near"], pair["far"]) == (pytest.approx(5.1), pytest.approx(0.9))
    assert not pair["same_side"]
    assert not pair["closer"]


def test_theorem_2_holds_on_one_side_of_z():
    """The path to the farther folded hyperplane crosses the nearer one."""
    rows = theorem2.compare_pairs("leaky ReLU", (5,), 5)
    assert rows["same_violated"].sum() == 0
    assert rows["same"].sum() > 50
    assert rows["other_violated"].sum() > 0
    counted = rows[["same", "same_empty", "other", "other_empty"]].sum(axis=1)
    assert (counted == theorem2.PAIRS).all()


def test_theorem_2_does_not_cover_unreachable_hyperplanes():
    row = theorem2.counterexamples().set_index("kind").loc["no input on F and F'"]
    assert row["same_side"]
    assert np.isinf([row["near"], row["far"]]).all()
    assert not row["closer"]


@pytest.mark.parametrize("widths", [(8,), (5, 5)])
@pytest.mark.parametrize("activation", SLOPES)
def test_distances_without_bias_are_distances_to_a_cone(activation, widths):
    """Without biases F consists of rays and sectors; compare with a scan of directions.

    Some of these networks have sectors where all ReLUs are off, and some have no ray at all.
    """
    angles = np.linspace(0, 2 * np.pi, 20001)
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    for seed in range(8):
        generator = make_generator(seed)
        points = generator.normal(size=(32, 2)) + 1
        network = draw_network(points, widths, SLOPES[activation], generator)
        weight = generator.normal(size=widths[-1])
        plain = theorem2.without_normalization(network)
        values = plain(circle) @ weight
        zero = angles[:-1][values[:-1] * values[1:] <= 0]
        between = np.subtract.outer(np.arctan2(*points.T[::-1]), zero)
        turn = np.abs((between + np.pi) % (2 * np.pi) - np.pi).min(1, initial=np.pi / 2)
        computed = theorem2.distances_with_zero_bias(plain, weight, points)
        expected = np.linalg.norm(points, axis=1) * np.sin(turn)
        np.testing.assert_allclose(computed, expected, atol=3e-3)


def test_no_facet_at_infinity_beside_a_parallel_half_plane():
    """With one ReLU on below it, a unit's line is parallel to the half-planes of layer 2."""
    for seed in range(10):
        generator = make_generator(seed)
        points = generator.normal(size=(64, 2))
        network = draw_network(points, (5, 5), 0.0, generator)
        weight, pieces = generator.normal(size=5), affine_pieces(network)
        outputs = network(points) @ weight
        for threshold in np.linspace(outputs.min(), outputs.max(), 20):
            segments = fold(pieces, weight, float(threshold))
            ends = np.stack([segments.low, segments.high])
            assert np.abs(ends[np.isfinite(ends)]).max(initial=0) < 1e9


# Theorem 3


@pytest.mark.parametrize("activation", ["leaky ReLU", "absolute value"])
def test_dihedral_angles_are_those_of_the_folded_lines(activation):
    """In the plane: the two segments that meet at a point of H, from the exact partition."""
    folded = theorem3.draw_fold(2, 6, SLOPES[activation], make_generator(4))
    pieces = affine_pieces(folded.network)
    threshold = float((folded.network(folded.point[None]) @ folded.weight)[0])
    segments = fold(pieces, folded.weight, threshold)
    ends = []
    for origin, direction, low, high in zip(
        segments.origin, segments.direction, segments.low, segments.high, strict=True
    ):
        for t, sign in ((low, 1), (high, -1)):
            if np.isfinite(t) and np.allclose(origin + t * direction, folded.point):
                ends.append(sign * direction)
    assert len(ends) == 2
    between = np.arccos(ends[0] @ ends[1])
    angles = formula_angles(folded)
    assert angles["repaired"] == pytest.approx(between, abs=1e-7)
    normal = folded.network.layers[0].weight[folded.unit]
    to_plane = sorted(np.arcsin(abs(end @ normal) / np.linalg.norm(normal)) for end in ends)
    assert sorted([angles["eq24"], angles["eq25"]]) == pytest.approx(to_plane, abs=1e-7)


@pytest.mark.parametrize("inputs", [2, 3, 12])
def test_measured_angles_match_the_repaired_formula_not_the_printed(inputs):
    for seed in range(5):
        folded = theorem3.draw_fold(inputs, 8, 0.1, make_generator(seed))
        formula, measured = formula_angles(folded), measured_angles(folded)
        assert formula["eq24"] == pytest.approx(measured["measured24"])
        assert formula["eq25"] == pytest.approx(measured["measured25"])
        assert formula["repaired"] == pytest.approx(measured["measured26"])
        supplement = min(formula["repaired"], np.pi - formula["repaired"])
        assert formula["eq26"] == pytest.approx(supplement)


def test_counterexample_to_equation_26():
    network = SmallNetwork((Layer(np.eye(2), np.zeros(2), np.ones(2)),), 0.5)
    folded = Fold(network, np.ones(2), 0, np.array([0.0, 1.0]))
    angle = np.pi - np.arccos(1.5 / np.sqrt(2.5))
    assert measured_angles(folded)["measured26"] == pytest.approx(angle)
    formula = formula_angles(folded)
    assert (formula["repaired"], formula["eq26"]) == pytest.approx((angle, np.pi - angle))


def test_without_a_fold_the_angle_is_pi_and_equation_26_gives_zero():
    folded = theorem3.draw_fold(3, 4, 1.0, make_generator(5))  # slope 1: nothing is folded
    formula = formula_angles(Fold(folded.network, folded.weight, folded.unit, folded.point))
    assert formula["repaired"] == pytest.approx(np.pi)
    assert measured_angles(folded)["measured26"] == pytest.approx(np.pi)
    assert formula["eq26"] == pytest.approx(0, abs=1e-7)


# Propositions


@pytest.mark.parametrize("activation", ["ReLU", "leaky ReLU"])
def test_small_sigma_aligns_both_facets_of_leaky_relu_and_one_of_relu(activation):
    """Erratum 26, with the sigma of one unit multiplied by 1e-4."""
    rows = theorem3.vary_sigma(activation, 20).set_index(["seed", "factor"])
    small, as_drawn = (rows.xs(factor, level="factor") for factor in (1e-4, 1.0))
    assert (small["eq24"] < 0.1).all()
    if activation == "ReLU":
        np.testing.assert_allclose(small["eq25"], as_drawn["eq25"])
        assert as_drawn["eq25"].median() > 0.5
    else:
        assert (small["eq25"] < 0.1).all()


def test_next_weights_cannot_absorb_a_negative_scale():
    """ReLU(-u) is constant for u > 0; v ReLU(u + b) is constant below, for every v and b."""
    u = np.linspace(-3, 3, 7)
    scaled = np.maximum(-u, 0)
    assert np.ptp(scaled[u > 0]) == 0
    assert np.ptp(scaled[u < 0]) > 0
    for v, b in itertools.product((-2.0, -1.0, 1.0), (-1.0, 0.0, 1.0)):
        assert np.abs(v * np.maximum(u + b, 0) - scaled).max() > 0.5


def test_unit_scales_multiply_columns_of_the_next_weights():
    """Appendix D says rows."""
    generator = make_generator(9)
    u, scale = generator.normal(size=4), generator.uniform(0.5, 2, size=4)
    following = generator.normal(size=(4, 4))
    wanted = following @ np.maximum(scale * u, 0)
    np.testing.assert_allclose((following * scale) @ np.maximum(u, 0), wanted)
    assert np.abs((following * scale[:, None]) @ np.maximum(u, 0) - wanted).max() > 1e-2


@pytest.mark.parametrize("activation", proposition1.ACTIVATIONS)
def test_own_weights_absorb_signs_which_the_absolute_value_does_not_need(activation):
    network = proposition1.draw_network(activation, "of both signs", 0)
    points = torch.randn(32, proposition1.INPUTS, dtype=torch.float64)
    absorbed = proposition1.absorb_with_signs(network)
    assert (absorbed.norm1.weight == 1).all()
    assert (network.norm1.weight < 0).any()
    with torch.no_grad():
        torch.testing.assert_close(absorbed(points), network(points))
        printed = proposition1.absorb_as_printed(network)
        assert (printed(points) - network(points)).abs().max() > 0.1
        sizes = proposition1.absorb_sizes(network)(points)
        assert torch.allclose(sizes, network(points)) == (activation == "absolute value")


def test_bias_of_equation_18_needs_the_units_own_activation():
    """B = sum of (Q_l W_l ... Q_(i+1) W_(i+1)) Q_i b_i; Eq. 18 has no Q_i."""
    generator = make_generator(6)
    weights = [generator.normal(size=(3, 3)) for _ in range(2)]
    biases, x = [generator.normal(size=3) for _ in range(2)], generator.normal(size=3)
    z, slope, bias, printed = x, np.eye(3), np.zeros(3), np.zeros(3)
    for w, b in zip(weights, biases, strict=True):
        q = np.diag(np.where(w @ z + b > 0, 1.0, 0.1))
        z, slope = q @ (w @ z + b), q @ w @ slope
        bias, printed = q @ w @ bias + q @ b, q @ w @ printed + b
    np.testing.assert_allclose(slope @ x + bias, z)
    assert np.abs(slope @ x + printed - z).max() > 0.1


def test_printed_leaky_relu_is_not_linear_below_zero():
    """Sect. 2.2 writes max(alpha, u); leaky ReLU is max(alpha u, u)."""
    u = np.array([-2.0, -1.0, 3.0])
    expected = nn.functional.leaky_relu(torch.tensor(u), 0.1).numpy()
    np.testing.assert_array_equal(np.maximum(0.1 * u, u), expected)
    np.testing.assert_array_equal(activate(u, 0.1), expected)
    assert np.ptp(np.maximum(0.1, u)[:2]) == 0


def test_counterexample_to_proposition_3_in_pytorch():
    batch = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2), nn.LeakyReLU(0.1))
    network.double().train()
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(2))
        outputs = network(batch) @ torch.ones(2, dtype=torch.float64)
    assert (outputs > 0).all()
    torch.testing.assert_close(
        outputs, torch.full((2,), 0.9, dtype=torch.float64), atol=1e-5, rtol=0
    )
    assert proposition3.counterexample()["one_sided"].item() == 1


def test_centred_leaky_relu_has_the_mean_of_the_caption():
    """Mean of a(h) = (1 - alpha) E|h| / 2 for a centred h."""
    h = make_generator().normal(size=1000)
    h -= h.mean()
    assert activate(h, 0.1).mean() == pytest.approx(0.9 * np.abs(h).mean() / 2)


def test_proposition_3_holds_for_one_input_of_the_last_layer():
    rows = proposition3.count_one_sided(3, 1, 4, 20)
    assert rows["one_sided"].item() == 0


@pytest.mark.parametrize(
    ("nearer", "verdict"),
    [((9, 8, 9, 7), "confirmed"), ((5, 6, 5, 7), "undecided"), ((2, 1, 2), "contradicted")],
)
def test_translation_claim_counts_each_seed_once(nearer, verdict):
    rows = [(seed, unit < count) for seed, count in enumerate(nearer) for unit in range(10)]
    assert theorem2._towards(pd.DataFrame(rows, columns=["seed", "nearer_than_zero"])) == verdict
