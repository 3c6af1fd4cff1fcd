"""Target networks: their sizes as published, their schedule, and training that stops and goes on to the same numbers."""

import dataclasses

import pytest
import torch
from torch import nn

from bnrecon.config import composition
from bnrecon.runtime import files
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets import trainer as training
from bnrecon.targets.models import (
    activation,
    build,
    minimum_width_count,
    parameter_count,
    register_target,
)
from bnrecon.targets.schedule import WarmupCosine
from bnrecon.targets.store import target_folder
from bnrecon.targets.trainer import TrainingPlan, train

CPU = torch.device("cpu")
PLAN = TrainingPlan(2, 0.1, 0.9, 5e-4, False, 128, 0.5, 0, torch.float32)


def small(seed=0):
    torch.manual_seed(seed)
    return build("vgg", (1, 8, 8), 10, width=4, groups=[1, 1], activation="relu")


def test_vgg18_has_the_published_numbers_of_parameters():
    """592,657 is Burkholz 2024, Sect. 3.2; 594,378 the trained network with its BatchNorm and linear layer."""
    network = build("vgg", (3, 32, 32), 10, width=64, groups=[2, 3, 4, 4, 4], activation="relu")
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 17
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == 17
    assert sum(isinstance(m, nn.MaxPool2d) for m in network.modules()) == 5
    assert parameter_count(network) == 594_378
    assert minimum_width_count(network) == 592_657
    assert network.skipped_poolings == 0
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_poolings_below_side_one_are_skipped_and_counted():
    network = build("vgg", (1, 8, 8), 10, width=4, groups=[1, 1, 1, 1, 1], activation="tanh")
    assert network.skipped_poolings == 2
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(("depth", "count"), [(18, 11_689_512), (50, 25_557_032)])
def test_resnets_of_full_width_are_torchvisions(depth, count):
    assert (
        parameter_count(build("resnet", (3, 224, 224), 1000, depth=depth, width=64, stem="auto"))
        == count
    )


def test_the_cifar_stem_keeps_the_image_size():
    network = build("resnet", (3, 32, 32), 10, depth=18, width=8, stem="auto")
    assert network.conv1.kernel_size == (3, 3)
    assert isinstance(network.maxpool, nn.Identity)
    assert network.layer4[1].conv2.out_channels == 64
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_activations_are_the_papers():
    assert activation("leaky_relu").negative_slope == 0.01
    with pytest.raises(UserError, match="did you mean 'relu'"):
        activation("rellu")


def test_an_own_family_can_be_registered():
    @register_target("flat_linear")
    def flat_linear(shape, classes, width):
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(shape[0] * shape[1] * shape[2], width),
            nn.Linear(width, classes),
        )

    assert build("flat_linear", (1, 2, 2), 3, width=5)(torch.zeros(1, 1, 2, 2)).shape == (1, 3)
    with pytest.raises(UserError, match="does not take these options"):
        build("flat_linear", (1, 2, 2), 3, width=5, depth=7)
    with pytest.raises(UserError, match="did you mean 'vgg'"):
        build("vggg", (1, 2, 2), 3)


def test_the_schedule_is_linear_then_cosine():
    schedule = WarmupCosine(0.1, warmup_steps=50, total_steps=250)
    assert schedule(0) == pytest.approx(0.002)
    assert schedule(49) == pytest.approx(0.1)
    assert schedule(50) == pytest.approx(0.1)
    assert schedule(150) == pytest.approx(0.05)
    assert schedule(249) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 7, 11, 12, 22])
def test_interrupted_training_ends_at_the_same_numbers(digits, tmp_path, dtype, steps):
    plan = dataclasses.replace(PLAN, dtype=dtype)
    whole = small()
    log, _ = train(whole, digits, plan, CPU, tmp_path / "none", 1e9, StopRequest())

    class After(StopRequest):
        looked = 0

        @property
        def reason(self):
            self.looked += 1
            return "a test wants it" if self.looked >= steps else None

    part = small()
    with pytest.raises(Interrupted, match=f"training is saved at step {steps} of 22"):
        train(part, digits, plan, CPU, tmp_path / "checkpoint", 1e9, After())
    other = small(seed=5)  # what it starts from does not matter: the checkpoint does
    resumed_log, _ = train(other, digits, plan, CPU, tmp_path / "checkpoint", 1e9, StopRequest())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert resumed_log == log


