"""`bnrecon report`: the file it writes, its output, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

from bnrecon.reproduction.experiment import VERDICTS


@pytest.fixture(autouse=True)
def _outputs():
    Path("outputs").mkdir()


def test_report_is_written_into_the_outputs_folder_and_named(command, succeed):
    pytest.importorskip("itables")
    pytest.importorskip("markdown_it")
    out, err = succeed("report", "giannou2023", "scale=smoke")
    path, counts = out.splitlines()
    assert Path(path) == Path("outputs/report.html")
    listed = ", ".join(f"0 {verdict}" for verdict in VERDICTS)
    assert counts.startswith(f"claims: {listed}; ")
    assert "parts complete: 0 of 11; runs: 0; " in counts
    assert "giannou2023: 11 parts" in err
    before = Path(path).read_bytes()
    assert command("report", "giannou2023", "scale=smoke")[0] == 0
    assert Path(path).read_bytes() == before
    assert [file.name for file in Path("outputs").iterdir()] == ["report.html"]  # nothing else


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("table1",), "a report shows all parts"),
        (("target.widht=3",), "did you mean 'target.width'?"),
    ],
)
def test_mistake_is_one_line(refused, words, line):
    refused("report", *words, line=line)


def test_missing_library_is_named_with_its_installation(refused, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "itables" else find(name)
    )
    refused("report", line="bnrecon report needs itables: pip install 'bnrecon[report]'\n")
