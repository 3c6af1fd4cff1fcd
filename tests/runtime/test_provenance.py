"""Provenance: what is recorded describes this machine and process."""

import shlex
import sys

import torch
from processes import SMALLEST

from bnrecon.reporting.result import RunResult
from bnrecon.runtime import provenance


def test_versions_name_the_build_of_torch(tmp_path):
    versions = provenance.versions()
    assert versions["torch"] == torch.__version__
    assert ("cuda" in versions) == (torch.version.cuda is not None)
    assert "" not in versions.values()


def test_command_omits_the_folder_of_its_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/train.py", "data.root=/a b"])
    assert provenance.command() == "train.py 'data.root=/a b'"
    with provenance.started_as(["run", "scale=smoke"]):
        with provenance.started_as(["tables"]):
            assert provenance.command() == "bnrecon tables"
        assert provenance.command() == "bnrecon run scale=smoke"
    monkeypatch.setattr(sys, "argv", [])
    assert provenance.command() == "python"


def test_run_records_the_command_as_typed(command, tmp_path):
    """Hydra changes the process's arguments."""
    words = ("run", *SMALLEST, f"outputs={tmp_path}")
    assert command(*words)[0] == 0
    (path,) = tmp_path.glob("runs/*/result.json")
    assert RunResult.read(path).command == shlex.join(["bnrecon", *words])
