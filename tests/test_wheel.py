"""A built and unpacked wheel holds the shipped results, nothing of its builder, and works."""

import os
import shutil
import sys
import tarfile
import zipfile

import pytest
from processes import ENVIRONMENT, run
from repository import ROOT

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
BUILDERS_RUN = "outputs/runs/digits-vgg_small-he_normal-0123456789/result.json"
ARCHIVE = "bnrecon/shipped/results.tar.xz"
MOST = 3_000_000  # bytes


@pytest.fixture(scope="module")
def tracked():
    """The checkout's files by name, tracked or new."""
    listed = run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no checkout: what ships is what git tracks")
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory):
    """Built in a copy of the checkout that contains somebody's run."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in tracked:
        if not name.endswith((".safetensors", ".png", ".svg")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    for line in (["git", "init", "-q"], ["git", "add", "-f", "."]):
        assert run(line, cwd=copy).returncode == 0
    (copy / BUILDERS_RUN).parent.mkdir()
    (copy / BUILDERS_RUN).write_text("{}")
    done = run([sys.executable, "-c", BUILD, str(dist)], cwd=copy)
    assert done.returncode == 0, done.stderr
    (built,) = dist.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel's packages."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def bnrecon(installed, tmp_path):
    """Run the installed command in an empty folder."""
    code = (
        "import sys; from bnrecon.cli.main import main; import bnrecon; "
        f"assert bnrecon.__file__.startswith({str(installed)!r}); sys.exit(main())"
    )

    def run_command(*words):
        line = [sys.executable, "-P", "-c", code, *words]
        paths = {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = run(line, ENVIRONMENT | paths, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_command


def test_wheel_holds_only_shipped_results(wheel, tracked):
    with zipfile.ZipFile(wheel) as packages:
        in_shipped = [name for name in packages.namelist() if name.startswith("bnrecon/shipped/")]
        with packages.open(ARCHIVE) as stored, tarfile.open(fileobj=stored) as archive:
            members = archive.getmembers()
    assert in_shipped == [ARCHIVE]
    folders = ("outputs/runs/", "outputs/targets/")
    wanted = {
        name.removeprefix("outputs/")
        for name in tracked
        if name.endswith(".json") and (name.startswith(folders) or "/tasks/" in name)
    }
    assert {member.name for member in members} == wanted
    assert len(members) > 800
    assert {(member.uname, member.uid, member.mtime) for member in members} == {("", 0, 0)}
    assert wheel.stat().st_size < MOST


def test_shipped_results_are_read_from_an_unwritten_package(bnrecon, installed, tmp_path):
    def state():
        files = (path for path in installed.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return {path: path.stat().st_mtime_ns for path in files}

    before = state()
    printed = bnrecon("tables", "burkholz2024", "residual", "thresholds")
    assert "8 of 8 runs finished" in printed
    assert "Shipped with bnrecon, not computed here: all 8 finished results." in printed
    assert "Shipped with bnrecon, not computed here: all 6 finished results." in printed
    drawn = bnrecon("figures", "burkholz2024", "thresholds").split()
    assert drawn == [os.path.join("outputs", "studies", "burkholz2024", "thresholds-laptop.png")]
    assert (tmp_path / drawn[0]).exists()
    assert state() == before
