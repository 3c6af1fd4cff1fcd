"""Initialization from data: statistics of a data set, frozen before training."""

import pytest
import torch
import torchvision
from networks import Composed, NormAct, recorded, same_state
from torch import nn

from bnrecon.runtime.errors import UserError
from bnrecon.targets.initialization import (
    FrozenBatchNorm1d,
    FrozenBatchNorm2d,
    initialize_biases,
    initialize_from_data,
)


def resnet(norm_layer=None):
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=10, norm_layer=norm_layer).double()


@pytest.fixture(scope="module")
def images():
    torch.manual_seed(1)
    return torch.randn(12, 3, 32, 32, dtype=torch.float64) * 3 + 1


def assert_normalized(seen):
    for module, (_, output) in seen.items():
        assert output.mean((0, 2, 3)).abs().max() < 1e-8, module
        assert (output.var((0, 2, 3), unbiased=False) - 1).abs().max() < 1e-2, module


def test_folding_normalizes_every_convolution_without_batchnorm(images):
    network = resnet(nn.Identity)
    ready = initialize_from_data(network, images, method="fold")
    seen = recorded(ready.train(), nn.Conv2d, images)
    assert len(seen) == 20
    assert_normalized(seen)
    assert torch.equal(ready.fc.weight, network.fc.weight)  # the output layer is unchanged
    assert all(m.bias is not None for m in ready.modules() if isinstance(m, nn.Conv2d))
    assert type(ready) is type(network)


def test_freezing_and_folding_give_the_same_function(images):
    network = resnet(nn.Identity)
    frozen = initialize_from_data(network, images)
    folded = initialize_from_data(network, images, method="fold")
    assert isinstance(frozen.layer1[0].conv1[1], FrozenBatchNorm2d)
    assert_normalized(recorded(frozen.train(), FrozenBatchNorm2d, images))
    with torch.no_grad():
        difference = (frozen(images) - folded(images)).abs().max()
        assert difference < 1e-9 * frozen(images).abs().max()


@pytest.mark.parametrize("kind", [FrozenBatchNorm1d, FrozenBatchNorm2d])
def test_frozen_normalization_starts_as_the_identity(kind):
    layer = kind(2, eps=1e-300)
    images = torch.randn(5, 2, 3, 3) if kind is FrozenBatchNorm2d else torch.randn(5, 2)
    assert torch.equal(layer(images), images)  # mean 0 and variance 1, not the batch's
    assert not layer.running_mean.any()
    assert not layer.training


def test_updating_normalizations_leaves_frozen_statistics(images):
    network = initialize_from_data(resnet(), images)
    averaged = torch.optim.swa_utils.AveragedModel(network)
    torch.optim.swa_utils.update_bn([images], averaged)
    assert torch.equal(averaged.eval()(images), network.eval()(images))


def test_freezing_keeps_subclasses_hooks_and_shared_layers(images):
    norm = NormAct(4, dropout=0.5).double()
    norm.register_forward_hook(lambda _layer, _inputs, output: output + 1)
    network = nn.Sequential(nn.Conv2d(3, 4, 3).double(), nn.Sequential(norm))
    network.register_module("alias", nn.Identity())
    network.alias.norm = norm
    ready = initialize_from_data(network, images).train()
    assert ready[1][0] is ready.alias.norm
    assert isinstance(ready[1][0], FrozenBatchNorm2d)
    hidden = ready[0](images)
    wanted = (hidden - hidden.mean((0, 2, 3), keepdim=True)) / hidden.std((0, 2, 3), keepdim=True)
    assert (ready.eval()(images) - 1 - wanted.relu()).abs().max() < 1e-2
    assert not torch.equal(ready.train()(images), ready(images))  # its dropout is not frozen
    ready(images).sum().backward()
    assert ready[1][0].weight.grad.any()  # scale and shift learn


def test_normalization_keeps_its_scale_and_shift(images):
    norms = [nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    norms[0].weight = nn.Parameter(torch.tensor([2.0, -3.0, 1.0]))
    norms[1].weight = norms[2].bias = None
    for norm in norms:
        norm.double()
        ready = initialize_from_data(nn.Sequential(norm), images).train()
        wanted = norm.train()(images)
        assert (ready(images) - wanted).abs().max() < 1e-12


def test_folding_refuses_layers_that_compute_something_else():
    class Clipped(nn.Linear):
        def forward(self, x):
            return super().forward(x).clamp(-1, 1)

    hooked = nn.Linear(3, 4)
    hooked.register_forward_hook(lambda _layer, _inputs, output: 2 * output)
    for layer in (Clipped(3, 4), hooked):
        network = nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 1))
        with pytest.raises(
            UserError, match=r"method=fold: .* has (a )?forward .*; give method=freeze"
        ):
            initialize_from_data(network, torch.randn(8, 3), method="fold")
        inputs = torch.randn(64, 3)
        hidden = initialize_from_data(network, inputs)[0](inputs)
        assert hidden.mean(0).abs().max() < 1e-5


