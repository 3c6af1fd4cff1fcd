"""Reconstruction of whole networks through the library call, and the source network itself."""

import pytest
import torch
import torchvision
from lively import NETWORKS, Residual, enliven, outputs
from torch import nn

import bnrecon
from bnrecon import reconstruct
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.moments import gather
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.targets.register import build

FEATURES = sorted(DISTRIBUTIONS)


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    make, shape = NETWORKS[request.param]
    return enliven(make(), shape), shape


@pytest.mark.parametrize("features", FEATURES)
def test_the_source_computes_the_targets_function(network, features):
    model, shape = network
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = outputs(model, shape)
    images = torch.randn(16, *shape, generator=torch.Generator().manual_seed(1))
    rebuilt = reconstruct(model, features, images=images, seed=3)
    assert (outputs(rebuilt.network, shape) - wanted).abs().max() < 2e-5 * wanted.abs().max()
    assert all(layer.converged and layer.relative_error < 1e-9 for layer in rebuilt.layers)
    assert all(1e-9 < layer.assembled_error < 1e-5 for layer in rebuilt.layers)
    assert len(rebuilt.layers) == sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize("features", ["he_normal", "id_cond"])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
def test_an_activation_in_between_is_exact_after_the_shift(network, features, activation):
    """Burkholz 2024, Thm 2.4; every border pixel included, since all padding comes first."""
    model, shape = network
    images = torch.randn(64, *shape, generator=torch.Generator().manual_seed(1))
    rebuilt = reconstruct(
        model, FeatureSpec(features, activation=activation, margin=4.0), images=images
    )
    wanted = outputs(model, shape)
    got = outputs(rebuilt.network, shape)
    assert sum(layer.outside for layer in source_layers(rebuilt.network).values()) == 0
    assert (
        got - wanted
    ).abs().max() < 3e-3 * wanted.abs().max()  # float32 cancels what the shifts add
    assert any(
        isinstance(m, nn.ReLU | nn.LeakyReLU)
        for layer in source_layers(rebuilt.network).values()
        for m in layer.modules()
    )


def test_the_shifted_network_is_exact_in_float64():
    model = enliven(Residual(), (2, 9, 8)).double()
    images = torch.randn(64, 2, 9, 8, dtype=torch.float64)
    rebuilt = reconstruct(model, FeatureSpec(activation="relu", margin=4.0), images=images)
    x = images[:8]
    with torch.no_grad():
        assert (rebuilt.network(x) - model(x)).abs().max() < 1e-6 * model(x).abs().max()


def test_values_outside_the_linear_region_are_counted():
    model = enliven(nn.Conv2d(2, 3, 3), (2, 6, 6))
    rebuilt = reconstruct(
        model,
        FeatureSpec("id_cond", activation="relu", margin=1.0),
        images=0.01 * torch.ones(2, 2, 6, 6),
    )
    rebuilt.network(torch.randn(4, 2, 6, 6))
    assert rebuilt.network.outside > 0


def test_running_statistics_are_those_batch_norm_would_take():
    """Moments of A x and of the second convolution: compare with BatchNorm in training mode."""
    model = enliven(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=True), nn.BatchNorm2d(4)), (3, 6, 6)
    )
    images = torch.randn(32, 3, 6, 6) + 0.5
    layer = next(iter(source_layers(reconstruct(model, images=images).network).values()))
    derived = [
        (norm.running_mean.clone(), norm.running_var.clone())
        for norm in (layer.first_norm, layer.second_norm)
    ]
    hidden = layer.first(nn.functional.pad(images, (1, 1, 1, 1)))
    for norm in (layer.first_norm, layer.second_norm):
        norm.reset_running_stats()
        norm.momentum = None
    layer.first_norm.train()(hidden)
    assert torch.allclose(layer.first_norm.running_mean, derived[0][0], atol=1e-5)
    assert torch.allclose(layer.first_norm.running_var, derived[0][1], rtol=1e-4)
    layer.first_norm.running_mean.copy_(derived[0][0])
    layer.first_norm.running_var.copy_(derived[0][1])
    layer.second_norm.train()(layer.second(layer.first_norm.eval()(hidden)))
    assert torch.allclose(layer.second_norm.running_mean, derived[1][0], atol=1e-4)
    assert torch.allclose(layer.second_norm.running_var, derived[1][1], rtol=1e-3)


