"""Target networks: published sizes, resumed training, and stored targets."""

import copy
import dataclasses
import shutil

import pytest
import torch
from networks import StopAfter, same_state, small_vgg
from torch import nn

from bnrecon.config import composition
from bnrecon.data.batches import EpochPosition
from bnrecon.runtime import files
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets import location
from bnrecon.targets.building import build_target, training_bytes
from bnrecon.targets.location import is_trained, target_folder
from bnrecon.targets.models import (
    ACTIVATIONS,
    make_activation,
    minimum_width_count,
    parameter_count,
    skipped_poolings,
)
from bnrecon.targets.register import FAMILIES, build
from bnrecon.targets.spec import (
    ACTIVATION_NAMES,
    CustomTarget,
    NormalizationVggTarget,
    Resnet9Target,
    TrainSpec,
    VggTarget,
)
from bnrecon.targets.step import Step, TrainingPlan
from bnrecon.targets.store import obtain_target
from bnrecon.targets.trainer import Trainer, train

CPU = torch.device("cpu")
SPEC = TrainSpec(epochs=2, warmup_epochs=0.5, checkpoint_seconds=1e9)
PLAN = TrainingPlan(SPEC, torch.float32)
# A small network of every registered family, by the options of its builder.
SMALL = {
    "vgg": {"groups": [1, 1], "activation": "relu"},
    "vgg_normalization": {
        "groups": [1, 1],
        "activation": "relu",
        "features": "he_normal",
        "excess": 5,
        "inner": "batchnorm",
    },
    "resnet": {"depth": 18, "stem": "auto"},
    "resnet9": {},
    "dropout_resnet": {"depth": 1},
    "dropout_cnn": {},
    "mlp": {"depth": 2, "activation": "relu"},
}


def changed(**fields):
    return dataclasses.replace(PLAN, spec=dataclasses.replace(SPEC, **fields))


def test_vgg18_has_the_published_numbers_of_parameters():
    """592,657: Burkholz 2024, Sect. 3.2; 594,378: with BatchNorm and the linear layer."""
    network = build("vgg", (3, 32, 32), 10, width=64, groups=[2, 3, 4, 4, 4], activation="relu")
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 17
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == 17
    assert sum(isinstance(m, nn.MaxPool2d) for m in network.modules()) == 5
    assert parameter_count(network) == 594_378
    assert minimum_width_count(network) == 592_657
    assert skipped_poolings((3, 32, 32), [2, 3, 4, 4, 4]) == 0
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_poolings_below_side_one_are_skipped_and_counted():
    network = build("vgg", (1, 8, 8), 10, width=4, groups=[1, 1, 1, 1, 1], activation="tanh")
    assert sum(isinstance(m, nn.MaxPool2d) for m in network.modules()) == 3
    assert skipped_poolings((1, 8, 8), [1, 1, 1, 1, 1]) == 2
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_activations_are_the_papers():
    assert tuple(ACTIVATIONS) == ACTIVATION_NAMES
    assert make_activation("leaky_relu").negative_slope == 0.01
    with pytest.raises(UserError, match="did you mean 'relu'"):
        make_activation("rellu")


def test_every_family_maps_images_to_logits():
    assert set(SMALL) == set(FAMILIES)
    for family, options in SMALL.items():
        network = build(family, (3, 8, 8), 10, width=4, **options)
        assert network(torch.randn(2, 3, 8, 8)).shape == (2, 10), family


def test_training_memory_counts_weights_gradients_and_momenta():
    vgg = VggTarget("vgg18", "vgg")
    assert training_bytes(vgg) == 12 * 594_378  # Burkholz 2024, Sect. 3.2
    trained = NormalizationVggTarget("trained", "vgg_normalization", features="none")
    assert training_bytes(trained) == training_bytes(vgg)
    pairs = NormalizationVggTarget("pairs", "vgg_normalization", groups=[1, 1], width=8)
    assert training_bytes(pairs) == 4 * (3 + 8) * 8 * 9 * 80
    narrow, wide = (Resnet9Target("resnet9", "resnet9", width=width) for width in (16, 64))
    assert training_bytes(wide) == 12 * 6_573_120 > 15 * training_bytes(narrow)
    assert training_bytes(CustomTarget("mine", "mine")) == 0


