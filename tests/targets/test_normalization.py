"""Targets without scales and shifts, with noise, and without BatchNorm."""

import contextlib
import copy
import dataclasses

import pytest
import torch
from networks import NormAct, StopAfter, recorded, same_state
from torch import nn

import bnrecon
from bnrecon.data import DataSpec
from bnrecon.partition import set_statistics
from bnrecon.runtime.errors import Diverged, Interrupted, UserError
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets.building import build_target
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm1d
from bnrecon.targets.normalization import change_normalization, initialize_statistics
from bnrecon.targets.spec import (
    INITIALIZATIONS,
    DropoutCnnTarget,
    MlpTarget,
    Resnet9Target,
    TargetRequest,
    TrainSpec,
)
from bnrecon.targets.step import TrainingPlan
from bnrecon.targets.store import obtain_target
from bnrecon.targets.trainer import train

CPU = torch.device("cpu")
SPEC = TrainSpec(epochs=1, warmup_epochs=0.5, batch_size=128, checkpoint_seconds=1e9)
FROZEN = ("frozen_statistics", "frozen_scale")
WITHOUT_BATCHNORM = INITIALIZATIONS[1:]


def resnet9(**options):
    return Resnet9Target(name="resnet9", family="resnet9", width=4, **options)


def request_for(target, store, **train):
    spec = dataclasses.replace(SPEC, precision="float32", **train)
    return TargetRequest(target, spec, DataSpec("digits"), store)


def initialized(target, digits, width=4):
    """A network changed as the target asks, with its statistics set."""
    torch.manual_seed(0)
    plain = bnrecon.targets.resnet9.resnet9((1, 8, 8), 10, width)
    network = change_normalization(plain, target, 0)
    initialize_statistics(network, target, digits, CPU)
    return network


def train_initialized(network, target, digits, checkpoint, stop=None, after=lambda network: None):
    """Train a network after setting its statistics; ``after`` receives it in between."""

    def initialize(network):
        initialize_statistics(network, target, digits, CPU)
        after(network)

    plan = TrainingPlan(dataclasses.replace(SPEC, precision="float32"), torch.float32)
    train(network, digits, plan, CPU, checkpoint, stop or StopRequest(), initialize)


def parameters(network):
    return {name: value.shape for name, value in network.named_parameters()}


def test_subclass_keeps_its_activation_or_is_refused():
    network, images = nn.Sequential(NormAct(3)), torch.randn(8, 3, 4, 4)
    with pytest.raises(UserError, match=r"NormAct has a forward pass of its own, .* removed"):
        change_normalization(network, resnet9(initialization="zero_bias"), 0)
    frozen = change_normalization(network, resnet9(initialization="frozen_statistics"), 0)
    assert (frozen.train()(images) - images.relu()).abs().max() < 1e-4  # mean 0, variance 1
    assert not list(frozen.parameters())


def test_initializations_without_batchnorm_learn_the_same_parameters(digits, tmp_path):
    built = {
        name: build_target(request_for(resnet9(initialization=name), tmp_path), digits)
        for name in WITHOUT_BATCHNORM
    }
    first = built["zero_bias"]
    for name, network in built.items():
        assert sorted(parameters(network)) == sorted(parameters(first)), name
        for key, value in network.named_parameters():
            if not key.endswith("bias"):
                assert torch.equal(value, first.get_parameter(key)), (name, key)
            elif name == "random_bias":
                assert value.abs().max() > 0
            else:
                assert not value.any()


def test_random_biases_depend_on_the_seed(digits, tmp_path):
    one, other = (
        build_target(
            request_for(resnet9(initialization="random_bias"), tmp_path, seed=seed), digits
        )
        for seed in (0, 1)
    )
    biases = [key for key in parameters(one) if key.endswith("bias")]
    assert biases
    assert all(not torch.equal(one.get_parameter(k), other.get_parameter(k)) for k in biases)


