"""The command that adds a missing library names the package as pip knows it."""

import importlib.metadata

from bnrecon.runtime import extras


def test_a_package_that_pip_does_not_know_is_named_by_its_folder(monkeypatch):
    assert extras.install_command("slurm") == "pip install 'bnrecon[slurm]'"

    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", unknown)
    assert extras.install_command("slurm") == "pip install -e '.[slurm]' in its source folder"
