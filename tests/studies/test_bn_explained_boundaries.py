"""Figure 6: boundaries against grids, distances against closed forms."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from bnrecon.partition import rectangle, set_statistics, slice_along
from bnrecon.studies.bn_explained import figure6
from bnrecon.studies.bn_explained.planar import (
    decision_boundary,
    distance_between,
    distances_to,
)
from bnrecon.studies.bn_explained.toy_classifier import (
    MOMENTUM,
    RATE,
    draw_classifier,
    run_batches,
    train,
    two_moons,
)

SQUARE = slice_along(torch.zeros(2), torch.eye(2), rectangle((-1.5, -1.5), (2.5, 2.5)))


@pytest.fixture
def classifier():
    return draw_classifier((6, 5), seed=3)


@pytest.fixture
def data():
    return two_moons(64, seed=0)


def test_mini_batches_and_probes_are_normalized_by_each_mini_batch(classifier, data):
    """Mini-batches as in PyTorch's training, probes by statistics set from the mini-batch."""
    batches, probes = data[0].reshape(4, 16, 2), torch.randn(9, 2, dtype=torch.float64)
    assert run_batches(classifier, batches)[1].shape == (4, 0)
    for batch, *outputs in zip(batches, *run_batches(classifier, batches, probes), strict=True):
        training = copy.deepcopy(classifier).train()
        adapted = set_statistics(copy.deepcopy(classifier), batch).eval()
        for output, expected in zip(outputs, (training(batch), adapted(probes)), strict=True):
            torch.testing.assert_close(output, expected[:, 0], rtol=0, atol=1e-12)


def test_update_follows_the_mean_gradient_of_the_mini_batches(classifier, data):
    points, labels = data
    by_hand = copy.deepcopy(classifier).train()
    chosen = np.random.Generator(np.random.Philox(7)).permutation(64)[:24].reshape(3, 8)
    losses = [
        nn.functional.binary_cross_entropy_with_logits(
            by_hand(points[batch])[:, 0], labels[batch].double()
        )
        for batch in chosen
    ]
    gradients = torch.autograd.grad(sum(losses) / 3, list(by_hand.parameters()))
    before = [weight.clone() for weight in classifier.parameters()]
    train(classifier, data, batch=8, groups=3, updates=1, seed=7)
    for weight, start, gradient in zip(classifier.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(weight, start - RATE * gradient, rtol=0, atol=1e-12)
    assert 0 < MOMENTUM < 1  # no effect on the first update


def test_decision_boundary_is_where_the_output_changes_sign(classifier, data):
    batch = data[0][:16]
    boundary = decision_boundary(classifier, batch, SQUARE)
    middles = torch.from_numpy(boundary.mean(1))
    with torch.no_grad():
        _, on = run_batches(classifier, batch[None], middles)
        side = np.linspace(-1.5, 2.5, 201)
        grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
        _, values = run_batches(classifier, batch[None], torch.from_numpy(grid))
    assert on.abs().max() < 1e-10
    positive, step = (values[0] > 0).numpy().reshape(201, 201), side[1] - side[0]
    crossed = positive[:, 1:] != positive[:, :-1]
    assert crossed.sum() > 100
    between = (grid.reshape(201, 201, 2)[:, 1:] + grid.reshape(201, 201, 2)[:, :-1])[crossed] / 2
    assert distances_to(between, boundary).max() <= step / 2 + 1e-9


def circle(radius):
    angles = np.linspace(0, 2 * np.pi, 400)
    points = radius * np.stack([np.cos(angles), np.sin(angles)], 1)
    return np.stack([points[:-1], points[1:]], 1)


def test_distance_between_circles_is_the_difference_of_radii():
    assert distance_between(circle(1.0), circle(1.2), 0.01) == pytest.approx(0.2, abs=1e-3)
    assert np.isnan(distance_between(circle(1.0), np.zeros((0, 2, 2)), 0.01))


def test_distance_is_averaged_by_length_over_both_boundaries():
    """A segment of length 1, and the same with a segment of length 3 at distance 2."""
    one = np.array([[[0.0, 0.0], [1.0, 0.0]]])
    other = np.concatenate([one, [[[0.0, 2.0], [0.0, 5.0]]]])
    # The second is at distance 2 to 5 of the first: 3.5 on average, with weight 3/4.
    assert distance_between(one, other, 1e-3) == pytest.approx(0.75 * 3.5 / 2, rel=1e-6)


def test_margins_are_signed_distances_of_the_nearest_points():
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)[torch.arange(41) != 20]
    points = torch.stack([x, torch.zeros_like(x)], 1)
    labels = (x > 0).long()
    line = np.array([[[0.0, -1.0], [0.0, 1.0]]])
    computed = figure6.margins(x, (points, labels), line)
    assert computed == pytest.approx({"accuracy": 1.0, "nearest": 0.05, "smallest": 0.05})
    labels[0] = 1  # at -1, on the wrong side
    computed = figure6.margins(x, (points, labels), line)
    assert computed == pytest.approx({"accuracy": 39 / 40, "nearest": -0.475, "smallest": -1.0})
    assert np.isnan(figure6.margins(x, (points, labels), np.zeros((0, 2, 2)))["nearest"])


