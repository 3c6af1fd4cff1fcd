"""A result belongs to its images, target, options and code; its files may be damaged."""

import errno
import fcntl
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from image_sets import tree, write_cifar
from processes import SMALLEST, TWO_SEEDS, folder_of
from safetensors.torch import load_file

from bnrecon.reconstruction import plan_layers
from bnrecon.reporting.result import RunResult, SeedRecord
from bnrecon.run import main_job
from bnrecon.run.seed import _rebuild_layers
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime import files
from bnrecon.runtime.tracking import NO_TRACKERS, TrackedRun

# Images


def test_seeds_tested_on_other_images_are_redone(succeed, tmp_path):
    """Interrupted after the first seed, resumed with other test images in the same folder."""
    words = ["run", *SMALLEST, "seeds=[0,1]", "data=cifar10", f"outputs={tmp_path / 'out'}"]
    words.append(f"data.root={tmp_path / 'data'}")
    write_cifar(tmp_path / "data", 60, 40)
    out, err = succeed(*words)
    folder = folder_of(out)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "seed-1")
    write_cifar(tmp_path / "data", 60, 80, test_seed=1)
    _, err = succeed(*words)
    first = folder / "seed-0" / "result.json"
    assert f"{first} is of another version of bnrecon, kind of device, target" in err
    assert first.with_name("result.json.damaged").exists()  # kept aside
    rows = [files.read_json(folder / f"seed-{seed}" / "result.json") for seed in (0, 1)]
    assert [row["images"] for row in rows] == [80, 80]


def test_same_relative_folder_may_hold_other_images(command, tmp_path, monkeypatch):
    words = ["run", *SMALLEST, "data=cifar10", "data.root=data", f"outputs={tmp_path / 'out'}"]
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        write_cifar(tmp_path / str(number) / "data", 60, 40, test_seed=number)
    monkeypatch.chdir(tmp_path / "0")
    assert command(*words)[0] == 0
    monkeypatch.chdir(tmp_path / "1")
    code, _, err = command(*words)
    assert code == 2
    assert "was run on other cifar10 images" in err


def test_finished_run_does_not_answer_for_another_target(command, tmp_path):
    words = ["run", *SMALLEST, f"outputs={tmp_path / 'out'}"]
    assert command(*words, f"targets={tmp_path / 'one'}")[0] == 0
    assert command(*words, f"targets={tmp_path / 'one'}")[0] == 0
    assert command(*words)[0] == 0  # any target
    code, _, err = command(*words, f"targets={tmp_path / 'two'}")
    assert code == 2
    assert "was run on another target than targets=" in err


def test_run_is_named_by_the_users_images_not_by_their_folder(command, tmp_path):
    tree(tmp_path / "a")
    words = ["run", *SMALLEST, "data=folder", f"outputs={tmp_path / 'out'}"]
    first = command(*words, f"data.root={tmp_path / 'a'}")[1]
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = command(*words, f"data.root={tmp_path / 'b'}")[1]
    assert moved.startswith("already done")
    assert folder_of(moved) == folder_of(first)
    tree(tmp_path / "a", seed=5)
    assert folder_of(command(*words, f"data.root={tmp_path / 'a'}")[1]) != folder_of(first)


# Targets and seeds


def test_trained_and_loaded_targets_are_rebuilt_identically(succeed, tmp_path, finished):
    wanted = load_file(finished / "seed-0" / "source.safetensors")
    wanted = {name: value.clone() for name, value in wanted.items()}
    shutil.rmtree(finished)
    _, err = succeed("run", *SMALLEST, f"outputs={tmp_path}")
    assert "already trained" in err
    tensors = load_file(finished / "seed-0" / "source.safetensors")
    assert all(torch.equal(tensors[name], value) for name, value in wanted.items())


def exchange(one, other):
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize("name", ["", "result.json", "source.safetensors"])
def test_exchanged_seeds_are_named_and_redone(two_seeds, command, succeed, tmp_path, name):
    words = ("run", *TWO_SEEDS, f"outputs={tmp_path}")
    folders = [two_seeds / f"seed-{seed}" for seed in (0, 1)]
    wanted = [(folder / "source.safetensors").read_bytes() for folder in folders]
    exchange(*(folder / name for folder in folders))
    (note,) = (line for line in command(*words)[1].splitlines() if line.startswith("note"))
    assert "no source network of seeds 0, 1;" in note
    (two_seeds / "result.json").unlink()
    succeed(*words)
    assert [(folder / "source.safetensors").read_bytes() for folder in folders] == wanted
    assert [SeedRecord.read(folder / "result.json").seed for folder in folders] == [0, 1]
    assert [(folder / "source.safetensors.damaged").exists() for folder in folders] == [True, True]