def test_training_learns(digits, tmp_path):
    network = build("vgg", (1, 8, 8), 10, width=8, groups=[1, 1], activation="relu")
    log, _ = train(
        network,
        digits,
        dataclasses.replace(PLAN, epochs=4, batch_size=32),
        CPU,
        tmp_path / "c",
        1e9,
        StopRequest(),
    )
    assert [row["epoch"] for row in log] == [1, 2, 3, 4]
    assert log[-1]["accuracy"] > 80
    assert log[-1]["loss"] < log[0]["loss"]


def test_divergence_is_a_clear_line_and_keeps_the_last_good_checkpoint(digits, tmp_path):
    plan = dataclasses.replace(PLAN, lr=1e30, epochs=3)
    with pytest.raises(
        RunError, match=r"diverged: the loss is (nan|inf) at step .*lower train\.lr"
    ):
        train(small(), digits, plan, CPU, tmp_path / "checkpoint", 0, StopRequest())
    tensors, about = files.read_tensors(tmp_path / "checkpoint")
    assert about["step"] >= 1
    assert torch.isfinite(tensors["sums"]).all()


def test_a_damaged_checkpoint_is_named_and_training_starts_anew(digits, tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted):
        train(small(), digits, PLAN, CPU, checkpoint, 1e9, StopRequest(time_limit=0))
    content = bytearray(checkpoint.read_bytes())
    content[-100] ^= 1
    checkpoint.write_bytes(content)
    network = small()
    train(network, digits, PLAN, CPU, checkpoint, 1e9, StopRequest())
    assert "checkpoint.safetensors is damaged" in capsys.readouterr().err
    assert (tmp_path / "checkpoint.safetensors.damaged").exists()
    whole = small()
    train(whole, digits, PLAN, CPU, tmp_path / "none", 1e9, StopRequest())
    assert all(
        torch.equal(value, network.state_dict()[name]) for name, value in whole.state_dict().items()
    )


@pytest.mark.parametrize("change", ["shape", "name", "momentum", "nothing known", "step"])
def test_a_checkpoint_of_another_network_is_set_aside_and_nothing_of_it_taken(
    digits, tmp_path, capsys, change
):
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted):
        train(small(), digits, PLAN, CPU, checkpoint, 1e9, StopRequest(time_limit=0))
    tensors, about = files.read_tensors(checkpoint)
    name = next(
        key
        for key in tensors
        if key.startswith("momentum." if change == "momentum" else "network.")
    )
    if change == "nothing known":
        about = {"step": 1}
    elif change == "step":
        about["step"] = 10**9
    elif change == "name":
        tensors["network.other"] = tensors.pop(name)
    else:
        tensors[name] = torch.zeros(2, 3, 4)
    files.write_tensors(checkpoint, tensors, about)
    network, whole = small(), small()
    train(network, digits, PLAN, CPU, checkpoint, 1e9, StopRequest())
    assert "is of another network or training; set aside" in capsys.readouterr().err
    train(whole, digits, PLAN, CPU, tmp_path / "none", 1e9, StopRequest())
    assert all(
        torch.equal(value, network.state_dict()[key]) for key, value in whole.state_dict().items()
    )


def test_a_target_is_named_by_its_arithmetic_not_by_how_that_was_asked_for(digits, monkeypatch):
    """On a machine slow at bf16 a target trained in it is found by asking for bf16."""
    cpu = torch.device("cpu")

    def folder(*words):
        return target_folder(composition.compose(list(words)), digits, cpu)

    monkeypatch.setattr(training, "has_fast_bfloat16", lambda device: True)
    trained = folder()
    monkeypatch.setattr(training, "has_fast_bfloat16", lambda device: False)
    assert folder() != trained
    assert folder("train.precision=bfloat16") == trained
    assert folder("train.precision=float32") == folder()
