"""Reconstruction of whole networks through the library call."""

import copy

import pytest
import torch
import torchvision
from networks import NETWORKS, Composed, difference, outputs, randomize
from torch import nn

import bnrecon
from bnrecon import reconstruct
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.runtime.errors import UserError
from bnrecon.targets.register import build

FEATURES = sorted(DISTRIBUTIONS)


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    make, shape = NETWORKS[request.param]
    return randomize(make(), shape), shape


@pytest.mark.parametrize("features", FEATURES)
def test_source_loaded_and_collapsed_compute_the_targets_function(network, features, tmp_path):
    model, shape = network
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = outputs(model, shape)
    limit = 2e-5 * wanted.abs().max()
    images = torch.randn(16, *shape, generator=torch.Generator().manual_seed(1))
    # Signs of 3 inputs and 2 outputs give 8 features up to a factor: 9 draws repeat too many.
    spec = FeatureSpec(features, oversampling=4.0 if features == "sign" else None)
    rebuilt = reconstruct(model, spec, images=images, seed=3)
    assert (outputs(rebuilt.network, shape) - wanted).abs().max() < limit
    assert all(layer.converged and layer.relative_error < 1e-9 for layer in rebuilt.layers)
    assert all(1e-9 < layer.assembled_error < 1e-5 for layer in rebuilt.layers)
    assert len(rebuilt.layers) == sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    blank = copy.deepcopy(model)
    for parameter in blank.parameters():
        nn.init.normal_(parameter)
    path = rebuilt.save(tmp_path / "source.safetensors")
    loaded = bnrecon.load_source(path, randomize(blank, shape, seed=9))
    assert torch.equal(outputs(loaded, shape), outputs(rebuilt.network, shape))
    collapsed = bnrecon.collapse(loaded)
    assert not source_layers(collapsed)
    assert (outputs(collapsed, shape) - wanted).abs().max() < limit


@pytest.mark.parametrize(("depth", "layers", "stem"), [(18, 21, "cifar"), (50, 54, "imagenet")])
def test_torchvision_resnets_are_rebuilt_at_reduced_width(depth, layers, stem):
    shape = (3, 32, 32)
    model = randomize(build("resnet", shape, 10, depth=depth, width=1, stem=stem), shape)
    rebuilt = reconstruct(model, "he_normal", oversampling=2)
    assert len(rebuilt.layers) == layers
    assert difference(rebuilt.network, model, torch.randn(6, *shape)) < 1e-4


def test_views_empty_batches_and_single_images_pass_unchanged():
    def views(self, x):
        return self.head(torch.max_pool2d(self.conv(input=x), 2).view(x.size(0), 64))

    model = Composed(views, conv=nn.Conv2d(3, 4, 3, padding=1), head=nn.Linear(64, 5)).eval()
    network = reconstruct(model, images=torch.randn(4, 3, 8, 8)).network
    with torch.no_grad():
        for size in (0, 1, 3):
            x = torch.randn(size, 3, 8, 8)
            assert torch.allclose(network(x), model(x), atol=1e-4)
        assert torch.allclose(network.conv(x[0]), model.conv(x[0]), atol=1e-4)


def test_unreached_layer_is_rebuilt():
    parts = {"used": nn.Linear(4, 3), "spare": nn.Linear(4, 2)}
    model = Composed(lambda self, x: self.used(x), **parts).eval()
    rebuilt = reconstruct(model, images=torch.randn(5, 4))
    assert [layer.name for layer in rebuilt.layers] == ["used", "spare"]
    with pytest.raises(UserError, match="layer spare: the images do not reach it"):
        reconstruct(model, FeatureSpec(activation="relu"), images=torch.randn(5, 4))


def test_error_below_minimum_width_is_that_of_least_squares():
    layer = nn.Conv2d(5, 6, 3).eval()
    report = reconstruct(layer, FeatureSpec(width=200, allow_below_minimum=True)).layers[0]
    assert not report.converged
    assert 0.3 < report.relative_error < 0.8  # sqrt(1 - 200/270) = 0.51 for random targets


def test_resnet18_is_rebuilt_at_full_width_by_id_cond():
    torch.manual_seed(0)
    resnet = torchvision.models.resnet18(num_classes=10).eval()
    rebuilt = reconstruct(resnet, "id_cond")
    assert difference(rebuilt.network, resnet, torch.randn(1, 3, 64, 64)) < 1e-4
    assert len(rebuilt.layers) == 21
    assert {layer.convolutions for layer in rebuilt.layers} == {"stored", "implicit"}


def test_layer_beyond_memory_is_named_with_its_need(monkeypatch):
    monkeypatch.setattr("bnrecon.reconstruction.planning.available_memory", lambda _: 10**6)
    with pytest.raises(
        UserError,
        match=r"the model: its 13824 features take .* free"
        r"; features=sign need not be stored; features=id_cond needs the least memory "
        r"\(error\.refused .*; unsupported='keep'",
    ):
        reconstruct(nn.Conv2d(32, 32, 3).eval())


def test_untraceable_networks_keep_their_normalization():
    parts = {"conv": nn.Conv2d(2, 3, 3), "norm": nn.BatchNorm2d(3)}
    moody = Composed(lambda self, x: self.norm(self.conv(x)) if x.sum() > -1e9 else x, **parts)
    model = randomize(moody, (2, 5, 5))
    rebuilt = reconstruct(model)
    assert any("cannot be traced" in note for note in rebuilt.notes)
    assert isinstance(rebuilt.network.norm, nn.BatchNorm2d)
    assert torch.allclose(outputs(rebuilt.network, (2, 5, 5)), outputs(model, (2, 5, 5)), atol=1e-5)
