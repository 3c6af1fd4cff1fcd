"""A layer of a run that is solved alone is the one that the run reads."""

from pathlib import Path

import pytest

from bnrecon.config import composition
from bnrecon.reporting.result import RunResult
from bnrecon.run import layer_job, main_job
from bnrecon.run.naming import run_folder
from bnrecon.run.seed_files import solution_file
from bnrecon.runtime import files


@pytest.fixture
def config(tmp_path):
    words = ["scale=smoke", "target.groups=[1,1]", "seeds=[3,5]", f"outputs={tmp_path / 'out'}"]
    return composition.compose(words)


def test_layers_are_listed_before_the_target_is_trained_the_largest_first(config):
    names = layer_job.list_layers(config)
    assert not Path(config.outputs).exists()
    layers = main_job.run(config).result.seeds[0].layers
    equations = {layer.name: layer.equations for layer in layers}
    assert sorted(equations, key=equations.get, reverse=True) == names
    assert len(set(equations.values())) == len(names) == 3


def test_a_layer_is_solved_once_and_read_by_the_run(config):
    name, *others = layer_job.list_layers(config)
    folder = run_folder(config)
    assert not layer_job.is_solved(folder, 3, name)
    layer_job.solve_one_layer(config, 3, name)
    assert [layer_job.is_solved(folder, seed, name) for seed in (3, 5)] == [True, False]
    assert not any(layer_job.is_solved(folder, 3, other) for other in others)
    path = folder / "seed-3" / solution_file(name)
    written, (_, metadata) = path.stat().st_mtime_ns, files.read_tensors(path)
    layer_job.solve_one_layer(config, 3, name)
    assert path.stat().st_mtime_ns == written
    main_job.run(config)
    first = RunResult.read(folder / "result.json").seeds[0]
    assert first.layers[1].name == name
    assert first.layers[1].seconds == metadata["report"]["seconds"]  # of the one that was stored
    assert layer_job.is_solved(folder, 5, name)
