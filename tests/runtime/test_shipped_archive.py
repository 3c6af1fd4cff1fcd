"""An installed package unpacks its archive of results once, completely or not at all."""

import errno
import io
import os
import shutil
import sys
import tarfile

import pytest
from processes import ENVIRONMENT, run

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


@pytest.mark.parametrize("lost", [MEMBER, shipped.COUNT])
def test_lost_file_is_restored(cache, lost):
    (packaged() / lost).unlink()
    packaged.cache_clear()
    assert (packaged() / lost).is_file()
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("before", [False, True])
def test_another_process_may_be_faster(cache, monkeypatch, before):
    """Its folder, which may be in use, is not removed."""
    names, folders = tarfile.TarFile.getnames, []

    def finish(partial, folder):
        shutil.copytree(partial, folder)
        raise OSError("Directory not empty")

    def first(archive):
        folder = next(cache.iterdir())
        target = cache / folder.name[1:].rpartition("-")[0]
        shutil.copytree(folder, target)
        (target / shipped.COUNT).write_text("1", encoding="utf-8")
        folders.append(target.stat().st_ino)
        return names(archive)

    if before:
        monkeypatch.setattr(tarfile.TarFile, "getnames", first)
    else:
        monkeypatch.setattr(shipped.os, "rename", finish)
    folder = packaged()
    assert (folder / MEMBER).is_file()
    assert list(cache.iterdir()) == [folder]
    assert folders in ([], [folder.stat().st_ino])


def test_without_a_cache_it_is_unpacked_for_this_process(cache, tmp_path):
    cache.parent.mkdir()
    cache.write_text("not a folder")
    folder = packaged()
    assert (folder / MEMBER).read_text() == "{}"
    assert not folder.is_relative_to(tmp_path)


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


@pytest.mark.process
def test_temporary_folder_is_removed_with_its_process(cache, tmp_path):
    code = (
        "import pathlib; from bnrecon.runtime import shipped; "
        f"shipped.ARCHIVE = pathlib.Path({str(shipped.ARCHIVE)!r}); print(shipped.packaged())"
    )
    (tmp_path / "temporary").mkdir()
    paths = {"XDG_CACHE_HOME": "/dev/null", "TMPDIR": str(tmp_path / "temporary")}
    done = run([sys.executable, "-c", code], ENVIRONMENT | paths)
    assert done.stdout.startswith(str(tmp_path / "temporary")), done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []
