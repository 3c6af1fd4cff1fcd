"""Archives of results: what they hold arrives byte for byte, and nothing else is taken."""

import hashlib
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pack_results
import pytest
import torch
from pack_results import export_results
from places import OUTPUTS, RESULTS

from bnrecon.reproduction.archive import MANIFEST, import_results
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError

TARGET = "targets/cifar10-vgg18-48131a0ce8"
STUDY = "burkholz2024"
CHECKPOINT = "targets/digits-mlp-0123456789/checkpoint.safetensors"


@pytest.fixture
def outputs(tmp_path):
    """A folder with a target, two runs and two tasks, and files that are no results."""
    folder = tmp_path / "there"
    shutil.copytree(OUTPUTS / TARGET, folder / TARGET)
    for path in RESULTS[:2]:
        shutil.copytree(path.parent, folder / "runs" / path.parent.name)
    for task in sorted((OUTPUTS / STUDY / "tasks").glob("layers-laptop/*.json"))[:2]:
        place = folder / "studies" / STUDY / "tasks" / task.parent.name / task.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(task, place)
    (folder / "studies" / STUDY / "paper.log").write_text("what was done")
    (folder / "runs" / "notes.txt").write_text("mine")
    (folder / TARGET / ".lock").write_text("")
    return folder


@pytest.fixture
def archive(outputs, tmp_path):
    export_results(outputs, tmp_path / "results.zip")
    return tmp_path / "results.zip"


def contents(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def results(folder):
    return {
        name: content
        for name, content in contents(folder).items()
        if name.endswith((".json", ".safetensors")) and "/." not in f"/{name}"
    }


def save_checkpoint(folder, step):
    files.write_tensors(folder / CHECKPOINT, {"w": torch.full((3,), step)}, {"step": step})


def test_results_come_home_byte_for_byte_and_nothing_else_does(outputs, archive, tmp_path):
    came = import_results(archive, tmp_path / "home", STUDY)
    assert contents(tmp_path / "home") == results(outputs)
    assert set(came.new) == set(results(outputs))
    assert came.text().splitlines()[0].split() == ["targets", "1:", Path(TARGET).name]
    assert [line.split()[:2] for line in came.text().splitlines()[1:]] == [
        ["runs", "2:"],
        ["tasks", "2"],
    ]
    again = import_results(archive, tmp_path / "home", STUDY)
    assert again.new == again.kept == ()
    assert set(again.same) == set(results(outputs))


def test_what_has_no_room_is_left_for_the_next_archive(outputs, tmp_path):
    sent, came = tmp_path / "sent.json", []
    whole, _ = export_results(outputs, tmp_path / "all.zip")
    for number in range(3):
        path = tmp_path / f"{number}.zip"
        limit = (tmp_path / "all.zip").stat().st_size - 2000
        packed, left_out = export_results(outputs, path, limit, sent)
        assert path.stat().st_size <= limit
        came.append(packed)
        if number == 0:
            assert left_out
            assert {*packed, *left_out} == set(whole)
        import_results(path, tmp_path / "home", STUDY)
    assert came[2] == []
    assert sorted([*came[0], *came[1]]) == sorted(whole)
    assert contents(tmp_path / "home") == results(outputs)


def test_a_file_that_changed_is_packed_again_and_the_others_are_not(outputs, tmp_path):
    sent = tmp_path / "sent.json"
    save_checkpoint(outputs, 1)
    assert CHECKPOINT in export_results(outputs, tmp_path / "1.zip", sent=sent)[0]
    save_checkpoint(outputs, 2)
    assert export_results(outputs, tmp_path / "2.zip", sent=sent)[0] == [CHECKPOINT]


def test_state_of_an_interrupted_training_travels_until_it_is_trained(outputs, tmp_path):
    save_checkpoint(outputs, 7)
    assert CHECKPOINT in export_results(outputs, tmp_path / "1.zip")[0]
    shutil.copyfile(outputs / TARGET / "target.json", (outputs / CHECKPOINT).parent / "target.json")
    assert CHECKPOINT not in export_results(outputs, tmp_path / "2.zip")[0]


@pytest.mark.parametrize(("here", "after"), [(3, 7), (7, 7), (9, 9)])
def test_only_a_training_that_is_further_on_replaces_another(outputs, tmp_path, here, after):
    save_checkpoint(outputs, 7)
    save_checkpoint(tmp_path / "home", here)
    if here == 7:
        shutil.copyfile(outputs / CHECKPOINT, tmp_path / "home" / CHECKPOINT)
    export_results(outputs, tmp_path / "results.zip")
    came = import_results(tmp_path / "results.zip", tmp_path / "home", STUDY)
    assert files.read_tensors(tmp_path / "home" / CHECKPOINT)[1]["step"] == after
    states = {3: came.new, 7: came.same, 9: came.kept}
    assert CHECKPOINT in states[here]


def test_a_file_that_differs_is_named_and_kept(succeed, archive, tmp_path):
    mine = tmp_path / "home" / TARGET / "target.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("{}")
    out, err = succeed("study", STUDY, "--import", str(archive), f"outputs={tmp_path / 'home'}")
    assert f"warning: {TARGET}/target.json is another file here" in err
    assert mine.read_text() == "{}"
    # Nor are the archive's weights put beside what is said of others.
    assert not (mine.parent / "target.safetensors").exists()
    assert out.endswith(f"\n\n{tmp_path / 'home'}\n")


# What somebody else may have made of an archive.

EVIL = pickle.dumps({"a": 1})
GOOD = b'{\n "a": 1,\n "digest": "wrong"\n}\n'


def planes(content):
    """Every fourth byte, from each of the first four on; what is over stands at the end."""
    whole = len(content) // 4 * 4
    return b"".join(content[first:whole:4] for first in range(4)) + content[whole:]


def put(archive, name, content, listed=True):
    """Add a file to an archive, with its digest in the list."""
    with zipfile.ZipFile(archive) as file:
        held = {entry: file.read(entry) for entry in file.namelist() if entry != name}
    about = json.loads(held.pop(MANIFEST))
    if listed:
        about["files"][name] = hashlib.sha256(content).hexdigest()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, json.dumps(about))
        for entry, old in held.items():
            file.writestr(entry, old)
        file.writestr(name, planes(content) if name.endswith(".safetensors") else content)


