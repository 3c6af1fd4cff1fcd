"""Files are complete or absent; damaged ones are named, set aside and redone."""

import errno
import json
import logging
import os
import socket
import tracemalloc
from pathlib import Path
from unittest import mock

import filelock
import pytest
import torch

from bnrecon.runtime import files, locks
from bnrecon.runtime.errors import RunError, UserError


def test_damaged_files_are_set_aside_under_new_names(tmp_path, caplog):
    path = tmp_path / "result.json"
    for number in ("", "-2"):
        files.write_json(path, {"accuracy": 90.1})
        path.write_text(path.read_text().replace("90.1", "99.1"))
        assert files.read_if_valid(path, files.read_json) is None
        assert path.exists()  # not moved without the lock
        assert files.read_if_valid(path, files.read_json, quarantine_damaged=True) is None
        assert not path.exists()
        aside = tmp_path / f"result.json.damaged{number}"
        assert json.loads(aside.read_text())["accuracy"] == 99.1
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"{path} is damaged (its digest does not match); set aside as {name} and redone"
        for name in ("result.json.damaged", "result.json.damaged-2")
    ]
    assert files.read_if_valid(path, files.read_json, quarantine_damaged=True) is None
    assert len(caplog.records) == 2  # a missing file is not damaged


UNREADABLE = {
    "permission": (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
    "disk": (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    "memory": (MemoryError(), "not enough memory"),
    "torch's memory": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        "not enough memory",
    ),
}


@pytest.mark.parametrize("cause", UNREADABLE)
def test_unreadable_file_is_neither_moved_nor_redone(tmp_path, monkeypatch, cause):
    error, reason = UNREADABLE[cause]

    def fails(*_, **__):
        raise error

    path = tmp_path / "result.json"
    files.write_json(path, {"accuracy": 90.1})
    with monkeypatch.context() as patched:
        patched.setattr(type(path), "read_text", fails)
        with pytest.raises(files.Unreadable, match=f"cannot be read .{reason}.$"):
            files.read_json(path)
        assert files.read_if_valid(path, files.read_json) is None
        with pytest.raises(RunError, match=f"{reason}.; nothing was changed"):
            files.read_if_valid(path, files.read_json, quarantine_damaged=True)
    assert files.read_json(path) == {"accuracy": 90.1}
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("nowhere"),
        *(lambda path, held=held: path.write_bytes(held) for held in (b"\xff\xfe", b"", b"[1]")),
    ],
    ids=["folder", "pipe", "link", "bytes", "empty", "list"],
)
def test_foreign_files_are_damaged(tmp_path, make):
    path = tmp_path / "file"
    make(path)
    for read in (files.read_json, files.read_tensors):
        with pytest.raises(files.Damaged, match=str(path)):
            read(path)
    assert not files.has_text(path, "text")


TARGETS = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "broken link": lambda path: path.symlink_to("nowhere/file"),
}


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "behind a link"])
@pytest.mark.parametrize("kind", TARGETS)
def test_only_regular_files_are_overwritten(tmp_path, monkeypatch, kind, linked):
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    path = Path("link") if linked else Path("file")
    TARGETS[kind](Path("file"))
    if linked:
        path.symlink_to("file")
    before = {file.name: file.lstat() for file in tmp_path.iterdir()}
    with pytest.raises(FileExistsError, match=f"and this is none; give another name: '{path}'"):
        files.write_text(path, "new")
    after = {file.name: file.lstat() for file in tmp_path.iterdir()}
    assert {name: (s.st_ino, s.st_mode) for name, s in after.items()} == {
        name: (s.st_ino, s.st_mode) for name, s in before.items()
    }


def test_link_is_written_through_unless_its_file_is_read_only(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    target, path = tmp_path / "there" / "file", tmp_path / "link"
    target.write_text("old")
    path.symlink_to("there/file")
    files.write_text(path, "new")
    assert (path.is_symlink(), target.read_text()) == (True, "new")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write to every file
    with pytest.raises(PermissionError, match=str(path)):
        files.write_text(path, "newer")
    assert [target.read_text()] == [file.read_text() for file in target.parent.iterdir()] == ["new"]


def test_new_files_follow_the_umask_and_existing_ones_keep_their_mode(tmp_path):
    path, before = tmp_path / "file", os.umask(0o027)
    try:
        files.write_text(path, "new")
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o606)
        files.write_text(path, "newer")
        assert path.stat().st_mode & 0o777 == 0o606
    finally:
        os.umask(before)


def test_tensors_and_metadata_round_trip_and_a_changed_bit_is_detected(tmp_path):
    path, weight = tmp_path / "a.safetensors", torch.arange(6.0).reshape(2, 3)
    files.write_tensors(path, {"one": weight, "tied": weight, "none": torch.zeros(0)}, {"n": [1]})
    tensors, metadata = files.read_tensors(path)
    assert metadata == {"n": [1]}
    assert torch.equal(tensors["tied"], weight)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(files.Damaged, match="its digest does not match"):
        files.read_tensors(path)
    path.write_bytes(content[:-9])
    with pytest.raises(files.Damaged, match=str(path)):
        files.read_tensors(path)


