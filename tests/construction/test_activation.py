"""Nearly linear activations in first source layers (Burkholz 2024, Theorem 2.4)."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from networks import NETWORKS, randomize
from random_layer import gaussian
from torch import nn

from bnrecon import reconstruct
from bnrecon.construction.activation import FIRST_ACTIVATIONS, linear_region, theorem_constants
from bnrecon.features.drawing import draw
from bnrecon.features.pair import Features
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.system import Scales
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.runtime.errors import RunError


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_activation_error_is_within_its_cubic_bound(name):
    """|φ(u) - (m u + c)| <= κ |u|³, and no smaller κ holds: the bound is reached near 0."""
    activation = FIRST_ACTIVATIONS[name]
    u = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    u = u[u.abs() > 1e-2]
    error = (activation.module()(u) - (activation.slope * u + activation.offset)).abs()
    assert (error <= activation.cubic * u.abs() ** 3 * (1 + 1e-12)).all()
    near = u.abs() < 0.02
    assert (error[near] / u[near].abs() ** 3).max() > 0.99 * activation.cubic


@pytest.mark.parametrize("epsilon", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
@pytest.mark.parametrize("features", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("shape", [(3, 8, 8), (5,)], ids=str)
def test_layer_stays_within_epsilon_of_its_target(shape, features, name, epsilon):
    """In float64, for every input within the bounds, corners included."""
    module = nn.Conv2d(3, 4, 3, padding=1) if len(shape) == 3 else nn.Linear(5, 4)
    model = randomize(module, shape).double()
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(8, *shape, generator=generator, dtype=torch.float64) * 2 - 1
    images[0] = 1.0
    layer = reconstruct(
        model, FeatureSpec(features, activation=name, epsilon=epsilon, margin=1.001), images=images
    ).network
    corners = torch.randint(2, (32, *shape), generator=generator).double() * 2 - 1
    with torch.no_grad():
        differences = [(layer(x) - model(x)).abs().max() for x in (images, corners)]
    assert max(differences) <= epsilon
    assert layer.outside == 0


def test_printed_scale_violates_the_theorems_hypothesis():
    """The printed v omits Q1³: with Q1 > 1 the error at the edge exceeds ε v / Q2."""
    epsilon, q1, q2 = 0.3, 3.0, 10.0
    printed = min(math.sqrt(3 * epsilon / q2), 1 / q1)
    right = min(math.sqrt(3 * epsilon / (q2 * q1**3)), 1 / q1)
    assert abs(math.tanh(printed * q1) - printed * q1) > epsilon * printed / q2
    assert abs(math.tanh(right * q1) - right * q1) <= epsilon * right / q2


def test_constants_are_the_theorems():
    shape = LayerShape(2, 3, (3, 3))
    features = draw("he_normal", shape, 60, 0, 0)
    scales = Scales(
        torch.randn(60, dtype=torch.float64), torch.tensor([2.0, -3.0], dtype=torch.float64)
    )
    largest = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    q1, q2 = theorem_constants(features, scales, largest)
    first, second = features.weights()
    assert float(q1[7]) == pytest.approx(
        abs(float(scales.inner[7]))
        * sum(abs(float(a)) * x for a, x in zip(first[7], (1, 0.5, 2), strict=True))
    )
    assert q2 == pytest.approx(
        max(abs(g) * float(second[i].abs().sum()) for i, g in enumerate((2.0, -3.0)))
    )
    switched_off = linear_region(
        "tanh", features, Scales(0 * scales.inner, scales.outer), largest, 1e-3
    )
    assert switched_off.factor == 1.0


def test_second_constant_sums_over_the_features():
    """With a maximum over the features instead, c1 equal ones are off by c1 ε."""
    width, epsilon = 50, 1e-3
    ones = Features(
        LayerShape(1, 1, (1, 1)), width, torch.ones(width, 1), torch.ones(1, width, 1, 1)
    )
    scales = Scales(torch.ones(width).double(), torch.ones(1).double())
    region = linear_region("tanh", ones, scales, torch.ones(1).double(), epsilon)
    of_one_feature = math.sqrt(3 * epsilon)

    def error(factor: float) -> float:
        x = torch.linspace(-1, 1, 101, dtype=torch.float64)
        return float((width * torch.tanh(factor * x) / factor - width * x).abs().max())

    assert error(region.factor) <= epsilon
    assert error(of_one_feature) == pytest.approx(width * epsilon, rel=0.01)


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_network_approaches_its_target_with_epsilon(name):
    make, shape = NETWORKS["vgg"]
    model = randomize(make(), shape).double()
    images = gaussian(32, *shape, seed=1)
    errors = []
    for epsilon in (1.0, 1e-2, 1e-4):
        network = reconstruct(
            model, FeatureSpec(activation=name, epsilon=epsilon, margin=4.0), images=images
        ).network
        with torch.no_grad():
            errors.append(float((network(images) - model(images)).abs().max()))
        assert all(
            layer.linearized is FIRST_ACTIVATIONS[name] for layer in source_layers(network).values()
        )
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


LAYERS = {
    "linear": (nn.Linear(9, 5), (64, 9)),
    "conv": (nn.Conv2d(3, 4, 3, dilation=2), (8, 3, 9, 9)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2, padding=1), (8, 4, 9, 9)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2), (8, 3, 5, 5)),
}


@pytest.mark.parametrize("precision", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_layer_off_by_more_than_epsilon_has_not_converged(name, layer, precision):
    """In float32 a sigmoid's values around 1/2 lose too many digits; all other cases hold."""
    target, inputs = LAYERS[layer]
    net = randomize(nn.Sequential(copy.deepcopy(target)), inputs[1:]).to(precision).eval()
    images = torch.randn(inputs, generator=torch.Generator().manual_seed(0)).to(precision)
    features = FeatureSpec("orthogonal", activation=name, epsilon=1e-4)
    rebuilt = reconstruct(net, features, images=images)
    with torch.no_grad():
        error = float((rebuilt.network(images) - net(images)).abs().max())
    (report,) = rebuilt.layers
    fails = name == "sigmoid" and precision == torch.float32
    assert (error > 1e-4) == fails
    assert report.converged == (not fails)
    assert ("epsilon=0.0001 is promised" in report.solution.diagnosis) == fails