def test_layer_with_two_names_is_normalized_under_both():
    first, last, inputs = nn.Linear(3, 4), nn.Linear(4, 1), torch.randn(64, 3) + 3
    parts = {"first": first, "last": last, "alias": first, "inner": nn.ModuleList([first])}
    twice = Composed(lambda self, x: self.last(self.inner[0](x)), **parts)
    ready = initialize_from_data(twice, inputs)
    assert ready.first is ready.alias is ready.inner[0]
    assert ready.alias(inputs).mean(0).abs().max() < 1e-5


@pytest.mark.parametrize("method", ["freeze", "fold"])
def test_batches_match_all_images_at_once(images, method):
    network = resnet(nn.Identity)
    whole = initialize_from_data(network, images, method=method).state_dict()
    parts = initialize_from_data(network, images.split(5), method=method).state_dict()
    for name, value in whole.items():
        assert (parts[name] - value).abs().max() <= 1e-9 * value.abs().max(), name


def test_biases_are_zero_or_uniform_within_the_fan_in():
    torch.manual_seed(3)
    network = nn.Sequential(nn.Conv2d(4, 500, 5, bias=False), nn.Flatten(), nn.Linear(16, 3))
    initialize_biases(network, "random", seed=3)
    assert not torch.isin(network[0].bias, network[0].weight).any()  # same seed for weights
    assert network[0].bias.abs().max().item() == pytest.approx(0.1, rel=0.05)
    again = initialize_biases(nn.Conv2d(4, 500, 5), "random", seed=3)
    assert torch.equal(again.bias, network[0].bias)
    initialize_biases(network, "zero")
    assert not network[0].bias.any()
    assert not network[2].bias.any()


@pytest.mark.parametrize("method", ["freeze", "fold"])
@pytest.mark.parametrize(
    ("layer", "inputs", "message"),
    [
        (nn.Conv1d(3, 3, 1), torch.ones(4, 3, 1), "Conv1d: only Linear, Conv2d, "),
        (nn.BatchNorm3d(3), torch.ones(4, 3, 1, 1, 1), "BatchNorm3d: only Linear, Conv2d, "),
        (nn.Linear(3, 3), torch.full((4, 3), torch.nan), "0: its values .* are not all finite"),
        (nn.Linear(3, 3), [(torch.ones(4, 3), torch.ones(4))], "inputs: a batch is tuple"),
    ],
)
def test_layers_that_would_be_skipped_or_spoilt_are_refused(layer, inputs, message, method):
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(3, 2))
    with pytest.raises(UserError, match=message):
        initialize_from_data(network, inputs, method=method)


def test_any_convolution_is_initialized_with_batchnorm():
    network = nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(6, 2))
    x = torch.randn(16, 3, 2)
    hidden = initialize_from_data(network, x)[:2](x)
    assert hidden.mean((0, 2)).abs().max() < 1e-5


@pytest.mark.parametrize("tied", [1, 2])
def test_weight_shared_by_two_layers_is_not_folded(tied):
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    network[tied].weight = network[0].weight
    with pytest.raises(UserError, match="two layers share a weight; give method=freeze"):
        initialize_from_data(network, torch.randn(8, 3), method="fold")


@pytest.mark.parametrize("method", ["freeze", "fold"])
def test_sequences_and_empty_inputs_are_refused(method):
    """Dimension 1 of (n, steps, features) is no channel, even where sizes agree."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(UserError, match=r"runs on inputs of shape \(4, 3\)"):
        initialize_from_data(network, torch.randn(8, 4, 3), method=method)
    with pytest.raises(UserError, match="inputs: there are none"):
        initialize_from_data(network, [], method=method)
    with pytest.raises(UserError, match="one point has no variance"):
        initialize_from_data(network, torch.randn(1, 3), method=method)


@pytest.mark.parametrize("method", ["freeze", "fold"])
def test_one_image_has_a_variance_over_its_positions(method):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3)).double()
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    first = initialize_from_data(network, image, method=method)[0]
    assert (first(image).std((0, 2, 3)) - 1).abs().max() < 0.01


@pytest.mark.parametrize("eps", [-1.0, 0.0, float("nan"), "small"])
def test_impossible_eps_is_refused(eps):
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(UserError, match="eps"):
        initialize_from_data(network, torch.randn(8, 3), method="fold", eps=eps)


def test_compiled_network_is_initialized_as_the_original():
    network, inputs = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(8, 3)
    compiled = initialize_from_data(torch.compile(network), inputs, method="fold")
    assert same_state(compiled, initialize_from_data(network, inputs, method="fold"))


def test_norm_without_statistics_is_not_frozen():
    with pytest.raises(UserError, match="track_running_stats=False"):
        FrozenBatchNorm1d(3, track_running_stats=False)
