"""Shared fixtures: the embedded digits, finished runs, and the command in this process."""

import multiprocessing.util
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile

import pytest
import torch
from processes import SMALLEST, TWO_SEEDS
from repository import OUTPUTS, SHIPPED

from bnrecon.cli.main import main
from bnrecon.config.composition import compose
from bnrecon.data import DATASETS, DataSpec, load
from bnrecon.features import DISTRIBUTIONS
from bnrecon.reconstruction import duration
from bnrecon.run import main_job
from bnrecon.runtime import hardware
from bnrecon.solvers import SOLVERS
from bnrecon.studies import registry
from bnrecon.targets.register import FAMILIES


def pytest_configure(config):
    """Keep the user's shell and home folder from affecting tests and their processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and CI may have it ignored
    for name in ("COLUMNS", "LINES", "HYDRA_FULL_ERROR", "TRACKIO_DIR", "WANDB_MODE"):
        os.environ.pop(name, None)
    empty = tempfile.TemporaryDirectory()
    config.add_cleanup(empty.cleanup)
    os.environ |= {name: empty.name for name in ("BNRECON_DATA", "XDG_CONFIG_HOME")}


@pytest.fixture(autouse=True)
def _no_network(request, monkeypatch):
    """Allow connections only to this machine, unless a test is marked ``network``."""
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def connect_here(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test tried to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


def pytest_collection_modifyitems(items):
    """Mark tests whose fixtures start a process or shell."""
    starting = {"process", "shell", "answers", "in_two_processes", "wheel"}
    for item in items:
        if starting & set(getattr(item, "fixturenames", ())):
            item.add_marker("process")


@pytest.fixture(autouse=True)
def _no_process(request, monkeypatch):
    """Start no Python, unless a test is marked ``process``."""
    if any(map(request.node.get_closest_marker, ("process", "slurm"))):
        return

    def refuse(call):
        def begin(*words, **settings):
            if sys.executable in str(words[1:]):
                pytest.fail("a test that starts a process is marked process")
            return call(*words, **settings)

        return begin

    starts = (subprocess.Popen, "__init__"), (multiprocessing.util, "spawnv_passfds")
    for owner, name in starts:
        monkeypatch.setattr(owner, name, refuse(getattr(owner, name)))


@pytest.fixture
def no_home(monkeypatch):
    """The user has no home folder, like a container's user without an entry in passwd."""

    def refuse(user):
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", refuse)


@pytest.fixture(scope="session", autouse=True)
def _small_rates():
    """Measure the processor's speed, as every run does, on small matrices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(duration.SIDES, "cpu", 64)
        yield


@pytest.fixture(scope="session")
def digits():
    return load(DataSpec("digits", crop_padding=1, flip=False))


@pytest.fixture(scope="session")
def shipped_outputs(tmp_path_factory):
    """An outputs folder with only the shipped results."""
    folder = tmp_path_factory.mktemp("shipped")
    names = [f"{kind}/{name}" for kind in ("runs", "targets") for name in SHIPPED[kind]]
    for name in (*names, *registry.STUDIES, "main_job", "models", "solvers"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(OUTPUTS / name, target_is_directory=True)
    return folder


def _finished_outputs(tmp_path_factory, options):
    """A folder with one finished run."""
    outputs = tmp_path_factory.mktemp("outputs")
    main_job.run(compose([*options, f"outputs={outputs}"]))
    return outputs


@pytest.fixture(scope="session")
def smallest_outputs(tmp_path_factory):
    return _finished_outputs(tmp_path_factory, SMALLEST)


@pytest.fixture(scope="session")
def two_seed_outputs(tmp_path_factory):
    return _finished_outputs(tmp_path_factory, TWO_SEEDS)


@pytest.fixture(autouse=True)
def restored_registers():
    """Remove a test's registrations afterwards."""
    registers = [FAMILIES, DATASETS, DISTRIBUTIONS, SOLVERS]
    before = [dict(register) for register in registers]
    yield
    for register, entries in zip(registers, before, strict=True):
        register.clear()
        register.update(entries)


@pytest.fixture
def command(capsys):
    """Run `bnrecon WORDS` in this process; return exit code, stdout and stderr."""

    def run(*words):
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def succeed(command):
    """Run `bnrecon WORDS`, which has to succeed; return stdout and stderr."""

    def run(*words):
        code, out, err = command(*words)
        assert code == 0, err
        return out, err

    return run


@pytest.fixture
def integer_products(monkeypatch):
    """``torch._int_mm`` with exact sums, also where oneDNN saturates them."""
    if not hardware._integer_sums_are_exact():
        monkeypatch.setattr(torch, "_int_mm", lambda a, b: a.int() @ b.int())
