"""Measured rows are kept in a file as they come, and measured once."""

import re
import subprocess

import bench_storage
import cost_curve
import pytest
import torch
from bench_rows import measure_missing

from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError

ONE, TWO, THREE = ({"size": size, "threads": 1} for size in (1, 2, 3))


class Measurement:
    """Counts what it is asked for; fails for the sizes that are given."""

    def __init__(self, *failing):
        self.asked, self.failing = [], failing

    def __call__(self, about):
        self.asked.append(about["size"])
        if about["size"] in self.failing:
            raise subprocess.CalledProcessError(3, "row")
        return {"seconds": float(len(self.asked))}


def rows_of(path):
    return {row["size"]: row["seconds"] for row in files.read_json(path)["rows"]}


def test_a_call_adds_its_rows_to_those_of_others(tmp_path):
    path, measurement = tmp_path / "rows.json", Measurement()
    first, second = measure_missing(path, [ONE, TWO], measurement)
    assert (first["size"], first["seconds"], second["seconds"]) == (1, 1.0, 2.0)
    assert len(measure_missing(path, [TWO, THREE], measurement)) == 3
    assert measurement.asked == [1, 2, 3]
    assert rows_of(path) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_an_interruption_and_a_failure_lose_no_row(tmp_path, capsys):
    def interrupted(about):
        if about is TWO:
            raise KeyboardInterrupt
        return {"seconds": 5.0}

    path = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        measure_missing(path, [ONE, TWO], interrupted)
    assert rows_of(path) == {1: 5.0}
    measure_missing(path, [ONE, TWO, THREE], Measurement(2))
    assert rows_of(path) == {1: 5.0, 3: 2.0}
    assert capsys.readouterr().err == "2 1: failed with exit code 3\n"


def test_a_row_with_a_note_alone_is_tried_again(tmp_path):
    path = tmp_path / "rows.json"
    for found in ({"note": "not run: 8 GB needed"}, {"note": "float64", "seconds": 7.0}):
        measure_missing(path, [ONE], lambda about, found=found: found)
    (row,) = files.read_json(path)["rows"]
    assert row.items() >= (ONE | {"note": "float64", "seconds": 7.0}).items()
    assert measure_missing(path, [ONE], Measurement())[0]["seconds"] == 7.0


@pytest.mark.process
def test_a_solve_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    words = ("--features", "sign", "--widths", "4", "256", "--outputs", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["bench_storage.py", "solves", *words])
    bench_storage.main()
    rows = files.read_json(tmp_path / "solves.json")["rows"]
    assert [(row["width"], row["precision"]) for row in rows] == [(4, "int8"), (4, "bfloat16")]
    assert all(row["n"] == 144 and row["residual"] < 1e-10 for row in rows)
    assert "solves --features sign --widths 4`" in (tmp_path / "solves.md").read_text()


def test_layers_of_a_finished_run_are_read_from_its_result(finished):
    layers = [
        layer for seed in RunResult.read(finished / "result.json").seeds for layer in seed.layers
    ]
    rows = cost_curve.run_rows(finished)
    assert sum(row["layers"] for row in rows) == len(layers)
    assert {(row["n"], row["c1"]) for row in rows} == {
        (layer.equations, layer.width) for layer in layers
    }


def test_layers_of_a_run_at_work_are_read_from_what_it_solved(tmp_path):
    for number, (seconds, count) in enumerate([(1.0, 54), (7.0, 54), (4.0, 54), (9.0, 216)]):
        about = {"seconds": seconds, "iterations": 10 + number, "relative_residual": 1e-11}
        files.write_tensors(
            tmp_path / "seed-0" / f"layer-{number}.safetensors",
            {"scale": torch.zeros(count)},
            {"name": str(number), "key": "", "seed": 0, "report": about},
        )
    found = [
        (row["n"], row["layers"], row["seconds"], row["iterations"])
        for row in cost_curve.run_rows(tmp_path)
    ]
    assert found == [(36, 3, 4.0, 11), (144, 1, 9.0, 13)]
    with pytest.raises(UserError, match="holds no result and no solved layer"):
        cost_curve.run_rows(tmp_path / "nowhere")


@pytest.mark.process
def test_rows_that_are_there_are_not_measured_again(tmp_path, monkeypatch, capsys):
    line = ["cost_curve.py", "--widths", "2", "--lu", "20", "--outputs", str(tmp_path)]
    monkeypatch.setattr("sys.argv", line)
    for measured in (2, 0):
        assert cost_curve.main() == 0
        out, err = capsys.readouterr()
        assert len([row for row in err.splitlines() if " s" in row]) == measured
        assert re.search(r"^\| a layer +\| 36 +\| 54 +(\| \S+ +){2}\| \d+ +\|", out, re.MULTILINE)
        assert "Command: `python scripts/cost_curve.py --widths 2 --lu 20 --threads 1`" in out
    assert {path.name for path in tmp_path.iterdir()} == {
        f"cost_curve.{kind}" for kind in ("json", "md", "png", "svg")
    }