def test_without_images_the_source_keeps_the_statistics_it_was_drawn_with():
    layer = next(
        iter(source_layers(reconstruct(enliven(nn.Conv2d(2, 3, 3), (2, 5, 5))).network).values())
    )
    assert torch.equal(layer.first_norm.running_mean, torch.zeros(layer.features.width))
    assert torch.equal(layer.first_norm.running_var, torch.ones(layer.features.width))


def test_only_normalization_parameters_can_train_and_the_frozen_ones_are_the_drawn_ones():
    model = enliven(NETWORKS["vgg"][0](), (3, 8, 8))
    rebuilt = reconstruct(model)
    trainable = {name for name, p in rebuilt.network.named_parameters() if p.requires_grad}
    assert trainable == {
        f"{layer}.{part}"
        for layer in source_layers(rebuilt.network)
        for part in ("first_norm.weight", "second_norm.weight", "second_norm.bias")
    }
    for layer, report in zip(source_layers(rebuilt.network).values(), rebuilt.layers, strict=True):
        assert layer.frozen_digest() == report.digest == layer.features.digest()
        with torch.no_grad():
            layer.first.weight[0, 0] += 1e-6
        assert layer.frozen_digest() != report.digest


def test_perturbing_one_scale_changes_error_and_logits():
    from bnrecon.reconstruction.collapse import layer_errors

    model = enliven(NETWORKS["vgg"][0](), (3, 8, 8))
    rebuilt = reconstruct(model)
    name, layer = next(iter(source_layers(rebuilt.network).items()))
    weight = next(found.target.weight for found in find_layers(model).layers if found.name == name)
    error, logits = layer_errors(layer, weight)[1], outputs(rebuilt.network, (3, 8, 8))
    with torch.no_grad():
        layer.first_norm.weight[7] *= 1.5
    assert layer_errors(layer, weight)[1] > 100 * error
    assert (outputs(rebuilt.network, (3, 8, 8)) - logits).abs().max() > 1e-4


@pytest.mark.parametrize("features", FEATURES)
def test_a_saved_source_reloads_to_the_same_logits(features, network, tmp_path):
    model, shape = network
    # Signs of 3 inputs and 2 outputs are 8 features up to a factor: of 9 draws too few differ.
    spec = FeatureSpec(features, oversampling=4.0 if features == "sign" else None)
    rebuilt = reconstruct(model, spec, images=torch.randn(16, *shape))
    path = rebuilt.save(tmp_path / "source.safetensors")
    other = enliven(type(model)() if isinstance(model, Residual) else _blank(model), shape, seed=9)
    loaded = bnrecon.load_source(path, other)
    assert torch.equal(outputs(loaded, shape), outputs(rebuilt.network, shape))
    collapsed = bnrecon.collapse(loaded)
    assert not source_layers(collapsed)
    assert (outputs(collapsed, shape) - outputs(model, shape)).abs().max() < 2e-5 * outputs(
        model, shape
    ).abs().max()


def _blank(model):
    import copy

    blank = copy.deepcopy(model)
    for parameter in blank.parameters():
        nn.init.normal_(parameter)
    return blank


def test_a_draw_that_differs_from_the_saved_one_is_refused(tmp_path, monkeypatch):
    model = enliven(nn.Conv2d(2, 3, 3), (2, 5, 5))
    path = reconstruct(model, "orthogonal").save(tmp_path / "source.safetensors")
    from bnrecon.features import distributions as module

    honest = module._orthonormal_columns
    monkeypatch.setattr(module, "_orthonormal_columns", lambda normal: honest(normal) * (1 + 1e-6))
    with pytest.raises(RunError, match="save with full=True"):
        bnrecon.load_source(path, model)


def test_the_full_state_dict_on_request(tmp_path):
    from safetensors.torch import load_file

    model = enliven(nn.Conv2d(2, 3, 3), (2, 5, 5))
    rebuilt = reconstruct(model)
    state = load_file(rebuilt.save(tmp_path / "full.safetensors", full=True))
    assert set(state) == set(rebuilt.network.state_dict())


