"""What a source layer says of itself, and what it does in training mode and out of its region."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bnrecon
from bnrecon import FeatureSpec, reconstruct


def layer_of(spec, groups=1):
    """What is rebuilt of a layer, the layer, and images that it was rebuilt for."""
    torch.manual_seed(0)
    model = nn.Conv2d(4, 6, 3, padding=1, groups=groups).double().eval()
    images = torch.randn(8, 4, 5, 5, dtype=torch.float64)
    return reconstruct(model, spec, images=images), model, images


def test_the_weight_follows_the_layers_type():
    layer = layer_of(FeatureSpec())[0].network
    assert layer.weight.dtype == layer.double().weight.dtype == torch.float64
    assert layer.float().weight.dtype == torch.float32
    assert layer.double().weight.dtype == torch.float64


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
def test_weight_and_bias_are_the_targets(activation):
    rebuilt, model, _ = layer_of(FeatureSpec("id_cond", activation=activation, epsilon=1e-4))
    layer = rebuilt.network
    torch.testing.assert_close(layer.weight, model.weight, rtol=0, atol=1e-3)
    torch.testing.assert_close(layer.bias, model.bias, rtol=0, atol=1e-3)


@pytest.mark.parametrize("skip", ["inner", "outer"])
def test_in_training_mode_the_skip_joins_where_it_does_otherwise(skip):
    """Statistics are the batch's: y = N2(B N1(A x)) + S x, or N2(B N1(A x) + S x)."""
    rebuilt, _, x = layer_of(FeatureSpec(skip=skip))
    layer = rebuilt.network.train()
    with torch.no_grad():
        found = layer(x)

        def normalize(norm, values):
            return F.batch_norm(values, None, None, norm.weight, norm.bias, True, eps=norm.eps)

        hidden = normalize(layer.first_norm, layer.first(F.pad(x, (1, 1, 1, 1))))
        out, skipped = layer.second(hidden), F.conv2d(x, layer.skip)
        if skip == "inner":
            expected = normalize(layer.second_norm, out) + skipped
        else:
            expected = normalize(layer.second_norm, out + skipped)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_values_out_of_the_region_are_counted_on_both_sides_also_once_loaded(activation, tmp_path):
    spec = FeatureSpec("id_cond", activation=activation, margin=1.01)
    rebuilt, model, images = layer_of(spec)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    counts = []
    for layer in (rebuilt.network, loaded):
        layer.outside = 0
        layer(images)
        assert layer.outside == 0
        layer(10 * images)
        counts.append(layer.outside)
    hidden = rebuilt.network.first_norm(rebuilt.network.first(F.pad(10 * images, (1, 1, 1, 1))))
    low, high = rebuilt.network.region
    below, above = int((hidden < low).sum()), int((hidden > high).sum())
    assert below > 0
    assert (above > 0) == (activation == "tanh")
    assert counts == [below + above] * 2