def test_copied_seed_is_refused(two_seeds, succeed, tmp_path):
    path = two_seeds / "seed-0" / "result.json"
    record = files.read_json(path)
    (two_seeds / "result.json").unlink()
    shutil.copytree(two_seeds / "seed-0", two_seeds / "seed-1", dirs_exist_ok=True)
    _, err = succeed("run", *TWO_SEEDS, f"outputs={tmp_path}")
    assert f"{two_seeds / 'seed-1' / 'result.json'} is of seed 0" in err
    assert files.read_json(path) == record


# Files


def test_tables_of_a_finished_run_are_restored(finished, command, tmp_path):
    wanted = {
        name: (finished / name).read_bytes() for name in ("table.md", "table.csv", "layers.csv")
    }
    (finished / "table.md").write_text("rubbish")
    (finished / "table.csv").unlink()
    (finished / "layers.png").unlink()
    assert command("run", *SMALLEST, f"outputs={tmp_path}")[0] == 0
    assert {name: (finished / name).read_bytes() for name in wanted} == wanted
    assert (finished / "layers.png").exists()


def test_leftovers_of_killed_processes_are_removed_at_the_end(finished, command, tmp_path):
    target = next((tmp_path / "targets").iterdir())
    leftovers = [
        finished / ".result.json.bnrecon-00000001.part",
        finished / "seed-0" / ".x.bnrecon-00000002.part",
        finished / "seed-0" / "layer-a.safetensors",
        target / "checkpoint.safetensors",
    ]
    for path in leftovers:
        path.write_bytes(b"half")
    (finished / "result.json").unlink()
    assert command("run", *SMALLEST, f"outputs={tmp_path}")[0] == 0
    assert not [path for path in leftovers if path.exists()]
    leftovers[2].write_bytes(b"half")
    assert command("run", *SMALLEST, f"outputs={tmp_path}")[0] == 0
    assert not leftovers[2].exists()


def test_finished_run_is_read_from_a_read_only_folder(finished, succeed, tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_bytes", refused)
    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(os, "access", lambda *_: False)
    (finished / "table.md").unlink()
    out, err = succeed("run", *SMALLEST, f"outputs={tmp_path}")
    assert out.startswith("already done")
    out, _ = succeed("train", *SMALLEST, f"outputs={tmp_path}")
    assert "trained before" in out


def test_solution_of_another_system_is_not_used(tmp_path, caplog):
    """For example from a version that set up the layer's system differently."""
    plan = plan_layers(torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)).eval())
    tracked = TrackedRun(NO_TRACKERS, "runs/a", {})

    def rebuild():
        run = SimpleNamespace(moments={}, tracked=tracked, share=None)
        built = _rebuild_layers(run, plan, SolvedLayers(tmp_path / "seed-0", "key"))
        return [part.report.relative_error for part in built]

    errors = rebuild()
    assert rebuild() == errors
    path = tmp_path / "seed-0" / "layer-1.safetensors"
    tensors, metadata = files.read_tensors(path)
    files.write_tensors(path, {"scale": 2 * tensors["scale"]}, metadata)
    assert rebuild() == errors
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert rebuild() == errors


def test_result_of_another_run_is_set_aside(finished, succeed, tmp_path):
    other = "features=he_uniform"
    out, err = succeed("run", *SMALLEST, other, f"outputs={tmp_path}")
    shutil.copyfile(finished / "result.json", folder_of(out) / "result.json")
    out, err = succeed("run", *SMALLEST, other, f"outputs={tmp_path}")
    assert "is of another run, with features.name=" in err
    assert "not he_uniform" in err
    assert not out.startswith("already done")
    assert "he_uniform" in out