@pytest.mark.parametrize(("depth", "layers", "stem"), [(18, 21, "cifar"), (50, 54, "imagenet")])
def test_residual_networks_of_torchvision_are_rebuilt_at_reduced_width(depth, layers, stem):
    shape = (3, 32, 32)
    model = enliven(build("resnet", shape, 10, depth=depth, width=1, stem=stem), shape)
    rebuilt = reconstruct(model, "he_normal", oversampling=2)
    assert len(rebuilt.layers) == layers
    assert (outputs(rebuilt.network, shape) - outputs(model, shape)).abs().max() < 1e-4 * outputs(
        model, shape
    ).abs().max()


def test_torchvisions_own_vgg_is_rebuilt_at_full_width_by_id_cond():
    """With a smaller head: its 25088 x 4096 alone would take 5 GB of normalization parameters."""
    torch.manual_seed(0)
    vgg = torchvision.models.vgg11_bn(num_classes=10)
    vgg.avgpool, vgg.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 10)
    vgg = vgg.eval()
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert (reconstruct(vgg, "id_cond").network(x) - vgg(x)).abs().max() < 1e-4


def test_layers_with_a_forward_of_their_own_are_refused():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            return nn.functional.conv2d(
                x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias
            )

    with pytest.raises(UserError, match="Standardised computes something of its own"):
        reconstruct(nn.Sequential(Standardised(2, 3, 3), nn.ReLU()).eval())
    kept = reconstruct(
        nn.ModuleDict({"a": nn.LSTM(4, 2), "b": nn.Linear(4, 2)}).eval(),
        unsupported="keep",
    )
    assert [layer.name for layer in kept.layers] == ["b"]


def test_views_empty_batches_and_single_images_pass_as_they_did():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(64, 5)

        def forward(self, x):
            return self.head(torch.max_pool2d(self.conv(input=x), 2).view(x.size(0), 64))

    model = Views().eval()
    network = reconstruct(model, images=torch.randn(4, 3, 8, 8)).network
    with torch.no_grad():
        for size in (0, 1, 3):
            x = torch.randn(size, 3, 8, 8)
            assert torch.allclose(network(x), model(x), atol=1e-4)
        assert torch.allclose(network.conv(x[0]), model.conv(x[0]), atol=1e-4)


def test_a_linear_layer_takes_sequences_and_a_folded_one_says_it_does_not():
    model = nn.Linear(6, 4).eval()
    x = torch.randn(2, 7, 6)
    with torch.no_grad():
        assert torch.allclose(reconstruct(model).network(x), model(x), atol=1e-5)
    folded = reconstruct(enliven(nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7)), (6,))).network
    with pytest.raises(ValueError, match="second dimension"):
        folded(x)


def test_a_layer_that_is_never_reached_is_rebuilt_all_the_same():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x)

    rebuilt = reconstruct(Spare().eval(), images=torch.randn(5, 4))
    assert [layer.name for layer in rebuilt.layers] == ["used", "spare"]
    with pytest.raises(UserError, match="layer spare: the images do not reach it"):
        reconstruct(Spare().eval(), FeatureSpec(activation="relu"), images=torch.randn(5, 4))


def test_below_the_minimum_width_the_error_is_that_of_least_squares():
    layer = nn.Conv2d(5, 6, 3).eval()
    report = reconstruct(layer, FeatureSpec(width=200, allow_below_minimum=True)).layers[0]
    assert not report.converged
    assert 0.3 < report.relative_error < 0.8  # sqrt(1 - 200/270) = 0.51 for random targets


def test_torchvisions_own_resnet_is_rebuilt_at_full_width_by_id_cond():
    torch.manual_seed(0)
    resnet = torchvision.models.resnet18(num_classes=10).eval()
    rebuilt = reconstruct(resnet, "id_cond")
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert (rebuilt.network(x) - resnet(x)).abs().max() < 1e-4
    assert len(rebuilt.layers) == 21
    assert {layer.convolutions for layer in rebuilt.layers} == {"stored", "implicit"}


def test_what_cannot_be_rebuilt_is_named_before_any_work():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps, self.pairs = nn.GRU(4, 5, batch_first=True), nn.Bilinear(5, 5, 3)
            self.last = nn.Linear(3, 2)

        def forward(self, x):
            x = self.steps(x)[0]
            return self.last(self.pairs(x, x))

    model = Recurrent().eval()
    with pytest.raises(
        UserError,
        match="steps: GRU is neither a convolution nor a linear layer; pairs: Bilinear is neither",
    ):
        reconstruct(model)
    kept = reconstruct(model, unsupported="keep")
    assert [layer.name for layer in kept.layers] == ["last"]
    assert any("GRU is neither" in note for note in kept.notes)
    x = torch.randn(2, 7, 4)
    with torch.no_grad():
        assert torch.allclose(kept.network(x), model(x), atol=1e-4)