def test_expected_ratio_matches_sampled_mini_batch_means():
    generator = np.random.Generator(np.random.Philox(1))
    values = generator.normal(size=figure6.SAMPLES)
    drawn = np.stack([generator.permutation(values)[: max(figure6.SIZES)] for _ in range(20_000)])
    small, large = (drawn[:, :size].mean(1).std() for size in figure6.SIZES)
    assert figure6.expected_ratio() == pytest.approx(small / large, rel=0.03)


def test_drawn_lines_are_the_boundaries():
    rows = figure6.draw_boundaries(seed=0, updates=0, batches=2)
    lines = rows[rows["kind"] == "boundary"]
    assert list(lines["batch"].unique()) == [figure6.SAMPLES, *figure6.SIZES]
    assert set(lines["state"]) == {figure6.INITIAL, *figure6.TRAININGS}
    network, (points, _) = draw_classifier((32, 32), 0), two_moons(figure6.SAMPLES, 0)
    window = np.array(rows["path"].iloc[0].split(), dtype=float).reshape(-1, 2)
    plane = slice_along(torch.zeros(2), torch.eye(2), window)
    expected = decision_boundary(network, points, plane)
    drawn = np.array(lines["path"].iloc[0].split(), dtype=float).reshape(-1, 2)
    assert distances_to(drawn, expected).max() < 2e-3


def made_rows(ratio, gain):
    """Four seeds with small differences between them."""
    rows = []
    for seed in range(4):
        for state in (figure6.INITIAL, *figure6.TRAININGS, *figure6.GROUPS):
            rows.append({"kind": "margins", "seed": seed, "state": state, "accuracy": 1.0})
            margin = 0.1 + (state in figure6.GROUPS) * gain(seed)
            rows[-1]["nearest"] = rows[-1]["smallest"] = margin
            for size in figure6.SIZES if state not in figure6.GROUPS else ():
                value = ratio(seed) if size == figure6.SIZES[0] else 1.0
                row = {"kind": "jitter", "seed": seed, "state": state, "batch": size}
                row |= {"changed": 0.01 * value, "distance": 0.1 * value, "batches": 5}
                rows.append(row | {"one_sided": int(size == figure6.SIZES[0]), "without": 0})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("ratio", "gain", "verdict"),
    [
        (lambda seed: 4 + seed / 10, lambda seed: 0.02 + seed / 1e3, "confirmed"),
        (lambda seed: 0.5 + seed / 100, lambda seed: -0.02 - seed / 1e3, "contradicted"),
        (lambda seed: 1.1 + (-1) ** seed, lambda seed: 0.01 * (-1) ** seed, "undecided"),
    ],
)
def test_verdicts_follow_the_intervals(ratio, gain, verdict):
    decided, numbers = figure6.decide(made_rows(ratio, gain))
    margins = [f"{margin}, {state}" for margin in figure6.MARGINS for state in figure6.GROUPS]
    assert {decided[name] for name in ("variability", *margins)} == {verdict}
    assert decided["sides"] == "needs a condition"
    assert numbers["one_sided"] == "4 of 20 mini-batches of 16, 0 of 20 mini-batches of 256"


def test_each_noise_level_has_its_own_margin_verdict():
    rows = made_rows(lambda seed: 4.0, lambda seed: 0.02 + seed / 1e3)
    most = rows["state"] == list(figure6.GROUPS)[-1]
    rows.loc[most, "nearest"] = 0.08 - 0.001 * rows["seed"]
    verdicts, _ = figure6.decide(rows)
    nearest = [verdicts[f"nearest, {state}"] for state in figure6.GROUPS]
    assert nearest == ["confirmed", "confirmed", "contradicted"]
    assert {verdicts[f"smallest, {state}"] for state in figure6.GROUPS} == {"confirmed"}


def test_one_noisier_state_contradicts_less_noise():
    """One state in which larger mini-batches vary more decides."""
    rows = made_rows(lambda seed: 4 + seed / 10, lambda seed: 0.0)
    worse = (rows["state"] == "B = 16") & (rows["batch"] == 16)
    rows.loc[worse, "changed"] = 0.001 + 1e-5 * rows["seed"]
    assert figure6.PART.claims(rows)[0].verdict == "contradicted"
