"""One layer of a large model is rebuilt by itself: measured once, and gone on with after a kill."""

import pytest
import solve_layer

from bnrecon.run import layer_checkpoint
from bnrecon.runtime import files

LAYER = {"model": "shufflenet_v2_x0_5", "layer": "conv1.0", "features": "sign", "threads": 1}


@pytest.mark.process
def test_a_layer_is_measured_once_within_its_model(tmp_path, monkeypatch, capsys):
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
    assert "scripts/solve_layer.py shufflenet_v2_x0_5 conv1.0" in (
        tmp_path / "layers.md"
    ).read_text(encoding="utf-8")


def test_what_is_not_there_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    for words, reason in (
        (["resnet5", "fc"], "resnet5: no classification model of torchvision"),
        ([LAYER["model"], "conv9"], "has no layer conv9 to rebuild"),
        ([LAYER["model"], "conv1.0", "--features", "he"], "features"),
    ):
        monkeypatch.setattr("sys.argv", ["solve_layer.py", *words, "--outputs", str(tmp_path)])
        with pytest.raises(SystemExit, match="2"):
            solve_layer.main()
        assert reason in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_solve_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    whole = solve_layer.rebuild(LAYER | {"outputs": str(tmp_path)})
    monkeypatch.setattr(layer_checkpoint, "SECONDS", 0.0)
    save, saved = layer_checkpoint.LayerCheckpoint.save, []

    def killed(self, state):
        save(self, state)
        saved.append(state.iterations)
        if len(saved) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(layer_checkpoint.LayerCheckpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        solve_layer.rebuild(LAYER | {"outputs": str(tmp_path)})
    assert len(list(tmp_path.glob("unfinished-*"))) == 1
    resumed = solve_layer.rebuild(LAYER | {"outputs": str(tmp_path)})
    assert not list(tmp_path.iterdir())
    assert len(saved) <= whole["iterations"]  # from the start, nine more would have been made
    assert resumed["processor_seconds"] is None  # of another process
    same = ("iterations", "residual", "difference")
    assert [resumed[name] for name in same] == [whole[name] for name in same]
