"""Targets with weights from a file are not trained; the file's content names them."""

import json

import pytest
import torch
from processes import SMALLEST
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models import resnet18, resnet34, resnet50

from bnrecon.config.composition import compose
from bnrecon.data import load
from bnrecon.reporting import inventory
from bnrecon.reporting.run_tables import target_name
from bnrecon.run import main_job, naming
from bnrecon.runtime.errors import UserError
from bnrecon.targets.building import build_target
from bnrecon.targets.models import resnet
from bnrecon.targets.weights_file import load_weights


@pytest.fixture
def weights(tmp_path):
    """A file of random weights for the smallest target."""
    config = compose([*SMALLEST, "train.seed=7"])
    network = build_target(config.target_request, load(config.data))
    path = tmp_path / "weights.safetensors"
    save_file(network.state_dict(), path)
    return path


def config(tmp_path, *options):
    return compose([*SMALLEST, f"outputs={tmp_path / 'outputs'}", *options])


def test_run_rebuilds_the_files_network_without_training(tmp_path, weights, caplog):
    caplog.set_level("INFO")
    chosen = config(tmp_path, f"target.weights={weights}")
    done = main_job.run(chosen)
    assert f"no training (weights of {weights})" in caplog.text
    (stored,) = tmp_path.glob("outputs/targets/*/target.safetensors")
    held, weights_of_file = load_file(stored), load_file(weights)
    assert all(torch.equal(held[name], weights_of_file[name]) for name in weights_of_file)
    about = json.loads(stored.with_name("target.json").read_text())
    assert (about["log"], about["seconds"]) == ([], 0)
    assert about["config"]["target"]["weights"] == "weights.safetensors"
    (listed,) = inventory.targets(tmp_path / "outputs")
    assert (listed.epochs, listed.detail) == (None, "weights of weights.safetensors")
    assert "weights=weights.safetensors" in target_name(done.result.config["target"])
    (record,) = done.result.seeds
    assert all(layer.converged for layer in record.layers)
    again = main_job.run(config(tmp_path, f"target.weights={weights}", "train.epochs=3"))
    assert len(list(tmp_path.glob("outputs/targets/*"))) == 1
    assert again.folder != done.folder  # another request with the same target


def test_file_content_not_path_names_the_run(tmp_path, weights):
    def name(path):
        return naming.run_folder(config(tmp_path, f"target.weights={path}")).name

    first = name(weights)
    moved = weights.rename(tmp_path / "moved.safetensors")
    assert name(moved) == first != naming.run_folder(config(tmp_path)).name
    changed = load_file(moved)
    changed[next(iter(changed))].add_(1)
    save_file(changed, moved)
    assert name(moved) != first


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "is not a whole safetensors file"),
        (lambda path: path.write_bytes(b"\xff" * 100), "is not a whole safetensors file"),
        (lambda path: save_file({}, path), "does not fit the target: it lacks features."),
    ],
)
def test_invalid_weights_file_is_one_line(tmp_path, make, reason):
    path = tmp_path / "w.safetensors"
    make(path)
    with pytest.raises(UserError) as error:
        main_job.run(config(tmp_path, f"target.weights={path}"))
    assert str(error.value).startswith(f"target.weights={path}: {reason}")
    assert "\n" not in str(error.value)


def test_weights_of_another_network_are_named(tmp_path):
    network = nn.Linear(3, 2)
    for tensors, reason in (
        ({"weight": torch.zeros(2, 3)}, "it lacks bias"),
        (
            {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "extra": torch.zeros(1)},
            "the target has no extra",
        ),
        (
            {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)},
            r"weight has the shape \(2, 4\), the target's \(2, 3\)",
        ),
    ):
        save_file(tensors, tmp_path / "w.safetensors")
        with pytest.raises(UserError, match=reason):
            load_weights(network, str(tmp_path / "w.safetensors"))


def test_pickle_is_never_read(tmp_path):
    path = tmp_path / "resnet50-11ad3fa6.pth"
    torch.save(nn.Linear(1, 1).state_dict(), path)
    with pytest.raises(UserError, match="pickles are never read; write its state_dict with"):
        load_weights(nn.Linear(1, 1), str(path))


@pytest.mark.parametrize(("depth", "builder"), [(18, resnet18), (34, resnet34), (50, resnet50)])
def test_resnet_with_torchvisions_weights_matches_torchvision(depth, builder, tmp_path):
    torch.manual_seed(0)
    theirs = builder().eval()
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    ours = resnet((3, 224, 224), 1000, depth, 64, "auto").eval()
    load_weights(ours, str(tmp_path / "w.safetensors"))
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(ours(x), theirs(x))


def test_non_float_weights_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    for dtype in (torch.int8, torch.bool, torch.complex64):
        save_file({"weight": torch.zeros(2, 3).to(dtype), "bias": torch.zeros(2)}, path)
        with pytest.raises(UserError, match=r"weight has .* numbers, the target's float32"):
            load_weights(nn.Linear(3, 2), str(path))
    half = {"weight": torch.randn(2, 3).half(), "bias": torch.zeros(2).bfloat16()}
    save_file(half, path)
    network = nn.Linear(3, 2)
    load_weights(network, str(path))
    assert torch.equal(network.weight.detach(), half["weight"].float())
