"""Figures 1, 2 and 9: partitions, distances and statistics against grids and closed forms."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial import Delaunay

from bnrecon.partition import partition
from bnrecon.reporting.statistics import mean_interval
from bnrecon.studies.bn_explained import figure1, figure2, figure9
from bnrecon.studies.bn_explained.planar import (
    SETTINGS,
    SLOPE,
    distances_to,
    draw_clusters,
    draw_layers,
    hull,
    square,
)
from bnrecon.studies.bn_explained.small_networks import Layer, SmallNetwork, affine_pieces, fold


def signs(layers, points):
    """Whether each unit is positive at points (n, 2): (n, units), computed by the modules."""
    values, positive = torch.as_tensor(points), []
    with torch.no_grad():
        for layer in layers:
            values = layer(values)
            positive.append(values > 0)  # leaky ReLU keeps the sign
    return torch.cat(positive, 1).numpy()


def grid(window, side):
    """Grid points inside a convex window (k, 2)."""
    low, high = window.min(0), window.max(0)
    axes = [np.linspace(a, b, side + 2)[1:-1] for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    edges = np.roll(window, -1, 0) - window
    beside = points[:, None] - window
    cross = edges[:, 0] * beside[..., 1] - edges[:, 1] * beside[..., 0]
    return points[(cross > 0).all(1)]


# Figure 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_lines_and_regions_of_the_hull_match_a_grid(setting):
    """A grid misses small regions but never sees one that does not exist."""
    points = draw_clusters(1)
    layers = draw_layers((6, 6), setting, points, 1)
    inside = np.concatenate([grid(hull(points).window, 300), points[:1]])
    seen = signs(layers, inside)
    parts = partition(layers, hull(points))
    crossed = {(int(a), int(b)) for a, b in zip(parts.folds.layer, parts.folds.unit, strict=True)}
    both = seen.any(0) & ~seen.all(0)
    assert {(unit // 6, unit % 6) for unit in np.flatnonzero(both)} == crossed
    patterns = len(np.unique(seen, axis=0))
    assert 0.8 * len(parts.regions) <= patterns <= len(parts.regions)


def test_bn_puts_data_on_both_sides_of_every_unit():
    for seed in range(10):
        points = draw_clusters(seed)
        positive = signs(draw_layers(figure1.WIDTHS, "BN", points, seed), points)
        assert (positive.any(0) & ~positive.all(0)).all()
    rows = figure1.measure(0)
    assert (rows.loc[rows["setting"] == "BN", "lines"] == 6).all()
    assert (rows.loc[rows["setting"] == "random bias", "lines"] < 6).any()


def small_network(layers):
    """The same network for computing folded lines from all sign patterns."""
    parts = [
        Layer(
            layers.get_parameter(f"{index}.0.weight").detach().numpy(),
            layers.get_buffer(f"{index}.1.running_mean").numpy(),
            layers.get_buffer(f"{index}.1.running_var").sqrt().numpy(),
        )
        for index in range(len(layers))
    ]
    return SmallNetwork(tuple(parts), SLOPE)


def test_distances_to_folded_lines_match_all_sign_patterns():
    points = draw_clusters(4)
    layers = draw_layers((5, 4, 3), "BN", points, 4)
    last = small_network(layers).layers[-1]
    pieces = affine_pieces(small_network(layers[:2]))
    folds = partition(layers, square((0.0, 0.0), 20.0)).folds
    for unit in range(3):
        expected = fold(pieces, last.weight[unit], last.mean[unit]).distances(points)
        np.testing.assert_allclose(
            distances_to(points, folds.of(2, unit).ends), expected, atol=1e-12
        )


def test_layer_1_distance_is_equation_7():
    points = draw_clusters(0)
    layers = draw_layers(figure1.WIDTHS, "random bias", points, 0)
    weight = layers.get_parameter("0.0.weight").detach().numpy()
    bias = layers.get_parameter("0.0.bias").detach().numpy()
    lengths = np.abs(points @ weight.T + bias) / np.linalg.norm(weight, axis=1)
    rows = figure1.measure(0).set_index(["offset", "setting", "layer"])
    distance = rows.loc[(0.0, "random bias", 1), "distance"]
    assert distance == pytest.approx(np.median(lengths.min(1)))
    # The data's mean is 0: zero bias has the lines of BN.
    same = [rows.loc[(0.0, setting, 1), "distance"] for setting in ("zero bias", "BN")]
    assert same[0] == pytest.approx(same[1])


def test_one_layer_with_bn_makes_two_regions_per_line():
    rows = figure1.measure_widths(0)
    single = rows[(rows["depth"] == 1) & (rows["setting"] == "BN")]
    assert set(single["offset"]) == {0, 3}
    assert (single["regions"] == 2 * single["width"]).all()


def lines_and_crossings(layers, points):
    """The number of lines of one layer that meet the data's hull, and of their crossings in it."""
    weight, bias = (part.detach().numpy() for part in layers[0][0].parameters())
    values = points @ weight.T + bias
    lines = ((values > 0).any(0) & (values < 0).any(0)).sum()
    pairs = np.array(list(itertools.combinations(range(len(bias)), 2)))
    crossings = np.linalg.solve(weight[pairs], -bias[pairs][..., None])[..., 0]
    return lines, (Delaunay(points).find_simplex(crossings) >= 0).sum()