@pytest.mark.parametrize("initialization", FROZEN)
def test_frozen_statistics_are_those_of_all_training_images(digits, initialization):
    """A frozen scale divides by the root mean square without a translation."""
    network = initialized(resnet9(initialization=initialization), digits)
    images = next(digits.plain_train_batches(10_000, CPU, 10_000))
    assert len(images) == digits.sizes[0]
    norms = recorded(network.train(), nn.BatchNorm2d, images)
    _, output = list(norms.values())[3]
    assert torch.allclose((output**2).mean((0, 2, 3)), torch.ones(8), atol=1e-3)
    if initialization == "frozen_scale":
        assert not any(norm.running_mean.any() for norm in norms)
    else:
        assert torch.allclose(output.mean((0, 2, 3)), torch.zeros(8), atol=1e-4)


def test_folded_statistics_give_the_same_function(digits):
    """Until the first step: frozen ones keep dividing what the weights learn."""
    images = next(digits.plain_train_batches(200, CPU, 200))
    frozen, folded = (
        initialized(resnet9(initialization=name), digits)
        for name in ("frozen_statistics", "folded_statistics")
    )
    assert frozen.training
    assert folded.training
    outputs = frozen(images).detach()
    assert torch.allclose(folded(images), outputs, atol=1e-4 * float(outputs.abs().max()))
    norms = [m for m in folded.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(not norm.running_mean.any() for norm in norms)
    assert not torch.equal(frozen.first[0].weight, folded.first[0].weight)
    for norm in norms:
        x = torch.randn(2, norm.num_features, 3, 3)
        assert torch.allclose(norm(x), x, atol=1e-6)


def test_unfoldable_batchnorm_is_named(digits):
    """A BatchNorm after an activation."""
    target = resnet9(initialization="folded_statistics")
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2), nn.Flatten())
    network = change_normalization(network, target, 0)
    with pytest.raises(UserError, match="does not follow a linear layer or convolution"):
        initialize_statistics(network, target, digits, CPU)


@pytest.mark.parametrize("initialization", FROZEN)
def test_training_keeps_frozen_statistics(digits, tmp_path, initialization):
    target = resnet9(initialization=initialization)
    network = build_target(request_for(target, tmp_path), digits)
    before = {}

    def keep(network):
        before.update(copy.deepcopy(network.state_dict()))

    train_initialized(network, target, digits, tmp_path / "none", after=keep)
    for name, value in network.state_dict().items():
        frozen = "running" in name or "num_batches" in name
        assert torch.equal(value, before[name]) == frozen, name


@pytest.mark.parametrize(
    "target",
    [
        DropoutCnnTarget(name="cnn", family="dropout_cnn", width=6),
        resnet9(virtual_batch=32),
        resnet9(initialization="frozen_statistics"),
    ],
    ids=["dropout", "noise", "frozen"],
)
def test_interrupted_training_draws_the_same_noise(digits, tmp_path, target):
    request = request_for(target, tmp_path)
    whole, part, resumed = (build_target(request, digits) for _ in range(3))
    train_initialized(whole, target, digits, tmp_path / "none")
    torch.rand(5)  # the caller's random numbers have no effect
    with pytest.raises(Interrupted):
        train_initialized(part, target, digits, tmp_path / "checkpoint", StopAfter(4))
    train_initialized(resumed, target, digits, tmp_path / "checkpoint")
    assert same_state(resumed, whole)