@pytest.mark.parametrize("length", range(0, 64, 8))
def test_tensors_are_aligned_like_torchs(tmp_path, length):
    """Other alignments round products differently, which changes a resumed solve."""
    path, tensors = tmp_path / "a.safetensors", {"a": torch.ones(()), "b": torch.arange(54.0)}
    files.write_tensors(path, tensors, {"text": "x" * length})
    for name, tensor in files.read_tensors(path)[0].items():
        assert torch.equal(tensor, tensors[name])
        assert tensor.data_ptr() % 64 == 0


def test_writing_a_large_tensor_copies_it_twice(tmp_path):
    large = torch.zeros(2**20)
    files.write_tensors(tmp_path / "warm", {"a": torch.zeros(1)}, {})  # loads the library
    tracemalloc.start()
    files.write_tensors(tmp_path / "large", {"a": large}, {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2.5 * large.nbytes


def test_same_tensors_and_metadata_give_the_same_bytes(tmp_path):
    written = set()
    for number in range(16):  # safetensors itself writes the metadata in one of two orders
        path = tmp_path / f"{number}.safetensors"
        files.write_tensors(path, {"weight": torch.arange(6.0)}, {"n": [1], "name": "\u00fc"})
        assert files.read_tensors(path)[1] == {"n": [1], "name": "\u00fc"}
        written.add(path.read_bytes())
    assert len(written) == 1


def test_partial_files_are_removed_by_the_only_writer_or_after_a_day(tmp_path):
    users, recent = ".video.mp4.part", ".a.bnrecon-0123abcd.part"
    abandoned = ("below/.a.bnrecon-4567cdef.part", ".b.json.bnrecon-89ab0123.part")
    (tmp_path / "below").mkdir()
    for name in (users, *abandoned, recent):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, None if name == recent else (0, 0))
    with locks.lock_folder(tmp_path, "the download", shared=True), locks.disabled():
        assert (tmp_path / recent).exists()
        with locks.lock_folder(tmp_path, "the work of a cluster's job"):
            assert (tmp_path / recent).exists()
    assert not any((tmp_path / name).exists() for name in abandoned)
    with locks.lock_folder(tmp_path, "the run"):
        assert not (tmp_path / recent).exists()
    assert (tmp_path / users).exists()


def test_partial_file_of_a_killed_process_is_recognized(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda partial, _: partial.rename(f"{partial}.kept"))
    files.write_bytes(tmp_path / "a.b.json", b"")
    (partial,) = tmp_path.iterdir()
    partial.rename(partial.with_suffix(""))
    files.remove_partial_files(tmp_path, -1)
    assert list(tmp_path.iterdir()) == []


def test_work_lock_is_exclusive_per_name(tmp_path):
    with locks.lock_work("a", tmp_path) as first, locks.lock_work("b", tmp_path) as other:
        assert first
        assert other
        with locks.lock_work("a", tmp_path) as second:
            assert not second
    with locks.lock_work("a", tmp_path) as again:
        assert again


def test_folder_lock_names_its_holder(tmp_path):
    with locks.lock_folder(tmp_path, "the run"):
        holder = (tmp_path / ".holder").read_text()
        with locks.lock_file(tmp_path / ".lock") as held:
            assert not held
    assert holder == f"process {os.getpid()} on {socket.gethostname()}"
    with locks.lock_file(tmp_path / ".lock") as held:
        assert held


def test_folder_that_cannot_hold_a_lock_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "below", tmp_path / ("a" * 300)):
        with (
            pytest.raises(UserError, match="give outputs=FOLDER, a folder of yours"),
            locks.lock_folder(folder, "the run"),
        ):
            pass


@pytest.mark.parametrize("error", [RuntimeError("its own"), FileNotFoundError(2, "its own")])
@pytest.mark.parametrize("obstacle", ["held by another", "without locks"])
def test_error_of_an_unlocked_block_is_passed_on(tmp_path, monkeypatch, error, obstacle):
    failure = filelock.Timeout("") if obstacle == "held by another" else OSError(errno.ENOLCK, "")
    monkeypatch.setattr(filelock.FileLock, "acquire", mock.Mock(side_effect=failure))
    lock = locks.lock_file(tmp_path / "a.lock", required=False)
    assert lock.__enter__() == (obstacle == "without locks")
    with pytest.raises(type(error), match="its own"):
        lock.gen.throw(error)


def test_folder_used_twice_at_once_is_refused_without_waiting(tmp_path):
    with locks.lock_folder(tmp_path, "the sweep"):
        twice = locks.lock_folder(tmp_path, "the run")
        with pytest.raises(UserError, match="two of its outputs share this folder"), twice:
            pass
