"""A run reads the layers that other processes solved."""

import dataclasses

import pytest
import torch

from bnrecon.config import composition
from bnrecon.run import main_job, together
from bnrecon.runtime import files


@pytest.fixture
def config(tmp_path):
    words = ["scale=smoke", "target.groups=[1,1]", "seeds=[3,5]", f"outputs={tmp_path / 'out'}"]
    return composition.compose(words)


def test_run_offers_unsolved_layers_and_reads_their_solutions(config):
    offered, stored = [], {}

    def share(run, seed, layers):
        offered.append((seed, [layer.name for layer in layers]))
        for layer in layers[1:]:
            together.LayerWork(run.config, seed, layer.name).compute()
            path = run.folder / f"seed-{seed}/layer-{layer.name}.safetensors"
            stored[seed, layer.name] = files.read_tensors(path)[1]["report"]
        together.LayerWork(run.config, seed, layers[1].name).compute()  # only reads it
        assert files.read_tensors(path)[1]["report"] == stored[seed, layer.name]

    seeds = main_job.run(config, share).result.seeds
    names = [layer.name for layer in seeds[0].layers]
    assert offered == [(3, names), (5, names)]
    assert len(names) == 3
    for record in seeds:
        for layer in record.layers[1:]:  # not solved again
            assert layer.seconds == stored[record.seed, layer.name]["seconds"]


def test_layer_keeps_to_the_threads_of_its_process(config, monkeypatch):
    used = []
    solve = together.SolvedLayers.solve
    monkeypatch.setattr(
        together.SolvedLayers,
        "solve",
        lambda *given: (used.append(torch.get_num_threads()), solve(*given))[1],
    )

    def share(run, seed, layers):
        torch.set_num_threads(1)
        asked = dataclasses.replace(run.config, threads=2)
        together.LayerWork(asked, seed, layers[0].name).compute()
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    try:
        with pytest.raises(KeyboardInterrupt):
            main_job.run(config, share)
    finally:
        torch.set_num_threads(before)
    assert used == [1]


def test_stored_layers_are_not_offered_again(config):
    offered = []

    def stop(run, seed, layers):
        offered.append([layer.name for layer in layers])
        together.LayerWork(run.config, seed, layers[0].name).compute()
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            main_job.run(config, stop)
    assert offered[1] == offered[0][1:]