def test_damaged_checkpoint_keeps_the_frozen_statistics(digits, tmp_path):
    target = resnet9(initialization="frozen_statistics")
    (tmp_path / "checkpoint").write_bytes(b"damaged")
    network = build_target(request_for(target, tmp_path), digits)
    train_initialized(network, target, digits, tmp_path / "checkpoint")
    assert all(m.running_mean.any() for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_training_keeps_the_callers_random_state(digits, tmp_path):
    network = build_target(request_for(resnet9(), tmp_path), digits)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(network, digits, TrainingPlan(SPEC, torch.float32), CPU, tmp_path / "c", StopRequest())
    assert torch.equal(torch.rand(3), expected)


def test_log_has_the_test_accuracies(digits, tmp_path):
    trained = obtain_target(request_for(resnet9(), tmp_path, epochs=3, test_every=2), digits, CPU)
    accuracies = [row.get("test_accuracy") for row in trained.about["log"]]
    assert accuracies[0] is None
    assert accuracies[1] is not None
    final = obtain_target(request_for(resnet9(), tmp_path, epochs=2, test_every=1), digits, CPU)
    assert final.about["log"][-1]["test_accuracy"] == final.about["accuracy"]


def test_testing_during_training_changes_no_weight(digits, tmp_path):
    cnn = DropoutCnnTarget(name="cnn", family="dropout_cnn", width=6)  # draws random numbers
    tested = obtain_target(request_for(cnn, tmp_path, epochs=2, test_every=1), digits, CPU)
    untested = obtain_target(request_for(cnn, tmp_path, epochs=2), digits, CPU)
    assert same_state(tested.network, untested.network)


@pytest.mark.parametrize("name", [*WITHOUT_BATCHNORM, "affine", "noise"])
def test_changed_network_is_rebuilt(digits, name):
    options = {"affine": {"affine": False}, "noise": {"virtual_batch": 8}}
    network = initialized(resnet9(**options.get(name, {"initialization": name})), digits, 2)
    images = next(digits.plain_train_batches(64, CPU, 64))
    if name in options:
        set_statistics(network, images)
    rebuilt = bnrecon.reconstruct(copy.deepcopy(network).eval(), images=images)
    assert rebuilt.difference.largest < 1e-4 * rebuilt.difference.size


def test_every_family_takes_noise_unless_it_has_no_effect(digits, tmp_path):
    mlp = MlpTarget(name="mlp", family="mlp", width=4, virtual_batch=8)
    network = build_target(request_for(mlp, tmp_path), digits)
    assert any(isinstance(layer, NoisyBatchNorm1d) for layer in network.modules())
    with pytest.raises(UserError, match=r"virtual_batch=128: must be below the 128 images"):
        obtain_target(request_for(resnet9(virtual_batch=128), tmp_path), digits, CPU)


def test_without_scales_a_users_batchnorm_keeps_its_class():
    class OwnNorm(nn.BatchNorm2d):
        def __init__(self, channels):
            super().__init__(channels, track_running_stats=False)

    network = change_normalization(nn.Sequential(OwnNorm(3)), resnet9(affine=False), 0)
    assert isinstance(network[0], OwnNorm)
    assert network[0].running_mean is None
    assert not list(network.parameters())
    assert network(torch.randn(4, 3, 2, 2)).shape == (4, 3, 2, 2)


def test_statistics_can_be_interrupted_and_are_saved_once(digits, tmp_path):
    target = resnet9(initialization="frozen_statistics")
    network = build_target(request_for(target, tmp_path), digits)
    with pytest.raises(Interrupted, match="while statistics were computed"):
        initialize_statistics(network, target, digits, CPU, StopRequest(time_limit=0))
    calls, checkpoint = [], tmp_path / "checkpoint"
    for stop in (StopRequest(time_limit=0), StopRequest()):
        with contextlib.suppress(Interrupted):
            train_initialized(network, target, digits, checkpoint, stop, calls.append)
    assert len(calls) == 1


def test_non_finite_test_outputs_are_a_divergence(digits, tmp_path):
    request = request_for(resnet9(), tmp_path, lr=1e30, test_every=1, warmup_epochs=0)
    with pytest.raises(Diverged, match=r"training diverged: .*lower train\.lr"):
        obtain_target(request, digits, CPU)
    assert not list(tmp_path.glob("*/target.*"))