def test_unknown_family_or_option_is_named():
    with pytest.raises(UserError, match="does not take these options"):
        build("resnet9", (3, 8, 8), 10, width=4, depth=7)
    with pytest.raises(UserError, match="did you mean 'vgg'"):
        build("vggg", (1, 2, 2), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 7, 11, 12, 22])
def test_interrupted_training_ends_at_the_same_numbers(digits, tmp_path, dtype, steps):
    plan = dataclasses.replace(PLAN, dtype=dtype)
    whole = small_vgg()
    log, _ = train(whole, digits, plan, CPU, tmp_path / "none", StopRequest())

    part = small_vgg()
    with pytest.raises(Interrupted, match=f"training is saved at step {steps} of 22"):
        train(part, digits, plan, CPU, tmp_path / "checkpoint", StopAfter(steps))
    other = small_vgg(seed=5)  # the checkpoint replaces its start
    resumed_log, _ = train(other, digits, plan, CPU, tmp_path / "checkpoint", StopRequest())
    assert same_state(other, whole)
    assert resumed_log == log


def test_training_learns(digits, tmp_path):
    network = build("vgg", (1, 8, 8), 10, width=8, groups=[1, 1], activation="relu")
    log, _ = train(
        network,
        digits,
        changed(epochs=4, batch_size=32),
        CPU,
        tmp_path / "c",
        StopRequest(),
    )
    assert [row["epoch"] for row in log] == [1, 2, 3, 4]
    assert log[-1]["accuracy"] > 80
    assert log[-1]["loss"] < log[0]["loss"]


@pytest.mark.parametrize(("epochs", "warmup", "steps"), [(2, 5, 11), (10, 2, 22), (10, 5.0, 55)])
def test_warm_up_takes_at_most_half_of_a_training(digits, epochs, warmup, steps):
    plan = changed(epochs=epochs, warmup_epochs=warmup)  # 11 steps an epoch
    assert Trainer(small_vgg(), digits, plan, CPU).warmup == steps


def test_step_returns_the_sums_over_its_images(digits):
    network = small_vgg().train()
    x, y = next(digits.train_batches(EpochPosition(32, 0, 0), CPU))
    logits = copy.deepcopy(network)(x)
    loss = nn.functional.cross_entropy(logits, y, reduction="sum")
    expected = [loss.item(), (logits.argmax(1) == y).sum().item(), 32]
    step = Step(network, torch.optim.SGD(network.parameters(), 0.1), PLAN, CPU)
    assert step(x, y, 0.1).tolist() == pytest.approx(expected, rel=1e-5)


def test_poolings_limit_the_groups_that_end_in_one():
    options = {"width": 4, "groups": [1, 1, 1], "activation": "relu"}
    for poolings in range(4):
        network = build("vgg", (1, 16, 16), 10, poolings=poolings, **options)
        assert sum(isinstance(m, nn.MaxPool2d) for m in network.modules()) == poolings


def test_divergence_is_one_line_and_keeps_the_last_checkpoint(digits, tmp_path):
    plan = changed(lr=1e30, epochs=3, checkpoint_seconds=1e-9)
    with pytest.raises(
        RunError, match=r"diverged: the loss is (nan|inf) at step .*lower train\.lr"
    ):
        train(small_vgg(), digits, plan, CPU, tmp_path / "checkpoint", StopRequest())
    tensors, about = files.read_tensors(tmp_path / "checkpoint")
    assert about["step"] >= 1
    assert torch.isfinite(tensors["sums"]).all()


