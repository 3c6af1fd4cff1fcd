"""An interrupted solve of a layer resumes from its last iteration."""

import dataclasses
import errno
import logging
from collections import OrderedDict

import pytest
import torch
from networks import Composed
from processes import SMALLEST
from torch import nn

import bnrecon
from bnrecon.config.composition import compose
from bnrecon.run import main_job
from bnrecon.run.layer_checkpoint import LayerCheckpoint, solved_layers
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime import files
from bnrecon.solvers.checkpoint import KrylovState, RefinementState

ABOUT = {"name": "conv", "key": "k", "seed": 0}
STATE = RefinementState(
    torch.arange(3.0).double(), torch.ones(2).double(), 7, 1, 0.25, ("bfloat16",)
)
ENERGY = torch.tensor(0.1)  # float32, shared by two fields as after the first iteration
INNER = KrylovState(torch.arange(3.0), torch.ones(2), torch.ones(3), ENERGY, ENERGY, 5, 0.1, 4)


def at(folder, about=ABOUT, seconds=0.0):
    checkpoint = LayerCheckpoint(folder / "unfinished-conv.safetensors", about)
    checkpoint.seconds = seconds
    return checkpoint


@pytest.mark.parametrize("inner", [None, INNER], ids=["corrected", "within"])
def test_state_round_trips(tmp_path, inner):
    assert at(tmp_path).load() is None
    at(tmp_path).save(dataclasses.replace(STATE, inner=inner))
    back = at(tmp_path).load()
    assert torch.equal(back.x, STATE.x)
    assert torch.equal(back.residual, STATE.residual)
    tensors = {"x": 0, "residual": 0, "inner": 0}
    assert back.__dict__ | tensors == STATE.__dict__ | tensors
    assert (back.inner is None) == (inner is None)
    for loaded, saved in zip(back.inner or (), inner or (), strict=True):
        torch.testing.assert_close(loaded, saved, rtol=0, atol=0)


def test_time_before_an_interruption_counts(tmp_path):
    first = at(tmp_path)
    first.save(STATE)
    second = at(tmp_path)
    assert second.before == 0
    second.load()
    assert second.before > 0
    second.save(STATE)
    third = at(tmp_path)
    third.load()
    assert third.before > second.before
    other = at(tmp_path, ABOUT | {"seed": 1})
    assert other.load() is None
    assert other.before == 0


def test_layer_solved_within_a_minute_writes_nothing(tmp_path):
    at(tmp_path, seconds=LayerCheckpoint.seconds).save(STATE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", [{"name": "other"}, {"key": "other"}, {"seed": 1}])
def test_state_of_another_solve_is_set_aside(tmp_path, other, caplog):
    at(tmp_path).save(STATE)
    kept = at(tmp_path).path.read_bytes()
    assert at(tmp_path, ABOUT | other).load() is None
    assert "the state of another solve" in caplog.text
    at(tmp_path, ABOUT | other).save(STATE)
    aside = at(tmp_path).path.with_name(at(tmp_path).path.name + ".damaged")
    assert aside.read_bytes() == kept


def test_run_resumes_within_the_interrupted_layer(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    options = [*SMALLEST, "solver=matrix_free", f"targets={tmp_path / 'targets'}"]
    whole = main_job.run(compose([*options, f"outputs={tmp_path / 'whole'}"])).result
    resumed = [*options, f"outputs={tmp_path / 'resumed'}"]
    save = LayerCheckpoint.save

    def stopped(self, state):
        if state.inner.step == 20:
            self.seconds = 0.0
            save(self, state)
            raise KeyboardInterrupt

    monkeypatch.setattr(LayerCheckpoint, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        main_job.run(compose(resumed))
    (folder,) = (tmp_path / "resumed").glob("runs/*/seed-0")
    assert [path.name[:11] for path in solved_layers(folder)] == ["unfinished-"]
    monkeypatch.setattr(LayerCheckpoint, "save", save)
    load = LayerCheckpoint.load

    def loaded(self):
        state = load(self)
        if state is not None:
            self.before += 1000
        return state

    monkeypatch.setattr(LayerCheckpoint, "load", loaded)
    result = main_job.run(compose(resumed)).result
    assert "resumes after 20 iterations" in caplog.text
    assert solved_layers(folder) == []
    for first, second in zip(whole.seeds[0].layers, result.seeds[0].layers, strict=True):
        assert first.relative_error == second.relative_error
        assert first.iterations == second.iterations
    assert whole.seeds[0].accuracy == result.seeds[0].accuracy
    assert max(layer.seconds for layer in result.seeds[0].layers) > 1000  # earlier seconds count
    assert result.seeds[0].solving_seconds > 1000
    assert result.seeds[0].seconds > 1000


def test_layers_with_similar_names_have_separate_files(tmp_path):
    parts = {"a": nn.Sequential(OrderedDict(b=nn.Linear(4, 4))), "a_b": nn.Linear(4, 4)}
    alike = Composed(lambda self, x: self.a_b(self.a(x)), **parts)
    plan = bnrecon.plan_layers(alike.eval(), "he_normal")
    solved = SolvedLayers(tmp_path / "seed-0", "key")
    for layer in plan.layers:
        solved.solve(layer, layer.draw_groups())
    stored = SolvedLayers(tmp_path / "seed-0", "key")
    assert [layer.name for layer in plan.layers if stored.get(layer)] == ["a.b", "a_b"]


def test_full_disk_names_the_layer_whose_solution_is_lost(tmp_path, monkeypatch):
    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    (layer,) = bnrecon.plan_layers(nn.Linear(4, 4).eval()).layers
    monkeypatch.setattr(files, "write_tensors", full)
    with pytest.raises(
        OSError, match="the model is solved but its solution cannot be saved, No"
    ) as e:
        SolvedLayers(tmp_path / "seed-0", "key").solve(layer, layer.draw_groups())
    assert e.value.errno == errno.ENOSPC
    assert "layer-" in e.value.filename


def test_unwritable_state_does_not_end_the_solve(tmp_path, caplog):
    (tmp_path / "folder").write_text("a file where the folder should be")
    checkpoint = at(tmp_path / "folder")
    checkpoint.save(STATE)
    checkpoint.save(STATE)
    assert caplog.text.count("conv: its state cannot be saved") == 1
