"""A source layer: its properties, in training, outside its region, and its reported error."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bnrecon
from bnrecon import FeatureSpec, reconstruct
from bnrecon.reconstruction.layer_report import output_error
from bnrecon.reconstruction.planning import plan_layers


def layer_of(spec):
    """The rebuilt layer, the layer, and the images it was rebuilt for."""
    torch.manual_seed(0)
    model = nn.Conv2d(4, 6, 3, padding=1).double().eval()
    images = torch.randn(8, 4, 5, 5, dtype=torch.float64)
    return reconstruct(model, spec, images=images), model, images


def test_weight_follows_the_layers_dtype():
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
def test_skip_joins_at_the_same_point_in_training(skip):
    """With batch statistics: y = N2(B N1(A x)) + S x, or N2(B N1(A x) + S x)."""
    rebuilt, _, x = layer_of(FeatureSpec(skip=skip))
    layer = rebuilt.network.train()
    with torch.no_grad():
        actual = layer(x)

        def normalize(norm, values):
            return F.batch_norm(values, None, None, norm.weight, norm.bias, True, eps=norm.eps)

        hidden = normalize(layer.first_norm, layer.first(F.pad(x, (1, 1, 1, 1))))
        out, skipped = layer.second(hidden), F.conv2d(x, layer.skip)
        if skip == "inner":
            expected = normalize(layer.second_norm, out) + skipped
        else:
            expected = normalize(layer.second_norm, out + skipped)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_values_outside_the_region_are_counted_also_after_loading(activation, tmp_path):
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


def test_values_outside_are_counted_in_every_group():
    """The weights of group 0 are small, which made its region wide."""
    torch.manual_seed(0)
    model = nn.Conv2d(4, 2, 1, groups=2).eval()
    with torch.no_grad():
        model.weight[0] *= 1e-3
    images = torch.rand(64, 4, 6, 6)
    spec = FeatureSpec("he_normal", activation="tanh", epsilon=1e-3, margin=1.0)
    rebuilt = reconstruct(model, spec, images=images)
    assert rebuilt.verified
    rebuilt.network(images)
    assert rebuilt.network.outside == 0
    images[:, 2:] *= 10  # of group 1
    rebuilt.network(images)
    assert rebuilt.network.outside > 0


@pytest.mark.parametrize("mode", ["reflect", "circular", "zeros"])
def test_padding_wider_than_the_kernel_is_tested_with_an_activation(mode):
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=3, padding_mode=mode).eval()
    spec = FeatureSpec("he_normal", activation="tanh", epsilon=1e-2)
    assert reconstruct(model, spec, images=torch.rand(8, 2, 7, 7)).verified


@pytest.mark.parametrize(("share", "converged"), [(0.9, True), (1.5, False)])
def test_outputs_may_be_off_by_epsilon(share, converged, monkeypatch):
    monkeypatch.setattr("bnrecon.reconstruction.layer_report.output_error", lambda *_: share * 0.01)
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).double().eval()
    spec = FeatureSpec("id_cond", activation="tanh", epsilon=0.01)
    (report,) = reconstruct(model, spec, images=torch.rand(4, 3, 6, 6).double()).layers
    assert report.converged == converged
    assert ("an output is off by 1.5e-02" in report.diagnosis) == (not converged)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("folded", [False, True])
def test_output_error_is_that_of_layer_and_normalization(dilation, folded):
    """Only rounding for an exact layer; 3 for one whose last shift is off by 3."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, dilation=dilation)]
    if folded:
        norm = nn.BatchNorm2d(4)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        layers.append(norm)
    model = nn.Sequential(*layers).double().eval()
    plan = plan_layers(model, "he_normal")
    source = reconstruct(model).network[0]
    largest = torch.ones(3, dtype=torch.float64)
    assert output_error(source, plan.layers[0].folded, largest) < 1e-8
    with torch.no_grad():
        source.second_norm.bias += 3
    assert output_error(source, plan.layers[0].folded, largest) == pytest.approx(3)


@pytest.mark.parametrize("limits", [{"min": 0}, {"max": 0}])
def test_output_error_is_measured_on_inputs_of_both_signs(limits):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double().eval()
    folded = plan_layers(model, "he_normal").layers[0].folded

    def clipped(x):
        return model(x.clamp(**limits))

    assert output_error(clipped, folded, torch.ones(3).double()) > 0.1


def test_rank_of_a_grouped_layer_is_the_smallest():
    """Some strict sparse features are empty, in some groups more than in others."""
    torch.manual_seed(0)
    model = nn.Conv2d(6, 6, 3, groups=3).double().eval()
    spec = FeatureSpec("sparse_he_normal", strict=True, width=40, allow_below_minimum=True)
    (layer,) = plan_layers(model, spec).layers
    weights = [pair.weights() for pair in layer.draw_groups()]
    matrices = [torch.einsum("olhw,lj->ohwjl", b, a).flatten(0, 3).double() for a, b in weights]
    ranks = [int(torch.linalg.matrix_rank(matrix)) for matrix in matrices]
    assert len(set(ranks)) > 1
    assert reconstruct(model, spec).layers[0].rank == min(ranks)