def test_checkpoint_of_another_folder_is_set_aside(digits, tmp_path, caplog):
    one, other = (tmp_path / name / "checkpoint.safetensors" for name in ("one", "other"))
    with pytest.raises(Interrupted):
        train(small_vgg(), digits, PLAN, CPU, one, StopRequest(time_limit=0))
    other.parent.mkdir()
    shutil.copy(one, other)
    plan = changed(epochs=1)
    assert train(small_vgg(), digits, plan, CPU, other, StopRequest())[0][0]["epoch"] == 1
    assert f"{other} is of one; set aside" in caplog.text
    tensors, about = files.read_tensors(one)
    del about["folder"]  # missing in earlier versions
    files.write_tensors(other, tensors, about)
    caplog.set_level("INFO")
    train(small_vgg(), digits, plan, CPU, other, StopRequest())
    assert "resuming at step 1 of" in caplog.text


def test_target_of_two_processes_that_one_finished_says_so(digits, tmp_path, caplog):
    overrides = ("target.width=2", "target.groups=[1]", "train.epochs=1", f"targets={tmp_path}")
    request = composition.compose(overrides).target_request
    plan = location.training_plan(request, CPU)
    checkpoint = target_folder(request, digits, CPU) / location.CHECKPOINT
    with pytest.raises(Interrupted):
        train(build_target(request, digits), digits, plan, CPU, checkpoint, StopAfter(1))
    tensors, about = files.read_tensors(checkpoint)
    files.write_tensors(checkpoint, tensors, about | {"processes": 2})
    with pytest.raises(Interrupted):
        train(build_target(request, digits), digits, plan, CPU, checkpoint, StopAfter(1))
    assert "2 processes trained it so far, now 1" in caplog.text
    assert obtain_target(request, digits, CPU).about["processes"] == 2


@pytest.mark.parametrize(
    "change", ["shape", "name", "momentum", "nothing known", "step", "damaged"]
)
def test_foreign_or_damaged_checkpoint_is_set_aside(digits, tmp_path, caplog, change):
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted):
        train(small_vgg(), digits, PLAN, CPU, checkpoint, StopRequest(time_limit=0))
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
    if change == "damaged":
        content = bytearray(checkpoint.read_bytes())
        content[-100] ^= 1
        checkpoint.write_bytes(content)
    network, whole = small_vgg(), small_vgg()
    train(network, digits, PLAN, CPU, checkpoint, StopRequest())
    reason = "is damaged" if change == "damaged" else "is of another network or training; set aside"
    assert f"checkpoint.safetensors {reason}" in caplog.text
    assert (tmp_path / "checkpoint.safetensors.damaged").exists()
    train(whole, digits, PLAN, CPU, tmp_path / "none", StopRequest())
    assert same_state(network, whole)


def test_precision_names_a_target_however_it_was_chosen(digits, tmp_path, monkeypatch):
    """A target trained on a machine with fast bf16 is read elsewhere by precision=bfloat16."""

    def folder(*overrides):
        config = composition.compose((*overrides, f"targets={tmp_path}"))
        return target_folder(config.target_request, digits, CPU)

    monkeypatch.setattr(location, "has_fast_bfloat16", lambda device: True)
    trained = folder()
    monkeypatch.setattr(location, "has_fast_bfloat16", lambda device: False)
    assert folder() != trained
    assert folder("train.precision=bfloat16") == trained
    assert folder("train.precision=float32") == folder()


@pytest.fixture
def stored(digits, tmp_path):
    """A request, its folder here, and its target trained on a GPU in bfloat16."""
    overrides = ("target.width=2", "target.groups=[1]", "train.epochs=1", f"targets={tmp_path}")
    request = composition.compose(overrides).target_request
    here = obtain_target(request, digits, CPU).folder
    there = location.device_folder(request, digits, "cuda", torch.bfloat16)
    assert there != here
    about = files.read_json(here / "target.json") | {"device": "cuda", "precision": "bfloat16"}
    files.write_json(here / "target.json", about)
    here.rename(there)
    return request, here, there


def test_target_is_reused_whatever_device_trained_it(digits, stored, caplog):
    request, _, there = stored
    caplog.set_level("INFO")
    assert is_trained(request, digits, CPU)
    assert obtain_target(request, digits, CPU).folder == there
    assert "was trained on cuda in bfloat16" in caplog.text


