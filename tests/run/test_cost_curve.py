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
def test_rows_are_measured_once_and_told_apart_by_threads_and_run(
    tmp_path, monkeypatch, capsys, finished
):
    outputs = tmp_path / "curve"
    line = ["cost_curve.py", "--widths", "2", "--lu", "20", "--outputs", str(outputs)]
    for more, measured in ((["--threads", "2"], 2), (["--run", str(finished)], 2), ([], 0)):
        monkeypatch.setattr("sys.argv", [*line, *more])
        cost_curve.main()
        out, err = capsys.readouterr()
        assert (err.count(": measured"), out.count("| LU, float64")) == (measured, 1)
        assert re.search(r"^\| a layer +\| 36 +\| 54 +(\| \S+ +){2}\| \d+ +\|", out, re.MULTILINE)
    assert f"--widths 2 --lu 20 --run {finished.as_posix()} --threads 1`" in out
    rows = files.read_json(outputs / "cost_curve.json")["rows"]
    assert sorted(row["threads"] for row in rows if row["name"] == "LU") == [1, 2]
    assert {path.suffix for path in outputs.iterdir()} == {".json", ".md", ".png", ".svg"}
