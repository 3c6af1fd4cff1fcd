"""`make gpu-slice`: packing for a machine without network and git, and unpacking results."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time

import gpu_slice
import numpy as np
import pack_for_gpu
import pytest
from processes import wait_until
from repository import SCRIPTS

from bnrecon.config.composition import compose
from bnrecon.data import DataSpec, load
from bnrecon.data.small_images import CIFAR10_CLASSES
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.runtime import provenance
from bnrecon.studies import registry

SLICE = str(SCRIPTS / "gpu/gpu_slice.py")
OPTIONS = ("seeds=[0]", "target.groups=[1]")
NO_NETWORK = """
import socket
def refuse(*_): raise OSError("there is no network")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""
# Pieces


def test_pieces_are_existing_commands():
    for piece in gpu_slice.PIECES:
        name, *words = piece.command
        if name == "run":
            compose(words)
        if name == "study" or name == gpu_slice.TRAIN:
            study = registry.find(words[0])
            assert {*words[1:]} - {"--jobs", "4"} <= {*study.parts, *study.solvers}
        assert name in ("study", "run") or (SCRIPTS / name).is_file()


@pytest.mark.process
def test_piece_ends_when_the_time_is_over():
    sleeping = [sys.executable, "-c", "import time; time.sleep(3600)"]
    assert gpu_slice.run(sleeping, 0.1) is None


@pytest.mark.process
@pytest.mark.parametrize("name", ["pack_for_gpu.py", gpu_slice.TRAIN])
def test_script_starts_and_reports_mistakes_in_one_line(name, tmp_path):
    script = SCRIPTS / name if name == gpu_slice.TRAIN else SCRIPTS / "gpu" / name
    line = [sys.executable, str(script)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_targets_train_in_parallel_and_are_saved_when_stopped(tmp_path, images):
    words = ("table1", "scale=smoke", "target.groups=[1]", "train.epochs=10000", "device=cpu")
    line = [sys.executable, str(SCRIPTS / gpu_slice.TRAIN), "burkholz2024", *words, "--jobs=2"]
    line += [f"data.root={images}", f"outputs={tmp_path}"]
    logs = [tmp_path / f"studies/burkholz2024/smoke-process-{number}.log" for number in (1, 2)]
    for sign in ("epoch 1/", "resuming at step"):
        process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while not all(log.exists() and sign in log.read_text() for log in logs):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)  # like gpu_slice.py
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 130, errors
        assert len(list(tmp_path.glob("targets/*/checkpoint.safetensors"))) == 2


@pytest.mark.process
def test_resnet18_is_rebuilt_layer_by_layer(tmp_path, images):
    options = ("target.width=4", "train.epochs=1", "train.warmup_epochs=0.5", "threads=1")
    options += ("device=cpu", f"data.root={images}")
    line = [sys.executable, SLICE, *options, "--pieces", "resnet18"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing is left to do" in done.stdout
    result = RunResult.read(next(tmp_path.glob("outputs/runs/*/result.json")))
    assert len(result.layers) == 21
    assert all(layer.converged and layer.relative_error < 1e-10 for layer in result.layers)
    assert max(layer.equations for layer in result.layers) == 32 * 32 * 9


# The commit


@pytest.mark.parametrize(
    ("text", "commit"),
    [("0123456789ab+\n", "0123456789ab+"), ("0123456789ab", "0123456789ab"), ("main", None)],
)
def test_recorded_commit_is_used_without_git(tmp_path, monkeypatch, text, commit):
    (tmp_path / "bnrecon" / "runtime").mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "bnrecon/runtime/provenance.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    provenance.commit.cache_clear()
    try:
        assert provenance.commit() is None
        (tmp_path / "bnrecon" / provenance.RECORDED).write_text(text)
        provenance.commit.cache_clear()
        assert provenance.commit() == commit
    finally:
        provenance.commit.cache_clear()


# The rehearsal: an environment with only torch and torchvision stands for the machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A Python with torch, torchvision and numpy; no network, no git, another home folder."""
    folder = tmp_path_factory.mktemp("machine")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    names = pack_for_gpu.needed(["torch", "torchvision", "numpy"])
    for about in map(importlib.metadata.distribution, names):
        for name in {file.parts[0] for file in about.files} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(about.locate_file(name))
    (site / "no_network.py").write_text(NO_NETWORK)
    (site / "no_network.pth").write_text("import no_network\n")  # Debian has a sitecustomize
    (folder / "home").mkdir()
    (folder / "path").mkdir()
    bare = {"HOME": str(folder / "home"), "PATH": str(folder / "path"), "OMP_NUM_THREADS": "1"}

    def run(*words, cwd=folder, until=None):
        """Run Python to its end, or stop it once a condition holds."""
        line = [str(folder / "venv" / "bin" / "python"), *map(str, words)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(line, env=bare, cwd=cwd, **streams) as process:
            if until is not None:
                wait_until(lambda: until() or process.poll() is not None, 280)
                process.terminate()
            out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(line, process.returncode, out, err)

    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The embedded digits in the form of CIFAR-10: 32 x 32 pixels, three channels."""
    digits = load(DataSpec("digits"))
    arrays = {"train_y": digits.train_y.numpy()[:256], "test_y": digits.test_y.numpy()[:64]}
    for split, pixels in (("train_x", digits.train_x[:256]), ("test_x", digits.test_x[:64])):
        arrays[split] = pixels.repeat_interleave(4, 1).repeat_interleave(4, 2).expand(-1, -1, -1, 3)
    folder = tmp_path_factory.mktemp("images")
    np.savez(folder / "cifar10.npz", classes=np.array(CIFAR10_CLASSES), **arrays)
    return folder


@pytest.mark.process
def test_slice_is_rehearsed_from_packing_to_the_tables(machine, images, succeed, tmp_path):
    pack, home = tmp_path / "pack", tmp_path / "home"
    home.mkdir()
    words = [str(pack), "--data", str(images), "--pieces", "table1-targets", "table1-exact"]
    assert pack_for_gpu.main(words) == 0
    with pytest.raises(SystemExit):  # existing packs are kept
        pack_for_gpu.main(words)

    # The two commands of README.md: one packs the results, the other unpacks them at home.
    readme = (SCRIPTS / "gpu/README.md").read_text(encoding="utf-8")
    packing, unpacking = re.findall(r"^ +(tar .*results.tar.gz.*)$", readme, re.MULTILINE)
    unpacking = unpacking.replace("-C outputs", f"-C {home}")

    # One slice is stopped after a target is trained, the next one after a run is finished.
    work = ("device=cpu", "scale=smoke", *OPTIONS, "--pieces", "table1-targets", "table1-exact")
    for pattern in ("targets/*/target.json", "runs/*/result.json"):
        line = ("scripts/gpu/gpu_slice.py", "--minutes", "60", *work)
        reached = lambda pattern=pattern: list((pack / "outputs").glob(pattern))  # noqa: E731
        done = machine(*line, cwd=pack, until=reached)
        assert done.returncode == 143, done.stderr
        assert "\ntable1-targets: at most" in done.stdout
        subprocess.run(f"{packing} && {unpacking}", shell=True, cwd=pack, check=True)
        assert list(home.glob(pattern))

    # At home, where nothing was computed
    request = read("burkholz2024", ["table1", "exact", "scale=smoke", f"outputs={home}", *OPTIONS])
    planned = engine.plan(registry.find("burkholz2024"), request)
    results = [result for part in planned for work in part.work if (result := work.result())]
    assert results
    commit = provenance.commit()
    assert {result.commit for result in results} == {commit}
    assert len(list(home.glob("targets/*/target.safetensors"))) == 4
    assert not list(home.glob("**/source.safetensors"))
    out, _ = succeed("tables", *request.words_without_executor)
    assert str(commit or "") in out
