"""What a result is a result of: images, target, options and code; and files that are damaged, left behind or only to be read."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bnrecon.config import composition
from bnrecon.data.load import CIFAR10_CLASSES
from bnrecon.reporting import tables
from bnrecon.run import main_job
from bnrecon.runtime import files, locks
from bnrecon.runtime.errors import UserError

SMOKE = ["scale=smoke", "target.groups=[1]", "train.epochs=1"]


def archive(folder, test_seed=0, test=40):
    """A cifar10.npz of noise, whose training images are always the same."""
    folder.mkdir(exist_ok=True)
    arrays = {"classes": list(CIFAR10_CLASSES)}
    for split, seed, count in (("train", 9, 60), ("test", test_seed, test)):
        generator = np.random.default_rng(seed)
        arrays[f"{split}_x"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_y"] = generator.integers(0, 10, count)
    np.savez(folder / "cifar10.npz", **arrays)
    return folder


def cifar(tmp_path, *words):
    return [
        "run",
        *SMOKE,
        "data=cifar10",
        f"data.root={tmp_path / 'data'}",
        f"outputs={tmp_path / 'out'}",
        *words,
    ]


def folder_of(out):
    return Path(out.strip().splitlines()[-1])


@pytest.fixture
def finished(command, tmp_path):
    code, out, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0, err
    return folder_of(out)


# Images


def test_seeds_that_were_tested_on_other_images_are_done_again(command, tmp_path):
    """Interrupted after the first seed, and gone on with when other test images lie in the same place."""
    archive(tmp_path / "data")
    code, out, err = command(*cifar(tmp_path, "seeds=[0,1]"))
    assert code == 0, err
    folder = folder_of(out)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "seed-1")
    archive(tmp_path / "data", test_seed=1, test=80)
    code, out, err = command(*cifar(tmp_path, "seeds=[0,1]"))
    assert code == 0, err
    rows = [files.read_json(folder / f"seed-{seed}" / "result.json") for seed in (0, 1)]
    assert [row["images"] for row in rows] == [80, 80]


def test_images_that_were_replaced_in_place_are_not_already_done(command, tmp_path):
    archive(tmp_path / "data")
    assert command(*cifar(tmp_path))[0] == 0
    assert command(*cifar(tmp_path))[1].startswith("already done")
    archive(tmp_path / "data", test_seed=1)
    code, _, err = command(*cifar(tmp_path))
    assert code == 2
    assert "was run on other cifar10 images" in err


def test_the_same_relative_folder_elsewhere_holds_other_images(command, tmp_path, monkeypatch):
    words = ["run", *SMOKE, "data=cifar10", "data.root=data", f"outputs={tmp_path / 'out'}"]
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        archive(tmp_path / str(number) / "data", test_seed=number)
    monkeypatch.chdir(tmp_path / "0")
    assert command(*words)[0] == 0
    monkeypatch.chdir(tmp_path / "1")
    code, _, err = command(*words)
    assert code == 2
    assert "was run on other cifar10 images" in err


def test_a_run_of_own_images_is_named_by_them_and_found_again_where_they_are_moved(
    command, tmp_path
):
    from test_data import tree

    tree(tmp_path / "a", ("x", "y"), train=4, test=2, side=8)
    words = ["run", *SMOKE, "data=folder", f"outputs={tmp_path / 'out'}"]
    first = command(*words, f"data.root={tmp_path / 'a'}")[1]
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = command(*words, f"data.root={tmp_path / 'b'}")[1]
    assert moved.startswith("already done")
    assert folder_of(moved) == folder_of(first)
    tree(tmp_path / "a", ("x", "y"), train=4, test=2, side=8, seed=5)
    assert folder_of(command(*words, f"data.root={tmp_path / 'a'}")[1]) != folder_of(first)


def test_a_folder_for_data_that_have_none_is_refused(command, tmp_path):
    for words in (["run"], ["train"]):
        code, _, err = command(
            *words, *SMOKE, f"data.root={tmp_path}", f"outputs={tmp_path / 'out'}"
        )
        assert code == 2
        assert "data=folder" in err
    assert not (tmp_path / "out" / "targets").exists()


# Targets and seeds


def test_a_target_just_trained_and_one_that_is_read_are_rebuilt_to_the_same_bytes(
    command, tmp_path, finished
):
    wanted = load_file(finished / "seed-0" / "source.safetensors")
    wanted = {name: value.clone() for name, value in wanted.items()}
    shutil.rmtree(finished)
    code, out, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0, err
    assert "already trained" in out
    found = load_file(finished / "seed-0" / "source.safetensors")
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_one_more_seed_computes_one_seed(command, tmp_path):
    code, out, _ = command("run", *SMOKE, "seeds=[0,1]", f"outputs={tmp_path}")
    assert code == 0
    before = files.read_json(folder_of(out) / "result.json")
    code, out, err = command("run", *SMOKE, "seeds=[0,1,2]", f"outputs={tmp_path}")
    assert code == 0
    assert err.count("was done before") == 2
    result = files.read_json(folder_of(out) / "result.json")
    assert result["seconds_per_seed"][:2] == before["seconds_per_seed"]
    assert (folder_of(out) / "seed-1" / "source.safetensors").exists()
    code, _, err = command(
        "run", *SMOKE, "seeds=[0,1,3]", "evaluate=collapsed", f"outputs={tmp_path}"
    )
    assert "was done before" not in err  # of other options nothing is taken over


def test_a_target_that_diverged_is_a_failure_and_not_stored(command, tmp_path):
    code, _, err = command("run", *SMOKE, "train.lr=1e20", f"outputs={tmp_path}")
    assert code == 1
    assert "diverged" in err
    assert not list(tmp_path.glob("targets/*/target.json"))


def test_a_batch_of_one_image_is_refused_where_it_cannot_be_normalized(command, tmp_path):
    code, _, err = command(
        "run", "scale=smoke", "target=mlp", "train.batch_size=1", f"outputs={tmp_path}"
    )
    assert code == 2
    assert "train.batch_size=1: a batch of one image leaves mlp nothing to normalize over" in err


def test_a_run_that_did_not_converge_says_so_last_and_in_its_table(command, tmp_path):
    code, out, err = command("run", *SMOKE, "features=sparse_id_cond", f"outputs={tmp_path}")
    assert code == 0, err
    last = out.strip().splitlines()[-3]
    assert last.startswith("NOT CONVERGED: 2 of 2 layers")
    assert "Take more features (features.oversampling=1)" in last
    assert last in (folder_of(out) / "table.md").read_text(encoding="utf-8")


# Files


def test_tables_of_a_finished_run_come_back(finished, command, tmp_path):
    wanted = {
        name: (finished / name).read_bytes() for name in ("table.md", "table.csv", "layers.csv")
    }
    (finished / "table.md").write_text("rubbish")
    (finished / "table.csv").unlink()
    (finished / "layers.png").write_bytes((finished / "layers.png").read_bytes()[:-500])
    assert command("run", *SMOKE, f"outputs={tmp_path}")[0] == 0
    assert {name: (finished / name).read_bytes() for name in wanted} == wanted
    assert main_job.figures.is_whole(finished / "layers.png")


def test_what_killed_processes_left_is_removed_when_the_run_is_finished(
    finished, command, tmp_path
):
    target = next((tmp_path / "targets").iterdir())
    left = [
        finished / ".result.json.abc.part",
        finished / "seed-0" / ".x.part",
        finished / "seed-0" / "layer-a.safetensors",
        target / "checkpoint.safetensors",
    ]
    for path in left:
        path.write_bytes(b"half")
    (finished / "result.json").unlink()
    assert command("run", *SMOKE, f"outputs={tmp_path}")[0] == 0
    assert not [path for path in left if path.exists()]
    left[2].write_bytes(b"half")
    assert command("run", *SMOKE, f"outputs={tmp_path}")[0] == 0
    assert not left[2].exists()


def test_a_finished_run_is_read_where_nothing_can_be_written(
    finished, command, tmp_path, monkeypatch
):
    def refused(*_):
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_bytes", refused)
    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(os, "access", lambda *_: False)
    (finished / "table.md").unlink()
    code, out, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0, err
    assert out.startswith("already done")
    code, out, err = command("train", *SMOKE, f"outputs={tmp_path}")
    assert code == 0, err
    assert "trained before" in out


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    lost = pytest.raises(UserError, match=r"without file locks .* give outputs=FOLDER on another")
    with lost, locks.exclusive(tmp_path / "run", "the run"):
        pass


def test_a_holder_that_is_no_text_does_not_matter(tmp_path):
    (tmp_path / ".holder").write_bytes(b"\xff\xfe\x00")
    with locks.exclusive(tmp_path, "it"):
        assert (tmp_path / ".holder").read_text(encoding="utf-8").startswith("process ")


def test_two_that_see_one_damaged_file_set_it_aside_once_and_never_over_another(tmp_path, capsys):
    path = tmp_path / "result.json"
    for content in ("one", "two"):
        path.write_text(content)
        files.set_aside(path, "damaged")
        files.set_aside(path, "damaged")
    assert capsys.readouterr().err.count("set aside") == 2
    assert [
        (tmp_path / name).read_text() for name in ("result.json.damaged", "result.json.damaged-2")
    ] == ["one", "two"]


def test_half_written_files_of_living_processes_stay(tmp_path):
    mine = tmp_path / f".a.{files._host()}-{os.getpid()}.xyz.part"
    dead = tmp_path / "b" / f".a.{files._host()}-{2**22 + 7}.xyz.part"
    elsewhere, old = tmp_path / ".a.otherhost-1.xyz.part", tmp_path / ".a.otherhost-1.old.part"
    dead.parent.mkdir()
    for path in (mine, dead, elsewhere, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    files.remove_leftovers(tmp_path)
    assert [path.exists() for path in (mine, dead, elsewhere, old)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda path: path.write_text(path.read_text().replace('"seed', '"sead')),
            "is damaged (its digest does not match)",
        ),
        (
            lambda path: files.write_json(path, {"accuracy": 3}),
            "was written by another version of bnrecon",
        ),
        (
            lambda path: path.write_text('{"accuracy": NaN, "digest": "0"}'),
            "is damaged (ValueError)",
        ),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is damaged (UnicodeDecodeError)"),
        (lambda path: (path.unlink(), path.mkdir()), "is no regular file"),
    ],
    ids=["changed", "other version", "NaN", "not UTF-8", "a folder"],
)
def test_a_result_that_cannot_be_read_is_named_and_the_others_are_shown(
    finished, command, tmp_path, spoil, said
):
    other = tmp_path / "runs" / "another"
    shutil.copytree(finished, other)
    spoil(other / "result.json")
    code, out, err = command("tables", str(tmp_path))
    assert code == 0
    assert out.count("vgg_small") == 1
    assert f"left out: {other / 'result.json'} {said}" in err
    assert (other / "result.json").exists()  # a look sets nothing aside
    assert not list(other.glob("*.damaged"))


def test_a_result_of_another_version_is_set_aside_and_the_run_done(finished, command, tmp_path):
    files.write_json(finished / "result.json", {"accuracy": 3})
    code, _, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0
    assert "was written by another version of bnrecon" in err
    assert tables.read_result(finished / "result.json")["seeds"] == [0]


def test_a_stored_target_of_another_shape_is_trained_again(finished, command, tmp_path):
    target = next((tmp_path / "targets").iterdir()) / "target.safetensors"
    files.write_tensors(target, {"weight": torch.zeros(2)}, {"target": "x"})
    code, _, err = command("run", *SMOKE, "seeds=[5]", f"outputs={tmp_path}")
    assert code == 0
    assert "does not fit the network that is asked for" in err


def test_names_that_no_folder_can_have_are_refused(command, tmp_path):
    for name in ("a/b", "x" * 300):
        code, _, err = command("run", *SMOKE, f"target.name={name}", f"outputs={tmp_path}")
        assert code == 2
        assert "part of a folder's name" in err
    assert not list(tmp_path.glob("runs/*"))


# Threads


def test_a_run_works_with_the_threads_it_is_given_and_leaves_them_as_they_were(
    command, tmp_path, monkeypatch
):
    seen, before = [], torch.get_num_threads()
    truly = main_job.obtain_target
    monkeypatch.setattr(
        main_job,
        "obtain_target",
        lambda *given: (seen.append(torch.get_num_threads()), truly(*given))[1],
    )
    torch.set_num_threads(2)
    try:
        code, out, err = command("run", *SMOKE, "threads=1", f"outputs={tmp_path}")
        assert code == 0, err
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert files.read_json(folder_of(out) / "result.json")["device"] == "cpu (1 threads)"
    assert command("run", *SMOKE, f"outputs={tmp_path}")[1].startswith(
        "already done"
    )  # how, not what
    code, _, err = command("run", *SMOKE, "threads=100000", f"outputs={tmp_path}")
    assert code == 2
    assert "threads=100000: this process has" in err


def test_the_quickstart_leaves_neither_threads_nor_arithmetic_to_the_machine():
    asked = composition.compose(["experiment=quickstart"])
    assert (asked.threads, asked.train.precision) == (1, "float32")


# What is no file


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def dangling(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/nowhere/at/all")


def device(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("spoil", [pipe, dangling, device])
@pytest.mark.parametrize("name", ["result.json", "table.md", "layers.csv", "layers.png", ".holder"])
def test_what_is_no_regular_file_is_not_read(finished, command, tmp_path, spoil, name):
    spoil(finished / name)
    code, out, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0, err
    assert "Traceback" not in err
    assert ("set aside" in err) == (name == "result.json")
    assert "vgg_small" in out


@pytest.mark.parametrize("spoil", [pipe, dangling])
@pytest.mark.parametrize(
    "pattern", ["seed-0/result.json", "seed-0/source.safetensors", "seed-0/layer-x.safetensors"]
)
def test_an_unfinished_run_goes_on_beside_what_is_no_file(
    finished, command, tmp_path, spoil, pattern
):
    (finished / "result.json").unlink()
    spoil(finished / pattern)
    code, out, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0, err
    assert tables.read_result(finished / "result.json")["seeds"] == [0]


def test_a_folder_in_the_place_of_a_table_is_named_and_the_result_shown(
    finished, command, tmp_path
):
    (finished / "table.md").unlink()
    (finished / "table.md").mkdir()
    code, out, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 0
    assert f"{finished / 'table.md'}" in err
    assert ".part" not in err
    assert "vgg_small" in out


@pytest.mark.parametrize("spoil", ["cut", "gone"])
def test_a_source_network_that_is_damaged_or_gone_is_named(finished, command, tmp_path, spoil):
    source = finished / "seed-0" / "source.safetensors"
    source.unlink() if spoil == "gone" else source.write_bytes(source.read_bytes()[:100])
    out = command("run", *SMOKE, f"outputs={tmp_path}")[1]
    assert (
        "the source network of seed 0 is not here" if spoil == "gone" else f"{source} is damaged"
    ) in out
    assert f"to make it again, remove {finished / 'result.json'} and rerun the command" in out
    (finished / "result.json").unlink()
    assert command("run", *SMOKE, f"outputs={tmp_path}")[0] == 0
    assert "not here" not in command("run", *SMOKE, f"outputs={tmp_path}")[1]


def test_keep_source_false_takes_nothing_from_a_finished_run(finished, command, tmp_path):
    assert command("run", *SMOKE, "keep_source=false", f"outputs={tmp_path}")[1].startswith(
        "already done"
    )
    assert (finished / "seed-0" / "source.safetensors").exists()


def test_files_that_go_while_the_run_is_at_work_are_missed(command, tmp_path, monkeypatch):
    truly = main_job._result

    def result(*given):
        next(tmp_path.glob("runs/*/seed-0/source.safetensors")).unlink()
        return truly(*given)

    monkeypatch.setattr(main_job, "_result", result)
    code, _, err = command("run", *SMOKE, f"outputs={tmp_path}")
    assert code == 1
    assert "its files went or changed while the run was at work; rerun the command" in err
    assert not list(tmp_path.glob("runs/*/result.json"))


def test_a_write_that_fails_names_the_file_that_was_to_be_written(tmp_path):
    (tmp_path / "table.md").mkdir()
    with pytest.raises(OSError, match="Is a directory") as caught:
        files.write_text(tmp_path / "table.md", "text")
    assert caught.value.filename == str(tmp_path / "table.md")
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (
            RuntimeError("could not create a primitive"),
            "not enough memory (could not create a primitive)",
            1,
        ),
        (
            ImportError("libtorch_cuda.so: failed to map segment from shared object"),
            "not enough memory",
            1,
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/result.json"),
            "/x/result.json; what was finished is kept",
            1,
        ),
    ],
)
def test_what_the_machine_lacks_is_no_defect(error, said, code, capsys):
    from bnrecon.cli import main

    assert main._failure(error) == code
    captured = capsys.readouterr().err
    assert said in captured
    assert len(captured.splitlines()) == 1
