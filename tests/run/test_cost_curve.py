"""The cost curve takes layers from a run, finished or at work."""

import json
import re

import cost_curve
import pytest
import torch

from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError


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


def test_a_run_at_work_with_other_features_is_refused_as_nothing_tells_its_equations(tmp_path):
    about = {"features": {"name": "sign", "oversampling": None, "excess": None}}
    for changes in ({"name": "he_normal"}, {"oversampling": 1.1}, {"excess": 8}):
        config = {"features": about["features"] | changes}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(UserError, match=r"not of 1\.5 n features sign"):
            cost_curve.run_rows(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(UserError, match="no solved layer"):
        cost_curve.run_rows(tmp_path)


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