def test_large_logit_differences_are_noted_although_layers_are_rebuilt(succeed, tmp_path):
    """With so large a margin the ReLUs' shift is 1e5 times the values, in float32."""
    large = ("features.activation=relu", "features.margin=1e5", "seeds=[0]")
    out, err = succeed("run", *SMALLEST, *large, f"outputs={tmp_path}")
    assert "every layer is rebuilt, and yet logits differ by" in err
    notes = files.read_json(folder_of(out) / "result.json")["notes"]
    assert any("their rounding shows" in note for note in notes)


def test_stored_target_of_another_shape_is_trained_again(finished, succeed, tmp_path):
    target = next((tmp_path / "targets").iterdir())
    files.write_tensors(target / "target.safetensors", {"weight": torch.zeros(2)}, {"target": "x"})
    about = files.read_json(target / "target.json")
    del about["weights"]  # missing in earlier versions; otherwise the file is another target's
    files.write_json(target / "target.json", about)
    _, err = succeed("run", *SMALLEST, "seeds=[5]", f"outputs={tmp_path}")
    assert "does not fit the network" in err
    about = files.read_json(target / "target.json")
    files.write_json(target / "target.json", about | {"config": {}})
    _, err = succeed("run", *SMALLEST, "seeds=[6]", f"outputs={tmp_path}")
    assert "does not fit the network" in err


# Threads


def test_run_uses_its_threads_and_restores_them(command, succeed, tmp_path, monkeypatch):
    seen, before = [], torch.get_num_threads()
    original = main_job.obtain_target
    monkeypatch.setattr(
        main_job,
        "obtain_target",
        lambda *arguments: (seen.append(torch.get_num_threads()), original(*arguments))[1],
    )
    torch.set_num_threads(2)
    try:
        out, err = succeed("run", *SMALLEST, "threads=1", f"outputs={tmp_path}")
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert files.read_json(folder_of(out) / "result.json")["device"] == "cpu (1 thread)"
    for words in ([], ["threads=100000"]):
        out = command("run", *SMALLEST, *words, f"outputs={tmp_path}")[1]
        assert out.startswith("already done")  # threads are not part of the name
    words = ("threads=100000", "train.epochs=2")
    code, _, err = command("run", *SMALLEST, *words, f"outputs={tmp_path}")
    assert code == 2
    assert "threads=100000: this process has" in err


# Paths that are not regular files


IRREGULAR = {
    "pipe": os.mkfifo,
    "dangling": lambda path: path.symlink_to("/nowhere/at/all"),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("pipe", name) for name in ("result.json", "table.md", "layers.png", ".holder")),
        *(("dangling", name) for name in ("result.json", "layers.csv")),
        ("device", "result.json"),
    ],
)
def test_irregular_file_is_not_read(finished, succeed, tmp_path, kind, name):
    (finished / name).unlink(missing_ok=True)
    IRREGULAR[kind](finished / name)
    out, err = succeed("run", *SMALLEST, f"outputs={tmp_path}")
    assert "Traceback" not in err
    assert ("set aside" in err) == (name == "result.json")
    assert "vgg_small" in out


@pytest.mark.parametrize("kind", ["pipe", "dangling"])
@pytest.mark.parametrize("name", ["result.json", "source.safetensors", "layer-x.safetensors"])
def test_unfinished_run_resumes_despite_irregular_files(finished, succeed, tmp_path, kind, name):
    (finished / "result.json").unlink()
    (finished / "seed-0" / name).unlink(missing_ok=True)
    IRREGULAR[kind](finished / "seed-0" / name)
    succeed("run", *SMALLEST, f"outputs={tmp_path}")
    assert [seed.seed for seed in RunResult.read(finished / "result.json").seeds] == [0]


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_or_missing_source_network_is_named(finished, command, tmp_path, damage):
    source = finished / "seed-0" / "source.safetensors"
    source.unlink() if damage == "gone" else source.write_bytes(source.read_bytes()[:100])
    out = command("run", *SMALLEST, f"outputs={tmp_path}")[1]
    assert "no source network of seeds 0" in out
    assert f"to make them again, remove {finished / 'result.json'} and rerun the command" in out
    (finished / "result.json").unlink()
    assert command("run", *SMALLEST, f"outputs={tmp_path}")[0] == 0
    assert "no source network" not in command("run", *SMALLEST, f"outputs={tmp_path}")[1]