@pytest.mark.parametrize("offset", figure1.OFFSETS)
def test_random_lines_add_one_region_per_line_and_crossing_in_the_hull(offset):
    points = draw_clusters(0, offset=offset)
    assert np.linalg.norm(points.mean(0)) == pytest.approx(offset)
    for seed in range(5):
        layers = draw_layers((12,), "random bias", points, seed)
        lines, crossings = lines_and_crossings(layers, points)
        assert len(partition(layers, hull(points)).regions) == 1 + lines + crossings


def test_enough_random_lines_make_more_regions_than_bn_anywhere():
    """With few units it depends on the position of the data."""
    more = {}
    for offset, width in itertools.product((0.0, 3.0), (6, 150)):
        points = draw_clusters(2, offset=offset)
        counts = [
            len(partition(draw_layers((width,), "random bias", points, seed), hull(points)).regions)
            for seed in range(3)
        ]
        more[offset, width] = np.mean(counts) > 2 * width
    assert more[0.0, 150]
    assert more[3.0, 150]
    assert not more[3.0, 6]


def compared(ratio, spread, setting, alike):
    """Rows of figure 1 in which BN's distance is ``ratio`` times the other, up to noise.

    At the offset and layer ``alike`` the two are equal.
    """
    noise = np.random.default_rng(0).normal(size=(2, 10))
    rows = []
    for offset, layer, seed in np.ndindex(2, 4, 10):
        for name, value in ((setting, 1.0), ("BN", ratio)):
            row = {"kind": "network", "offset": 3.0 * offset, "layer": layer + 1, "seed": seed}
            distance = value * np.exp(spread * noise[int(name == "BN"), seed])
            if (row["offset"], row["layer"]) == alike:
                distance = 1.0
            rows.append(row | {"setting": name, "distance": distance})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("ratio", "spread", "setting", "alike", "verdict"),
    [
        (0.5, 0.01, "random bias", None, "confirmed"),
        (0.98, 1.0, "random bias", None, "undecided"),
        (2.0, 0.01, "random bias", None, "contradicted"),
        (0.5, 0.01, "zero bias", (0.0, 1), "confirmed"),  # where both have the same lines
        (0.5, 0.01, "zero bias", (0.0, 2), "undecided"),
        (0.5, 0.01, "random bias", (0.0, 1), "undecided"),
    ],
)
def test_neither_noise_nor_equality_confirms(ratio, spread, setting, alike, verdict):
    rows = compared(ratio, spread, setting, alike)
    assert figure1._compare(rows, "distance", setting, (1, 2, 3, 4))[0] == verdict


