"""Shared fixtures: the embedded digits, and the command run in this process."""

import pytest

from bnrecon.cli import main
from bnrecon.data import DataSpec, load


@pytest.fixture(scope="session")
def digits():
    return load(DataSpec("digits", crop_padding=1, flip=False))


@pytest.fixture
def command(capsys):
    """Run `bnrecon WORDS` in this process; return exit code, standard output and standard error."""

    def run(*words):
        capsys.readouterr()
        code = {"run": main._run, "train": main._train, "tables": main._tables}[words[0]](
            list(words[1:])
        )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
