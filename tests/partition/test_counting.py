"""Counts of folded hyperplanes in a ball: exact in the plane, by local maps, by sampling."""

import numpy as np
import pytest
import torch
from torch import nn

from bnrecon.partition import (
    count_by_local_map,
    count_by_sampling,
    count_in_slice,
    detection_probability,
    fold_distances,
    partition,
    random_network,
    rectangle,
    sample_ball,
    slice_along,
)
from bnrecon.partition.result import Folds
from bnrecon.runtime.errors import UserError


@pytest.fixture(scope="module")
def plane():
    return slice_along(torch.zeros(2), torch.eye(2), rectangle((-3, -3), (3, 3)))


@pytest.fixture(scope="module")
def network():
    return random_network(25, 3)


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).uniform(-1, 1, (300, 2))


def test_counts_in_a_slice_match_all_distances(network, plane, points):
    folds = partition(network, plane).folds
    a, b = folds.ends[:, 0], folds.ends[:, 1]
    for facets in (False, True):
        counts = count_in_slice(folds, points, 0.05, facets=facets)
        for point, count in zip(points[::10], counts[::10], strict=True):
            share = np.clip(((point - a) * (b - a)).sum(1) / ((b - a) ** 2).sum(1), 0, 1)
            near = np.hypot(*(a + share[:, None] * (b - a) - point).T) <= 0.05
            units = {*zip(folds.layer[near], folds.unit[near], strict=True)}
            assert count == (near.sum() if facets else len(units))
    assert counts.max() > 5


def test_last_unit_of_a_layer_and_first_of_the_next_are_two():
    ends = np.array([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    folds = Folds(layer=np.array([0, 1]), unit=np.array([1, 0]), ends=ends)
    assert count_in_slice(folds, np.zeros((1, 2)), 0.1).tolist() == [2]


def test_local_map_is_exact_where_no_earlier_unit_folds_in_the_ball(network, plane, points):
    folds = partition(network, plane).folds
    radius = 0.003
    local = count_by_local_map(network, plane.inputs(points), radius)
    earlier = np.zeros(len(points), dtype=int)
    compared = 0
    for layer in range(3):
        exact = count_in_slice(folds.of(layer), points, radius)
        unfolded = earlier == 0
        assert (local[unfolded, layer] == exact[unfolded]).all()
        compared += exact[unfolded].sum()
        earlier += exact
    assert compared > 20


def test_local_maps_match_exact_counts_on_average_in_folded_balls(network, plane, points):
    folds = partition(network, plane).folds
    local = count_by_local_map(network, plane.inputs(points), 0.05)
    exact = np.stack([count_in_slice(folds.of(layer), points, 0.05) for layer in range(3)], 1)
    assert local.sum(0) == pytest.approx(exact.sum(0), rel=0.1)


def test_many_samples_of_the_plane_find_nearly_everything(network, plane, points):
    folds = partition(network, plane).folds
    some = points[:60]
    exact = np.stack([count_in_slice(folds.of(layer), some, 0.05) for layer in range(3)], 1)
    sampled = count_by_sampling(network, plane.inputs(some), 0.05, samples=2000)
    assert (sampled <= exact).all()  # a lower bound
    assert sampled.sum() > 0.95 * exact.sum()


def test_share_found_by_sampling_in_high_dimension_is_predicted():
    torch.manual_seed(0)
    dimension, samples, radius = 100, 256, 0.5
    network = nn.Sequential(nn.Linear(dimension, 400), nn.ReLU()).double()
    inputs = torch.randn(10, dimension, dtype=torch.float64)
    network[0].bias.data.zero_()
    sampled = count_by_sampling(network, inputs, radius, samples=samples).sum()
    distances = fold_distances(network, inputs)[0]
    expected = detection_probability(distances, radius, dimension, samples).sum()
    assert sampled == pytest.approx(expected, rel=0.05)
    assert sampled < 0.6 * (distances <= radius).sum()


def test_distances_match_autograd_in_a_convolutional_network():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), nn.LeakyReLU(0.1)
    ).double()
    point = torch.randn(2, 8, 8, dtype=torch.float64)
    by_layer = [layer[0] for layer in fold_distances(network, point[None])]
    for end, distances in ((1, by_layer[0]), (4, by_layer[1])):
        z = network[:end](point[None]).flatten()
        jacobian = torch.autograd.functional.jacobian(network[:end], point[None])
        norms = jacobian.reshape(len(z), -1).norm(dim=1)
        assert distances == pytest.approx((z.abs() / norms).detach().numpy(), rel=1e-9)


def test_probes_estimate_the_distances():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(50, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU())
    point = torch.randn(1, 50)
    exact = torch.cat(fold_distances(network, point), 1)
    estimated = torch.cat(fold_distances(network, point, probes=400), 1)
    error = (estimated / exact - 1).square().mean().sqrt().item()
    assert error == pytest.approx((1 / 800) ** 0.5, rel=0.4)


def test_dead_unit_is_infinitely_far():
    network = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU())
    with torch.no_grad():
        network[0].weight.fill_(1.0), network[0].bias.fill_(-9.0), network[2].bias.fill_(1.0)
    assert fold_distances(network, torch.zeros(1, 2))[1].tolist() == [[float("inf")]]


def test_ball_samples_are_uniform():
    samples = sample_ball(40_000, 3, torch.Generator().manual_seed(0))
    radii = samples.norm(dim=1)
    assert radii.max() <= 1
    assert (radii**3).mean() == pytest.approx(0.5, abs=0.01)  # the enclosed volume is uniform
    assert samples.mean(0).abs().max() < 0.01
    beyond = (samples[:, 0] > 0.4).double().mean()
    assert beyond == pytest.approx(float(detection_probability(0.4, 1, 3, 1)), abs=0.01)


def test_linear_network_has_no_folds_to_count(points):
    centres = torch.from_numpy(points[:7])
    assert fold_distances(nn.Linear(2, 3), centres) == []
    assert count_by_local_map(nn.Linear(2, 3), centres, 0.1).shape == (7, 0)
    assert count_by_sampling(nn.Linear(2, 3), centres, 0.1, samples=5).shape == (7, 0)


def test_counts_without_probes_or_samples_are_refused(network, points):
    centres = torch.from_numpy(points[:2])
    with pytest.raises(UserError, match="probes=0: must be at least 1"):
        count_by_local_map(network, centres, 0.1, probes=0)
    with pytest.raises(UserError, match="samples=0: must be at least 1"):
        count_by_sampling(network, centres, 0.1, samples=0)