def test_chosen_precision_is_not_replaced(digits, stored):
    request, _, there = stored
    chosen = dataclasses.replace(request.train, precision="float32")
    assert not is_trained(dataclasses.replace(request, train=chosen), digits, CPU)
    chosen = dataclasses.replace(request.train, precision="bfloat16")
    folder = target_folder(dataclasses.replace(request, train=chosen), digits, CPU)
    assert folder == there


def test_damaged_target_of_another_device_is_trained_here(digits, stored):
    request, here, there = stored
    (there / "target.safetensors").write_bytes(b"damaged")
    assert obtain_target(request, digits, CPU).folder == here
    assert obtain_target(request, digits, CPU).folder == here  # and read from now on


def test_target_json_of_other_weights_is_set_aside(digits, stored, caplog):
    request, here, there = stored
    there.rename(here)
    tensors, about = files.read_tensors(here / "target.safetensors")
    weight = next(name for name, value in tensors.items() if value.is_floating_point())
    other = tensors | {weight: tensors[weight] + 1}
    files.write_tensors(here / "target.safetensors", other, about)
    obtain_target(request, digits, CPU)
    assert "target.json does not belong to target.safetensors next to it" in caplog.text
    for name in ("target.json", "target.safetensors"):
        assert (here / f"{name}.damaged").exists()
    again = files.read_tensors(here / "target.safetensors")[0]
    assert torch.equal(again[weight], tensors[weight])


def test_target_in_another_targets_folder_is_set_aside(digits, stored, caplog):
    request, _, there = stored
    changes = ({"seed": 1}, {"lr": 0.05})
    for train_spec in (dataclasses.replace(request.train, **change) for change in changes):
        asked = dataclasses.replace(request, train=train_spec)
        wanted = obtain_target(asked, digits, CPU)
        name = "target.safetensors"
        weights = (wanted.folder / name).read_bytes()
        shutil.copytree(there, wanted.folder, dirs_exist_ok=True)
        assert (wanted.folder / name).read_bytes() != weights
        obtain_target(asked, digits, CPU)
        assert (wanted.folder / name).read_bytes() == weights
        assert (wanted.folder / f"{name}.damaged").exists()
    assert "is of another target, with train.seed=0, not 1" in caplog.text


def test_target_of_other_images_is_set_aside(digits, stored, caplog):
    request, here, there = stored
    about = files.read_json(there / "target.json")
    files.write_json(there / "target.json", about | {"data_checksum": "of others"})
    assert obtain_target(request, digits, CPU).folder == here
    assert "is of another target, with other images" in caplog.text


def test_target_without_options_of_later_versions_is_accepted(digits, stored):
    request, _, there = stored
    about = files.read_json(there / "target.json")
    del about["config"]["train"]["seed"], about["data_checksum"]
    files.write_json(there / "target.json", about)
    assert obtain_target(request, digits, CPU).folder == there


def test_target_without_weights_is_not_trained(digits, stored, caplog):
    request, here, there = stored
    there.rename(here)
    (here / "target.safetensors").unlink()
    assert not is_trained(request, digits, CPU)
    obtain_target(request, digits, CPU)
    assert "target.json is there without target.safetensors" in caplog.text
    assert is_trained(request, digits, CPU)


def test_weights_without_metadata_are_not_overwritten(digits, stored, caplog):
    request, here, there = stored
    there.rename(here)
    (here / "target.json").unlink()
    weights = (here / "target.safetensors").read_bytes()
    obtain_target(request, digits, CPU)
    assert "target.safetensors is there without target.json" in caplog.text
    assert (here / "target.safetensors.damaged").read_bytes() == weights
    assert is_trained(request, digits, CPU)


def test_training_stopped_before_its_metadata_sets_nothing_aside(digits, stored, caplog):
    request, here, there = stored
    there.rename(here)
    (here / "target.json").unlink()
    (here / "checkpoint.safetensors").write_bytes(b"")
    obtain_target(request, digits, CPU)
    assert "is there without" not in caplog.text
    assert is_trained(request, digits, CPU)


def test_training_begun_here_continues_here(digits, stored):
    request, here, _ = stored
    here.mkdir()
    (here / "checkpoint.safetensors").write_bytes(b"begun")
    assert target_folder(request, digits, CPU) == here