@pytest.mark.parametrize("name", sorted(FIRST_ACTIVATIONS))
def test_source_is_pickled_with_any_activation(name):
    net = nn.Sequential(nn.Linear(3, 4)).eval()
    source = reconstruct(net, FeatureSpec(activation=name), images=torch.ones(5, 3)).network
    assert len(pickle.dumps(source)) > 0


def test_leaky_relu_has_pytorchs_negative_slope():
    module = FIRST_ACTIVATIONS["leaky_relu"].module()
    assert float(module(torch.tensor(-2.0))) == pytest.approx(-0.02)


def test_regions_of_theorem_2_4_follow_from_its_constants():
    """One feature of weights 2 and 3, input up to 5, scales 1: Q1 = 10 and Q2 = 3 (by hand)."""
    pair = draw("he_normal", LayerShape(1, 1, (1, 1)), 1, 0, 0)
    pair = dataclasses.replace(
        pair, first=torch.full((1, 1, 1, 1), 2.0), second=torch.full((1, 1, 1, 1), 3.0)
    )
    ones, largest = torch.ones(1, dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)
    scales = Scales(ones, ones)
    relu = linear_region("relu", pair, scales, largest, 0.1)
    assert (relu.factor, relu.shift.tolist(), relu.low) == (1.0, [10.0], 0.0)
    tanh = linear_region("tanh", pair, scales, largest, 0.1)
    assert tanh.factor == pytest.approx((0.1 / (3 * 10**3 / 3)) ** 0.5)
    assert linear_region("tanh", pair, scales, largest, 1e9).factor == pytest.approx(1 / 10)
    with pytest.raises(RunError, match=r"activation=tanh: inputs of up to 2e\+200 leave no scale"):
        linear_region("tanh", pair, scales, 1e200 * largest / 5, 0.1)