# Figure 2


@pytest.fixture(scope="module")
def two_layers():
    points = draw_clusters(3)
    return points, draw_layers((8, 8), "BN", points, 3)


def test_mu_moves_the_hyperplane_by_equation_5(two_layers):
    points, layers = two_layers
    plane = figure2.feature_slice(layers, points)
    weight = layers.get_parameter("1.0.weight")[figure2.UNIT].detach()
    mean = float(layers.get_buffer("1.1.running_mean")[figure2.UNIT])
    for shift in (-0.3, 0.0, 0.3):
        line = figure2.unit_line(figure2.adjusted(layers, shift=shift), plane)
        assert len(line) == 1
        inputs = plane.inputs(line.ends[0])
        assert (inputs @ weight).numpy() == pytest.approx(mean + shift, abs=1e-12)


def test_sigma_of_layer_1_folds_without_moving_layer_1_or_points_on_its_hyperplane(two_layers):
    """By the signs on a grid, and by the changed network's values on the old line."""
    _, layers = two_layers
    one = np.where(np.arange(8) == 2, 4.0, 1.0)
    changed = figure2.adjusted(layers, sigma1=one)
    points = grid(square((0.0, 0.0), figure2.REACH).window, 101)
    before, after = signs(layers, points), signs(changed, points)
    assert (before[:, :8] == after[:, :8]).all()
    assert (before[:, 8 + figure2.UNIT] != after[:, 8 + figure2.UNIT]).mean() > 0.005
    plane = square((0.0, 0.0), figure2.REACH)
    corners = figure2.folded_line(layers, plane).ends.reshape(-1, 2)
    weight = layers.get_parameter("0.0.weight").detach().numpy()
    mean = layers.get_buffer("0.1.running_mean").numpy()
    on_unit = np.abs(corners @ weight[2] - mean[2]) < 1e-9
    assert on_unit.sum() >= 2
    with torch.no_grad():
        values = changed(torch.from_numpy(corners))[:, figure2.UNIT].numpy()
    assert np.abs(values[on_unit]).max() < 1e-12
    assert np.abs(values[~on_unit]).max() > 1e-2


def test_common_factor_of_sigma_1_only_translates(two_layers):
    _, layers = two_layers
    mean = float(layers.get_buffer("1.1.running_mean")[figure2.UNIT])
    points = grid(square((0.0, 0.0), figure2.REACH).window, 101)
    scaled = signs(figure2.adjusted(layers, sigma1=2.0), points)
    shifted = signs(figure2.adjusted(layers, shift=mean), points)
    assert (scaled[:, 8 + figure2.UNIT] == shifted[:, 8 + figure2.UNIT]).all()
    assert (scaled[:, 8 + figure2.UNIT] != signs(layers, points)[:, 8 + figure2.UNIT]).any()


def test_sigma_of_layer_2_keeps_its_own_partition(two_layers):
    _, layers = two_layers
    points = grid(square((0.0, 0.0), figure2.REACH).window, 101)
    assert (signs(layers, points) == signs(figure2.adjusted(layers, sigma2=3.0), points)).all()


def test_figure_2_checks_are_not_vacuous(monkeypatch):
    """If layer 1's means changed too, the folds would leave its old hyperplanes."""
    row = figure2.check(0).iloc[0]
    assert row["folded_pairs"] > 0
    assert row["pivots"] > 0
    assert row[["own_turned", "folded_turned", "layer1_moved", "pivots_moved"]].max() < 1e-10

    adjusted = figure2.adjusted

    def moving(layers, *, shift=0.0, sigma1=1.0, sigma2=1.0):
        changed = adjusted(layers, shift=shift, sigma1=sigma1, sigma2=sigma2)
        changed.get_buffer("0.1.running_mean").add_(0.1)
        return changed

    monkeypatch.setattr(figure2, "adjusted", moving)
    wrong = figure2.check(0).iloc[0]
    assert wrong[["off_layer1", "layer1_moved", "off_layer1_sigma", "own_sigma"]].min() > 1e-3


