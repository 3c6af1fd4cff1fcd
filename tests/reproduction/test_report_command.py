"""The command `bnrecon report`: what it writes, what it prints, and what it refuses."""

import importlib.util
import os
from pathlib import Path

import pytest


@pytest.fixture
def libraries():
    pytest.importorskip("itables")
    pytest.importorskip("markdown_it")


@pytest.mark.usefixtures("libraries")
def test_the_report_is_written_into_the_outputs_folder_and_named(command, succeed, tmp_path):
    out, err = succeed("report", "giannou2023", "scale=smoke", f"outputs={tmp_path}")
    path, counts = out.splitlines()
    assert Path(path) == tmp_path / "report.html"
    assert counts.startswith(
        "claims: 0 confirmed, 0 contradicted, 0 false as stated, 0 undecided, "
    )
    assert "parts complete: 0 of 12; runs: 0; " in counts
    assert "giannou2023: 12 parts" in err
    before = Path(path).read_bytes()
    assert command("report", "giannou2023", "scale=smoke", f"outputs={tmp_path}")[0] == 0
    assert Path(path).read_bytes() == before
    assert [place.name for place in tmp_path.iterdir()] == ["report.html"]  # nothing else


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("burkholz",), "did you mean 'burkholz2024'?"),
        (("table1",), "a report shows all parts"),
        (("jobs=2",), "for bnrecon study only"),
        (("scale=big",), "Allowed: laptop, paper, smoke"),
        (("outputs=nowhere/at/all",), "no such folder"),
        (("target.widht=3",), "did you mean 'target.width'?"),
        (("--ouput", "x"), "did you mean '--output'?"),
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


def test_a_file_of_somebody_else_is_kept(command, tmp_path):
    mine = tmp_path / "report.html"
    mine.write_text("mine", encoding="utf-8")
    code, _, err = command("report", f"outputs={tmp_path}")
    assert code == 2
    assert "there is a file that is no report of bnrecon" in err
    assert mine.read_text(encoding="utf-8") == "mine"


def test_a_pipe_is_not_replaced_by_a_report_and_nothing_is_gathered_before_that_is_said(
    command, tmp_path
):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, out, err = command("report", f"outputs={tmp_path}", "--output", str(pipe), "--overwrite")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"this is a pipe; give another name: {pipe}" in err
    assert pipe.is_fifo()


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