def test_a_layer_too_large_for_the_machine_is_named_with_the_memory_it_needs(monkeypatch):
    from bnrecon.reconstruction import planning as module

    monkeypatch.setattr(module, "available_memory", lambda device: 10**6)
    with pytest.raises(
        UserError,
        match=r"the model: its 13824 features take .* free"
        r"; features=sign need not be stored; features=id_cond needs the least memory "
        r"\(error\.refused .*; unsupported='keep'",
    ):
        reconstruct(nn.Conv2d(32, 32, 3).eval())


def test_untraceable_networks_keep_their_normalization():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x)) if x.sum() > -1e9 else x

    model = enliven(Moody(), (2, 5, 5))
    rebuilt = reconstruct(model)
    assert any("cannot be traced" in note for note in rebuilt.notes)
    assert isinstance(rebuilt.network.norm, nn.BatchNorm2d)
    assert torch.allclose(outputs(rebuilt.network, (2, 5, 5)), outputs(model, (2, 5, 5)), atol=1e-5)


def test_a_layer_used_twice_is_rebuilt_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(torch.relu(self.norm(self.conv(x)))))

    model = enliven(Twice(), (3, 6, 6))
    rebuilt = reconstruct(model)
    assert len(rebuilt.layers) == 1
    assert isinstance(rebuilt.network.norm, nn.BatchNorm2d)
    assert torch.allclose(outputs(rebuilt.network, (3, 6, 6)), outputs(model, (3, 6, 6)), atol=1e-4)


def test_mistakes_in_the_call_are_named():
    model = nn.Conv2d(2, 3, 3)
    with pytest.raises(UserError, match=r"call model\.eval\(\)"):
        reconstruct(model)
    model.eval()
    partly = nn.Sequential(model, nn.BatchNorm2d(3)).eval()
    partly[1].train()
    with pytest.raises(UserError, match=r"call model\.eval\(\)"):
        reconstruct(partly)
    with pytest.raises(UserError, match=r"call model\.float\(\)"):
        reconstruct(nn.Linear(2, 2).half().eval())
    with pytest.raises(UserError, match="needs images"):
        reconstruct(model, FeatureSpec(activation="relu"))
    with pytest.raises(UserError, match="below the minimum width n - c2 \\+ 1 = 52"):
        reconstruct(model, FeatureSpec(width=51))
    with pytest.raises(UserError, match="Allowed: identity"):
        reconstruct(model, FeatureSpec(activation="swish"))
    with pytest.raises(UserError, match="epsilon=0: must be above 0"):
        reconstruct(
            model, FeatureSpec(activation="tanh", epsilon=0), images=torch.randn(2, 2, 5, 5)
        )
    with pytest.raises(UserError, match="margin=0: must be above 0"):
        reconstruct(model, FeatureSpec(activation="relu", margin=0), images=torch.randn(2, 2, 5, 5))
    with pytest.raises(UserError, match="no convolution"):
        reconstruct(nn.ReLU().eval())
    assert (
        not reconstruct(model, FeatureSpec(width=30, allow_below_minimum=True)).layers[0].converged
    )


def test_gathering_moments_leaves_no_hooks_behind():
    model = enliven(NETWORKS["vgg"][0](), (3, 8, 8))
    gather(model, find_layers(model).layers, [torch.randn(2, 3, 8, 8)])
    assert not any(module._forward_hooks for module in model.modules())


def test_training_mode_takes_batch_statistics_and_gradients_reach_normalization_alone():
    features_layer = next(
        iter(source_layers(reconstruct(enliven(nn.Conv2d(2, 3, 3), (2, 6, 6))).network).values())
    )
    assert isinstance(features_layer, SourceLayer)
    features_layer.train()
    features_layer(torch.randn(4, 2, 6, 6)).square().sum().backward()
    assert features_layer.first.weight.grad is None
    assert features_layer.first_norm.weight.grad.abs().sum() > 0
    assert features_layer.first_norm.num_batches_tracked == 1