# Figure 9


@pytest.fixture(scope="module")
def trained():
    points, labels = figure9.draw_moons(5)
    layers = draw_layers((8, 8, 8), "BN", points, 5)
    before = layers.get_parameter("2.0.weight").detach().clone()
    figure9.train(layers, points, labels, 5)
    assert (layers.get_parameter("2.0.weight") - before).abs().max() > 1e-2
    return points, layers


def test_error_is_the_mean_squared_distance_in_the_layer_inputs(trained):
    points, layers = trained
    folds = partition(layers, square((0.0, 0.0), 10.0)).folds
    units = figure9.measure_units(layers, points, folds)
    network = small_network(layers)
    for index, layer in enumerate(network.layers):
        inputs = SmallNetwork(network.layers[:index], SLOPE)(points)
        outputs = inputs @ layer.weight.T
        expected = outputs.var(0) / (layer.weight**2).sum(1)
        of_layer = units[units["layer"] == index + 1]
        np.testing.assert_allclose(of_layer["tls"], expected, rtol=1e-10)
        np.testing.assert_allclose(of_layer["own"], expected, rtol=1e-10)
    first = units[units["layer"] == 1]
    np.testing.assert_allclose(first["plane"], first["tls"], rtol=1e-10)


def test_input_space_distances_match_sign_changes_on_a_grid(trained):
    points, layers = trained
    side, reach = 601, 3.0
    folds = partition(layers, square((0.0, 0.0), 10.0)).folds
    axis = np.linspace(-reach, reach, side)
    nodes = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    positive = signs(layers, nodes.reshape(-1, 2)).reshape(side, side, -1)
    for unit in (0, 5):
        of_unit = positive[..., 16 + unit]
        down, right = of_unit[1:] != of_unit[:-1], of_unit[:, 1:] != of_unit[:, :-1]
        crossings = np.concatenate(
            [(nodes[1:] + nodes[:-1])[down] / 2, (nodes[:, 1:] + nodes[:, :-1])[right] / 2]
        )
        near = np.linalg.norm(points[::9, None] - crossings, axis=2).min(1)
        computed = distances_to(points[::9], folds.of(2, unit).ends)
        np.testing.assert_allclose(computed, near, atol=1.5 * (axis[1] - axis[0]))


def test_larger_window_has_no_nearer_line(trained):
    points, layers = trained
    reach = 5 * np.abs(points).max()
    for factor in (2, 10):
        first, second = (
            partition(layers, square((0.0, 0.0), size)).folds for size in (reach, factor * reach)
        )
        for unit in range(8):
            here, there = (distances_to(points, part.of(2, unit).ends) for part in (first, second))
            np.testing.assert_allclose(here, there, rtol=1e-7, atol=1e-8)


def test_figure_9_orders_errors_and_distances_by_layer():
    rows = figure9.measure(1)
    assert set(rows["state"]) == set(figure9.STATES)
    first, last = rows[rows["layer"] == 1], rows[rows["layer"] == 4]
    assert first["rank"].to_numpy() == pytest.approx(1)
    assert first["disordered"].to_numpy() == pytest.approx(0)
    assert (last["spread"] > 1.5).all()


@pytest.mark.parametrize(("widths", "sign"), [((6, 6), 1), ((6, 6, 6, 6), -1)])
def test_small_biases_make_more_regions_than_bn_in_two_layers_but_not_in_four(widths, sign):
    """Erratum 30: biases from N(0, 0.03²), data around the origin, 20 seeds, 95% interval."""
    differences = []
    for seed in range(20):
        points = draw_clusters(seed, offset=0.0)
        small, norm = (draw_layers(widths, one, points, seed) for one in ("random bias", "BN"))
        for layer in small:
            layer[0].bias.data *= 0.03
        counts = [len(partition(each, hull(points)).regions) for each in (small, norm)]
        differences.append(counts[0] - counts[1])
    assert mean_interval(differences).sign == sign
