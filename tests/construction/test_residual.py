"""Residual source blocks, both positions of the second normalization (Burkholz 2024, Eq. 3)."""

import pytest
import torch
from networks import NETWORKS, outputs, randomize, recorded
from random_layer import gaussian
from torch import nn

from bnrecon import load_source, reconstruct
from bnrecon.construction.residual import layer_system, minimum_width
from bnrecon.construction.two_layer import TargetLayer, composed_weight, relative_error
from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.source_file import collapse, source_layers
from bnrecon.solvers.spec import SolverSpec

CPU = torch.device("cpu")
SHAPES = [
    LayerShape(4, 4, (3, 3)),
    LayerShape(5, 3, (3, 3)),
    LayerShape(4, 6),
    LayerShape(3, 2, (2, 4)),
]


def random_target(shape):
    weight = gaussian(shape.outputs, shape.inputs, *shape.kernel, seed=7)
    return TargetLayer("layer", weight, torch.zeros(shape.outputs, dtype=torch.float64))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("skip", ["inner", "outer"])
def test_block_with_a_skip_connection_composes_to_the_target(skip, name, shape):
    """Against an independent sum over features, with the skip's kernel at the centre tap."""
    target = random_target(shape)
    least = minimum_width(shape, skip)
    for width in {
        "id_cond": [shape.equations],
        "ortho_cond": [shape.equations],
        "sparse_id_cond": [shape.equations],
        "sign": [shape.equations + 5],  # so few signs may repeat
    }.get(name, [least, shape.equations + 5]):
        features = draw(name, shape, width, seed=1, layer=2, skip=skip)
        system = layer_system(target, features, CPU, DISTRIBUTIONS[name].orthogonal)
        scales = system.scales(torch.linalg.pinv(system.operator.dense()) @ system.rhs)
        first, second = (weight.double() for weight in features.weights())
        pair = torch.einsum("il...,l,lj->ij...", second, scales.inner, first)
        kernel = torch.zeros_like(pair)
        kernel[:, :, shape.kernel[0] // 2, shape.kernel[1] // 2] = features.skip_weight.double()
        outer = scales.outer[:, None, None, None]
        built = outer * (pair + kernel) if skip == "outer" else outer * pair + kernel
        assert (built - target.weight).norm() < 1e-8 * target.weight.norm()
        assert relative_error(composed_weight(system.matrix, scales, features), built) < 1e-12


@pytest.mark.parametrize("name", ["he_normal", "orthogonal", "sparse_he_normal"])
def test_inner_skip_connection_saves_exactly_one_feature(name):
    """With n - c2 equations n - c2 features suffice; without a skip n - c2 + 1 are needed."""
    shape = LayerShape(4, 4, (3, 3))
    target, least = random_target(shape), minimum_width(shape, "outer")
    assert least == shape.equations - shape.outputs == minimum_width(shape, "inner") - 1
    for width, solvable in ((least, True), (least - 1, False)):
        system = layer_system(target, draw(name, shape, width, 0, 0, skip="outer"), CPU, False)
        matrix = system.operator.dense()
        residual = relative_error(matrix @ (torch.linalg.pinv(matrix) @ system.rhs), system.rhs)
        assert (residual < 1e-9) == solvable


def test_last_term_of_the_right_hand_side_is_needed():
    """Eq. (3) legibly has c = (w_r / w_p) s_p: without - s_r the solution is wrong."""
    shape = LayerShape(3, 3, (3, 3))
    target, features = random_target(shape), draw("he_normal", shape, 78, 0, 0, skip="outer")
    system = layer_system(target, features, CPU, False)
    eliminated = system.operator
    legible = (eliminated.ratios * eliminated.skip.gather(1, eliminated.pivots[:, None]))[
        eliminated.others
    ]
    for rhs, rebuilt in ((system.rhs, True), (legible, False)):
        scales = system.scales(torch.linalg.solve(eliminated.dense(), rhs))
        error = relative_error(composed_weight(system.matrix, scales, features), target.weight)
        assert (error < 1e-8) == rebuilt


@pytest.mark.parametrize("features", ["he_normal", "id_cond"])
@pytest.mark.parametrize("width", ["minimum", "maximum"])
@pytest.mark.parametrize("skip", ["inner", "outer"])
@pytest.mark.parametrize("network", NETWORKS)
def test_residual_networks_compute_the_targets_function(network, skip, width, features, tmp_path):
    make, shape = NETWORKS[network]
    torch.manual_seed(3)  # in other draws a pivot (Eq. 3) may be near zero
    model = randomize(make(), shape)
    images = torch.randn(16, *shape, generator=torch.Generator().manual_seed(1))
    rebuilt = reconstruct(
        model,
        FeatureSpec(features, width=width, skip=skip),
        solver=SolverSpec(tolerance=1e-9),
        images=images,
    )
    wanted = outputs(model, shape)
    bound = 1e-4 * wanted.abs().max()
    assert all(layer.relative_error < 1e-8 for layer in rebuilt.layers)
    assert (outputs(rebuilt.network, shape) - wanted).abs().max() < 30 * bound
    assert (outputs(collapse(rebuilt.network), shape) - wanted).abs().max() < bound
    again = load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    assert torch.equal(outputs(again, shape), outputs(rebuilt.network, shape))
    digests = [layer.frozen_digest() for layer in source_layers(again).values()]
    assert digests == [layer.digest for layer in rebuilt.layers]


@pytest.mark.parametrize("skip", ["none", "inner", "outer"])
def test_second_normalization_holds_the_statistics_of_its_inputs(skip):
    model = randomize(
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        (3, 9, 9),
    )
    images = torch.randn(32, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    layer = reconstruct(model, FeatureSpec(skip=skip), images=images).network[0]
    norm_input, _ = recorded(layer, nn.BatchNorm2d, images)[layer.second_norm]
    variance, mean = torch.var_mean(norm_input.double(), dim=(0, 2, 3))
    torch.testing.assert_close(layer.second_norm.running_mean.double(), mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        layer.second_norm.running_var.double(), variance, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("skip", ["inner", "outer"])
def test_target_much_smaller_than_the_skip_connection_converges(skip):
    """The solver's tolerance is relative to W - s, the layer's to W, a thousandth of it.

    In float32 the cancellation shows, and the report says so.
    """
    model = randomize(nn.Conv2d(6, 6, 3), (6, 5, 5))
    with torch.no_grad():
        model.weight.mul_(1e-3)
    rounded = reconstruct(model, FeatureSpec(skip=skip)).layers[0]
    assert not rounded.converged
    assert "rounding to float32" in rounded.diagnosis
    layer = reconstruct(model.double(), FeatureSpec(skip=skip)).layers[0]
    assert layer.converged
    assert layer.relative_error < 1e-10


def test_one_entry_per_output_leaves_no_equation():
    model = randomize(nn.Linear(1, 5), (1,))
    rebuilt = reconstruct(model, FeatureSpec(width="minimum", skip="outer"))
    x = torch.randn(7, 1)
    torch.testing.assert_close(rebuilt.network(x), model(x))
    assert rebuilt.layers[0].converged


@pytest.mark.parametrize("features", ["he_normal", "id_cond", "ortho_cond"])
def test_changed_skip_connection_or_frozen_weight_is_detected(features):
    network = reconstruct(
        randomize(nn.Conv2d(3, 3, 3), (3, 5, 5)), FeatureSpec(features, skip="inner")
    ).network
    before = network.frozen_digest()
    for weight, by in ((network.skip.data, 1), (network.first.weight.data, 1e-6)):
        kept = weight.clone()
        weight[0, 0] += by
        assert network.frozen_digest() != before
        weight.copy_(kept)
    assert torch.equal(network.features.skip_weight, torch.eye(3))