MANIPULATED = {
    "absolute path": ("/tmp/bnrecon-evil.json", GOOD, "is none of: targets"),
    "parent folder": ("targets/../../evil/target.json", GOOD, "is none of: targets"),
    "dots as a name": ("targets/../target.json", GOOD, "is none of: targets"),
    "backslashes": (r"targets\..\target.json", GOOD, "is none of: targets"),
    "hidden file": ("targets/.ssh/target.json", GOOD, "is none of: targets"),
    "pickle": ("targets/evil/target.pkl", EVIL, "is none of: targets"),
    "program": ("bnrecon/__init__.py", b"", "is none of: targets"),
    "another study": (
        "studies/giannou2023/tasks/part-smoke/a.json",
        GOOD,
        "belongs to bnrecon study giannou2023",
    ),
}


@pytest.fixture
def refused(command, tmp_path):
    """Import an archive that is refused in one line, with nothing written."""

    def run(archive, line):
        before = sorted(tmp_path.rglob("*"))
        home = f"outputs={tmp_path / 'home'}"
        code, out, err = command("study", STUDY, "--import", str(archive), home)
        assert (code, out) == (2, ""), err
        assert err.startswith("bnrecon: ")
        assert len(err.splitlines()) == 1
        assert line in err
        assert sorted(tmp_path.rglob("*")) == before
        assert not Path("/tmp/bnrecon-evil.json").exists()

    return run


@pytest.mark.parametrize("kind", MANIPULATED)
def test_a_manipulated_archive_is_refused_as_a_whole(archive, refused, kind):
    name, content, line = MANIPULATED[kind]
    put(archive, name, content)
    refused(archive, line)


