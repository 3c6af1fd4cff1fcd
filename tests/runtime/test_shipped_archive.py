"""An installed package unpacks its archive of results once, completely or not at all."""

import errno
import io
import os
import shutil
import tarfile

import pytest

from bnrecon.runtime import shipped
from bnrecon.runtime.shipped import DEFAULT_OUTPUTS, is_packaged, packaged, shipped_outputs

MEMBER = "paper/tasks/part/first.json"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The bnrecon folder in the user's cache, and an archive of one file."""
    archive = tmp_path / "results.tar.xz"
    with tarfile.open(archive, "w:xz") as content:
        member = tarfile.TarInfo(MEMBER)
        member.size = 2
        content.addfile(member, io.BytesIO(b"{}"))
    monkeypatch.setattr(shipped, "ARCHIVE", archive)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packaged.cache_clear()
    yield tmp_path / "cache/bnrecon"
    packaged.cache_clear()


def test_archive_is_unpacked_into_the_cache_once(cache):
    folder = shipped_outputs(DEFAULT_OUTPUTS)
    assert (folder / MEMBER).read_text() == "{}"
    assert list(cache.iterdir()) == [folder]
    (folder / MEMBER).write_text("[]")
    packaged.cache_clear()
    assert (packaged() / MEMBER).read_text() == "[]"
    assert is_packaged(folder / MEMBER)
    assert not is_packaged(cache)
    assert shipped_outputs(cache) == cache


def test_another_process_may_be_faster(cache, monkeypatch):
    """Its folder, which may be in use, is not removed."""

    def finish(partial, folder):
        shutil.copytree(partial, folder)
        (folder / "theirs").touch()
        raise OSError("Directory not empty")

    monkeypatch.setattr(shipped.os, "rename", finish)
    folder = packaged()
    assert (folder / MEMBER).is_file()
    assert (folder / "theirs").exists()
    assert list(cache.iterdir()) == [folder]


@pytest.mark.parametrize("fault", ["a file", "no home folder"])
def test_without_a_cache_user_results_are_read(cache, caplog, request, fault):
    if fault == "a file":
        cache.parent.write_text("not a folder")
    else:
        request.getfixturevalue("no_home")
    assert shipped_outputs(DEFAULT_OUTPUTS) == DEFAULT_OUTPUTS
    assert "XDG_CACHE_HOME=FOLDER gives another folder for it" in caplog.text


def test_damaged_archive_is_named_and_user_results_are_read(cache, caplog):
    shipped.ARCHIVE.write_bytes(shipped.ARCHIVE.read_bytes()[:60])
    assert shipped_outputs(DEFAULT_OUTPUTS) == DEFAULT_OUTPUTS
    assert not is_packaged(DEFAULT_OUTPUTS)
    (record,) = caplog.records
    assert str(shipped.ARCHIVE) in record.message
    assert list(cache.iterdir()) == []


def test_full_disk_is_named_and_user_results_are_read(cache, caplog, monkeypatch):
    def extract(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tarfile.TarFile, "extractall", extract)
    assert shipped_outputs(DEFAULT_OUTPUTS) == DEFAULT_OUTPUTS
    assert "No space left on device" in caplog.text
    assert list(cache.iterdir()) == []
