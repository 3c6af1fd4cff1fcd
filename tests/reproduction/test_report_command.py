"""The command `bnrecon report`: what it writes, what it prints, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

from bnrecon.reproduction.experiment import VERDICTS


def test_the_report_is_written_into_the_outputs_folder_and_named(command, succeed, tmp_path):
    pytest.importorskip("itables")
    pytest.importorskip("markdown_it")
    out, err = succeed("report", "giannou2023", "scale=smoke", f"outputs={tmp_path}")
    path, counts = out.splitlines()
    assert Path(path) == tmp_path / "report.html"
    listed = ", ".join(f"0 {verdict}" for verdict in VERDICTS)
    assert counts.startswith(f"claims: {listed}; ")
    assert "parts complete: 0 of 11; runs: 0; " in counts
    assert "giannou2023: 11 parts" in err
    before = Path(path).read_bytes()
    assert command("report", "giannou2023", "scale=smoke", f"outputs={tmp_path}")[0] == 0
    assert Path(path).read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]  # nothing else


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table1",), "a report shows all parts"),
        (("target.widht=3",), "did you mean 'target.width'?"),
    ],
)
def test_a_slip_is_one_line_that_says_what_to_do(command, words, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    code, out, err = command("report", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
    assert not (tmp_path / "outputs" / "report.html").exists()


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    command, tmp_path, monkeypatch
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "itables" else find(name)
    )
    code, _, err = command("report", f"outputs={tmp_path}")
    assert code == 2
    assert err == "bnrecon: bnrecon report needs itables: pip install 'bnrecon[report]'\n"
