"""The command in this process, in another process and in a shell."""

import sys
from pathlib import Path

import processes
import pytest


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def refused(command):
    """Run a command that is refused in one line and begins nothing; return the line."""

    def run(*words, line=""):
        before = sorted(Path.cwd().rglob("*"))
        code, out, err = command(*words)
        assert code == 2, err
        assert line in err
        assert err.startswith("bnrecon: ")
        assert len(err.splitlines()) == 1
        assert "Traceback" not in err
        assert "defect" not in err
        assert out == ""
        assert sorted(Path.cwd().rglob("*")) == before
        return err

    return run


@pytest.fixture
def process():
    """Run `bnrecon WORDS` in a process; its last line on stderr says whether torch was loaded."""

    def run(*words, start="import sys"):
        code = (
            f"{start}\nfrom bnrecon.cli.main import main\ncode = main({list(words)!r})\n"
            "print('torch' in sys.modules, file=sys.stderr)\nsys.exit(code)"
        )
        return processes.run([sys.executable, "-P", "-c", code])

    return run


@pytest.fixture
def shell():
    """Run a line of bash in which $BNRECON is the command."""

    def run(line, **environment):
        environment |= {"BNRECON": f"{sys.executable} -P -m bnrecon"}
        return processes.run(["bash", "-c", line], processes.ENVIRONMENT | environment)

    return run
