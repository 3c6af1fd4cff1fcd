"""Listing an outputs folder: shipped, unfinished, damaged, locked and hostile folders."""

import json
import shutil

import filelock
import pytest
import torch
from repository import OUTPUTS, RESULTS

from bnrecon.reporting import inventory
from bnrecon.reporting.inventory import find_run
from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError

RUN = RESULTS[0].parent


@pytest.fixture
def outputs(tmp_path):
    """A copy of a run and a target."""
    shutil.copytree(RUN, tmp_path / "runs" / "one")
    target = RunResult.read(RESULTS[0]).target.folder
    shutil.copytree(OUTPUTS.parent / target, tmp_path / "targets" / "one")
    return tmp_path


def the_run(outputs):
    return next(run for run in inventory.runs(outputs) if run.name == "one")


def the_target(outputs):
    return next(target for target in inventory.targets(outputs) if target.name == "one")


def test_every_shipped_run_is_listed_with_its_result(shipped_outputs):
    listed = inventory.runs(shipped_outputs)
    assert [run.name for run in listed] == [path.parent.name for path in RESULTS]
    for run in listed:
        result = RunResult.read(run.folder / "result.json")
        assert (run.state, run.seeds, run.seeds_done) == ("finished", *[len(result.seeds)] * 2)
        assert run.target_accuracy == result.target.accuracy
        assert run.loss == pytest.approx(result.loss.mean, abs=1e-9)
        assert run.shipped == (not list(run.folder.glob("seed-*")))
        assert run.size == sum(path.stat().st_size for path in run.folder.rglob("*.*"))


def test_every_shipped_target_is_listed_as_trained(shipped_outputs):
    for target in inventory.targets(shipped_outputs):
        about = files.read_json(target.folder / "target.json")
        assert target.state == "trained"
        assert (target.accuracy, target.images) == (about["accuracy"], about["images"])
        assert target.epochs_done == target.epochs == about["config"]["train"]["epochs"]


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_text(path.read_text("utf-8").replace("86.6", "99.9")), "digest"),
        (cut, "is damaged"),
        (replace_by_folder, "not a regular file"),
        (lambda path: files.write_json(path, {"format": 7}), "of another version"),
    ],
    ids=["change", "cut", "folder", "version"],
)
def test_damaged_result_or_target_is_reported(outputs, damage, said):
    damage(outputs / "runs" / "one" / "result.json")
    damage(outputs / "targets" / "one" / "target.json")
    run, target = the_run(outputs), the_target(outputs)
    assert (run.state, run.loss) == (target.state, target.accuracy) == ("damaged", None)
    assert said in run.detail
    assert said in target.detail
    with pytest.raises(UserError, match="is damaged"):
        find_run("one", [outputs])


def test_missing_or_truncated_weights_are_damage(outputs):
    weights = outputs / "targets" / "one" / "target.safetensors"
    cut(weights)
    assert the_target(outputs).detail == "target.safetensors is cut off or overwritten"
    weights.unlink()
    assert the_target(outputs).detail == "target.safetensors is missing"
    assert the_target(outputs).state == "damaged"


def test_unfinished_run_counts_readable_seeds(outputs):
    folder = outputs / "runs" / "one"
    (folder / "result.json").unlink()
    assert the_run(outputs).state == "empty"
    (folder / "config.json").write_text(json.dumps({"seeds": [0, 1, 2]}))
    files.write_json(folder / "seed-0" / "result.json", {"accuracy": 90.0})
    (folder / "seed-1").mkdir()
    (folder / "seed-1" / "result.json").write_text("")
    run = the_run(outputs)
    assert (run.state, run.seeds_done, run.seeds) == ("unfinished", 1, 3)
    (folder / "config.json").write_text("{")
    assert the_run(outputs).seeds is None


def test_checkpoint_shows_its_epoch_and_their_number(outputs):
    folder = outputs / "targets" / "one"
    for file in folder.iterdir():
        file.unlink()
    about = {"step": 20, "log": [{}, {}], "epochs": 30}
    files.write_tensors(folder / "checkpoint.safetensors", {"a": torch.zeros(3)}, about)
    target = the_target(outputs)
    assert (target.state, target.epochs_done, target.epochs) == ("unfinished", 2, 30)
    cut(folder / "checkpoint.safetensors")
    (folder / "checkpoint.safetensors").write_bytes(b"\xff" * 50)
    assert the_target(outputs).state == "damaged"


def test_lock_holder_is_named(outputs):
    for kind, look in (("runs", the_run), ("targets", the_target)):
        folder = outputs / kind / "one"
        for file in folder.iterdir():
            file.unlink()
        (folder / ".holder").write_text("process 7 on elsewhere")
        with filelock.FileLock(folder / ".lock"):
            entry = look(outputs)
            assert (entry.state, entry.detail) == ("computing", "process 7 on elsewhere")
            (folder / ".holder").write_bytes(b"\xff")
            assert look(outputs).detail == "another process"
            (folder / ".holder").unlink()
            assert look(outputs).detail == "another process"
        assert look(outputs).state == "empty"


def test_listing_releases_the_lock(outputs):
    (outputs / "runs" / "one" / "result.json").unlink()
    lock = outputs / "runs" / "one" / ".lock"
    lock.touch()
    assert the_run(outputs).state == "empty"
    with filelock.FileLock(lock, timeout=0):
        pass


def test_non_folders_are_skipped(tmp_path):
    assert inventory.runs(tmp_path) == []
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    (tmp_path / "runs" / "link").symlink_to("/nowhere/at/all")
    assert inventory.runs(tmp_path) == []
    (tmp_path / "targets").write_text("")
    assert inventory.targets(tmp_path) == []


def test_run_is_selected_by_a_prefix_of_its_name_or_hash_or_by_its_folder(shipped_outputs):
    folder = shipped_outputs / "runs" / RUN.name
    key = folder.name.rpartition("-")[2]
    for text in (folder.name, folder.name[:-3], key, key[:5], f"{folder}", f"{folder}/result.json"):
        assert find_run(text, [shipped_outputs]) == folder


def test_complete_name_is_no_prefix(outputs):
    shutil.copytree(outputs / "runs" / "one", outputs / "runs" / "one-more")
    assert find_run("one", [outputs]) == outputs / "runs" / "one"


def test_unfinished_run_is_not_compared(outputs):
    folder = outputs / "runs" / "one"
    (folder / "result.json").unlink()
    with pytest.raises(UserError, match=r"is not a run: it has no result\.json"):
        find_run("one", [outputs])
    (folder / "config.json").write_text('{"seeds": [0]}')
    with pytest.raises(UserError, match="is unfinished, 0 of 1 seeds done; rerun its command"):
        find_run("one", [outputs])


def test_users_run_comes_before_a_shipped_one_of_the_same_name(outputs, tmp_path):
    other = tmp_path / "shipped"
    shutil.copytree(outputs / "runs" / "one", other / "runs" / "one")
    assert find_run("one", [outputs, other]) == outputs / "runs" / "one"