@pytest.mark.parametrize("name", [f"{TARGET}/target.json", f"{TARGET}/target.safetensors"])
def test_content_that_is_not_what_its_digest_says_is_refused(archive, refused, outputs, name):
    changed = bytearray((outputs / name).read_bytes())
    changed[-30] ^= 1
    put(archive, name, bytes(changed), listed=False)
    refused(archive, f"{name!r} is not what its digest says")


def test_an_archive_that_lacks_a_file_is_refused(archive, refused):
    put(archive, "targets/a/target.json", b"")
    with zipfile.ZipFile(archive) as file:
        held = {entry: file.read(entry) for entry in file.namelist()}
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in held.items():
            if name != "targets/a/target.json":
                file.writestr(name, content)
    refused(archive, "targets/a/target.json is missing in it")


def test_an_archive_that_unpacks_to_too_much_is_refused(archive, refused, monkeypatch):
    monkeypatch.setattr("bnrecon.reproduction.archive.LARGEST", 10_000)
    refused(archive, "unpacked; nothing is taken")


def test_what_is_no_archive_is_refused(archive, refused, tmp_path):
    content = archive.read_bytes()
    for number, (text, line) in enumerate(
        [
            (b"", "is damaged"),
            (EVIL, "is damaged"),
            (content[:2000], "is damaged"),
            (content.replace(b"archive.json", b"archive.yaml"), "no archive of results"),
        ]
    ):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(text)
        refused(path, line)
    refused(tmp_path / "nowhere.zip", "cannot be read (No such file or directory)")
    refused(tmp_path, "is no regular file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "no regular file")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_in_the_place_of_a_result_is_named(archive, outputs, refused, make):
    task = next(outputs.glob("studies/*/tasks/*/*.json")).relative_to(outputs)
    for name in (f"{TARGET}/target.json", task):
        path = outputs.parent / "home" / name
        path.parent.mkdir(parents=True)
        make(path)
        refused(archive, str(path))
        path.rmdir() if path.is_dir() else path.unlink()


def test_an_archive_whose_names_are_no_unicode_is_refused(archive, refused):
    """What reading them raises is none of zipfile's own errors."""
    content = bytearray(archive.read_bytes())
    listed, stored = content.rfind(b"PK\x01\x02"), content.rfind(b"PK\x03\x04")
    content[listed + 9] |= 0x08  # the name is said to be UTF-8
    content[stored + 30] = 0xFF  # its first byte
    archive.write_bytes(content)
    refused(archive, "is damaged")


def test_an_archive_is_never_overwritten_and_an_empty_one_not_written(outputs, tmp_path, capsys):
    pack = [str(outputs), str(tmp_path / "results.zip")]
    pack_results.main(pack)
    first = (tmp_path / "results.zip").read_bytes()
    pack_results.main(pack)
    assert "nothing that no archive had before" in capsys.readouterr().out
    (outputs / pack_results.SENT).write_text("{")
    pack_results.main(pack)
    assert "results-2.zip" in capsys.readouterr().out
    assert (tmp_path / "results.zip").read_bytes() == first
    assert {path.name for path in tmp_path.glob("*.zip")} == {"results.zip", "results-2.zip"}


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_file_that_was_packed_damaged_stands_in_the_way_of_no_good_one(
    outputs, archive, tmp_path, suffix
):
    (name, *_) = sorted(name for name in results(outputs) if name.endswith(suffix))
    content = (outputs / name).read_bytes()
    (outputs / name).write_bytes(content[:-20])
    export_results(outputs, tmp_path / "damaged.zip")
    with pytest.raises(UserError, match=f"is no {suffix[1:]} file, or a damaged one; nothing is"):
        import_results(tmp_path / "damaged.zip", tmp_path / "home", STUDY)
    assert contents(tmp_path / "home") == {}
    assert name in import_results(archive, tmp_path / "home", STUDY).new
    assert (tmp_path / "home" / name).read_bytes() == content
