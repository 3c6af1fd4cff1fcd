"""The cost curve takes layers from a finished run."""

import re

import cost_curve
import pytest

from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files


def test_layers_of_a_finished_run_are_read_from_its_result(finished):
    layers = [
        layer for seed in RunResult.read(finished / "result.json").seeds for layer in seed.layers
    ]
    rows = cost_curve.run_rows(finished)
    assert sum(row["layers"] for row in rows) == len(layers)
    assert {(row["n"], row["c1"]) for row in rows} == {
        (layer.equations, layer.width) for layer in layers
    }


@pytest.mark.process
def test_rows_of_other_threads_and_of_a_run_are_told_apart(tmp_path, monkeypatch, capsys, finished):
    line = ["cost_curve.py", "--widths", "--lu", "20", "--outputs", str(tmp_path)]
    for more in (["--threads", "2"], ["--run", str(finished), "--threads", "1"]):
        monkeypatch.setattr("sys.argv", [*line, *more])
        cost_curve.main()
        out = capsys.readouterr().out
        assert out.count("| LU, float64") == 1
    assert f"--widths --lu 20 --run {finished.as_posix()} --threads 1`" in out
    rows = files.read_json(tmp_path / "cost_curve.json")["rows"]
    assert sorted(row["threads"] for row in rows if row["name"] == "LU") == [1, 2]


@pytest.mark.process
def test_rows_that_are_there_are_not_measured_again(tmp_path, monkeypatch, capsys):
    line = ["cost_curve.py", "--widths", "2", "--lu", "20", "--outputs", str(tmp_path)]
    monkeypatch.setattr("sys.argv", line)
    for measured in (2, 0):
        cost_curve.main()
        out, err = capsys.readouterr()
        assert err.count(": measured") == measured
        assert re.search(r"^\| a layer +\| 36 +\| 54 +(\| \S+ +){2}\| \d+ +\|", out, re.MULTILINE)
        assert "Command: `python scripts/cost_curve.py --widths 2 --lu 20 --threads 1`" in out
    assert {path.name for path in tmp_path.iterdir()} == {
        f"cost_curve.{kind}" for kind in ("json", "md", "png", "svg")
    }
