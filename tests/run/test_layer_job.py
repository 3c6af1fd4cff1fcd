"""Layers that are solved elsewhere are those that the run reads."""

import pytest

from bnrecon.config import composition
from bnrecon.run import main_job, together
from bnrecon.runtime import files


@pytest.fixture
def config(tmp_path):
    words = ["scale=smoke", "target.groups=[1,1]", "seeds=[3,5]", f"outputs={tmp_path / 'out'}"]
    return composition.compose(words)


def test_a_run_offers_the_layers_that_are_not_stored_and_reads_what_was_solved(config):
    offered, stored = [], {}

    def share(run, seed, layers):
        offered.append((seed, [layer.name for layer in layers]))
        for layer in layers[1:]:
            together.LayerWork(run.config, seed, layer.name).compute()
            path = run.folder / f"seed-{seed}/layer-{layer.name}.safetensors"
            stored[seed, layer.name] = files.read_tensors(path)[1]["report"]
        together.LayerWork(run.config, seed, layers[1].name).compute()  # reads it
        assert files.read_tensors(path)[1]["report"] == stored[seed, layer.name]

    seeds = main_job.run(config, share).result.seeds
    names = [layer.name for layer in seeds[0].layers]
    assert offered == [(3, names), (5, names)]
    assert len(names) == 3
    for record in seeds:
        for layer in record.layers[1:]:  # not solved again
            assert layer.seconds == stored[record.seed, layer.name]["seconds"]


def test_what_is_stored_is_not_offered_again(config):
    offered = []

    def stop(run, seed, layers):
        offered.append([layer.name for layer in layers])
        together.LayerWork(run.config, seed, layers[0].name).compute()
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            main_job.run(config, stop)
    assert offered[1] == offered[0][1:]
