"""Layers solved separately: one of a large model, or those that runs share."""

import logging

import pytest
import solve_layer
import solve_together
from processes import SMALLEST

from bnrecon.config.composition import compose
from bnrecon.run import main_job
from bnrecon.run.layer_checkpoint import LayerCheckpoint
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files

LAYER = {"model": "shufflenet_v2_x0_5", "layer": "conv1.0", "features": "sign", "threads": 1}


@pytest.mark.process
def test_layer_is_measured_once_within_its_model(tmp_path, monkeypatch, capsys):
    line = ["solve_layer.py", LAYER["model"], LAYER["layer"], "--outputs", str(tmp_path)]
    monkeypatch.setattr("sys.argv", line)
    assert solve_layer.main() == 0
    (row,) = files.read_json(tmp_path / "layers.json")["rows"]
    assert row | LAYER == row
    assert (row["n"], row["c1"]) == (24 * 3 * 9, 972)
    assert max(row["residual"], row["error"]) < 1e-10
    assert 0 < row["difference"] < 1e-4 * row["logits"]
    before = (tmp_path / "layers.json").read_bytes()
    assert solve_layer.main() == 0
    assert (tmp_path / "layers.json").read_bytes() == before
    assert capsys.readouterr().out.count("| 648") == 2


def test_killed_solve_resumes(tmp_path, monkeypatch):
    whole = solve_layer.rebuild(tmp_path, LAYER)
    monkeypatch.setattr(LayerCheckpoint, "seconds", 0.0)
    save, saved = LayerCheckpoint.save, []

    def killed(self, state):
        save(self, state)
        saved.append(state.iterations)
        if len(saved) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(LayerCheckpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        solve_layer.rebuild(tmp_path, LAYER)
    assert len(list(tmp_path.glob("unfinished-*"))) == 1
    resumed = solve_layer.rebuild(tmp_path, LAYER)
    assert not list(tmp_path.iterdir())
    assert len(saved) <= whole["iterations"]  # a restart would make nine more
    assert resumed["processor_seconds"] is None  # spent in another process
    same = ("iterations", "residual", "difference")
    assert [resumed[name] for name in same] == [whole[name] for name in same]


WIDE = (*SMALLEST, "features=he_normal", "features.width=minimum", "seeds=[0]")


def requests(outputs):
    """Two targets with the same features."""
    others = ("train.seed=0", "train.seed=1")
    return [compose([*WIDE, other, f"outputs={outputs}"]) for other in others]


def test_runs_read_shared_layers(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    alone = [main_job.run(config).result for config in requests(tmp_path / "alone")]
    together = requests(tmp_path / "together")
    layers = len(alone[0].seeds[0].layers)
    shared = solve_together.solve(together, least=0)
    assert 0 < shared <= 2 * layers
    caplog.clear()
    for config, expected in zip(together, alone, strict=True):
        result = main_job.run(config).result
        solvers = [layer.solver for layer in result.seeds[0].layers]
        assert solvers.count("shared_lu") == shared / 2
        assert all(layer.relative_error < 1e-10 for layer in result.seeds[0].layers)
        assert result.seeds[0].accuracy == expected.seeds[0].accuracy
        assert result.seeds[0].predictions.differ == 0
    assert caplog.text.count(f"seed 0: {shared // 2} layers were solved before") == 2


def test_small_layers_are_left_to_the_runs(tmp_path):
    configs = requests(tmp_path)
    assert solve_together.solve(configs, least=10**6) == 0
    assert not list(run_folder(configs[0]).glob("seed-*/layer-*"))
