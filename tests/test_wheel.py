"""A wheel, built and unpacked: it holds what ships, nothing of its builder, and finds it again."""

import os
import shutil
import sys
import zipfile

import pytest
from places import ROOT
from processes import ENVIRONMENT, run

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
OWN = "outputs/runs/digits-vgg_small-he_normal-0123456789/result.json"
MOST = 5_000_000  # bytes


@pytest.fixture(scope="module")
def tracked():
    """The checkout's files by name, and those that will be."""
    listed = run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no checkout: what ships is what git tracks")
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory):
    """Built in a copy of the checkout in which somebody has made a run."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in tracked:
        if not name.endswith((".safetensors", ".png", ".svg")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    for line in (["git", "init", "-q"], ["git", "add", "-f", "."]):
        assert run(line, cwd=copy).returncode == 0
    (copy / OWN).parent.mkdir()
    (copy / OWN).write_text("{}")
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
        done = run(line, ENVIRONMENT | {"PYTHONPATH": str(installed)}, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_command


@pytest.mark.process
def test_a_wheel_holds_what_ships_and_nothing_of_its_builder(wheel, tracked):
    held = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in held if name.startswith("bnrecon/shipped/")}
    folders = ("outputs/runs/", "outputs/targets/")
    wanted = {
        name.replace("outputs/", "bnrecon/shipped/", 1)
        for name in tracked
        if name.endswith(".json") and (name.startswith(folders) or "/tasks/" in name)
    }
    assert shipped == wanted
    assert len(shipped) > 800
    assert wheel.stat().st_size < MOST


@pytest.mark.process
def test_what_ships_is_found_in_an_empty_folder_and_the_package_is_not_written(
    bnrecon, installed, tmp_path
):
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
