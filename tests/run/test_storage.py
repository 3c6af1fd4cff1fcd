"""Runs with regenerated features: resumed by layer, and identical to runs with stored ones."""

import dataclasses
import logging
import tempfile

import pytest
from processes import SMALLEST

from bnrecon.config.composition import compose
from bnrecon.run import context, main_job, naming, seed_files
from bnrecon.runtime.errors import RunError


def config(tmp_path, storage, *options):
    chosen = ("features=sign", f"features.storage={storage}", f"outputs={tmp_path}")
    return compose([*SMALLEST, *chosen, *options])


def test_run_resumes_with_layers_solved_in_another_storage(tmp_path, monkeypatch, caplog):
    """The first run stops before the second layer; the second run regenerates features."""
    caplog.set_level(logging.INFO)
    solve, solved = seed_files.solve_layer, []

    def stopped(layer, *rest):
        if solved:
            raise KeyboardInterrupt
        solved.append(layer.name)
        return solve(layer, *rest)

    monkeypatch.setattr(seed_files, "solve_layer", stopped)
    with pytest.raises(KeyboardInterrupt):
        main_job.run(config(tmp_path, "memory"))
    monkeypatch.setattr(seed_files, "solve_layer", solve)
    done = main_job.run(config(tmp_path, "regenerate"))
    assert "1 layers were solved before" in caplog.text
    assert "features regenerated tile by tile" in caplog.text
    (record,) = done.result.seeds
    assert {layer.convolutions for layer in record.layers} == {"regenerated"}
    assert all(layer.converged for layer in record.layers)
    again = main_job.run(config(tmp_path, "auto"))
    assert "already done" in again.text()
    assert again.folder == done.folder


def test_run_announces_the_location_of_features_and_leaves_no_file(
    tmp_path, stored_targets, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    chosen = ["features=orthogonal", "features.storage=disk", f"outputs={tmp_path}", stored_targets]
    result = main_job.run(compose([*SMALLEST, *chosen])).result
    assert all(layer.converged for layer in result.seeds[0].layers)
    assert f"(features in a temporary file), 3 kB of disk, and 19 kB in {folder}" in caplog.text
    assert list(folder.iterdir()) == []


def test_every_seed_uses_the_announced_storage(tmp_path, stored_targets, monkeypatch):
    """Even if free memory has changed."""
    announce = main_job.announce

    def elsewhere(*arguments):
        plan = announce(*arguments)
        assert plan.storage == "memory"
        layers = [dataclasses.replace(layer, storage="regenerate") for layer in plan.layers]
        return dataclasses.replace(plan, layers=layers)

    monkeypatch.setattr(main_job, "announce", elsewhere)
    result = main_job.run(config(tmp_path, "auto", "seeds=[0,1]", stored_targets)).result
    assert [record.seed for record in result.seeds] == [0, 1]
    for record in result.seeds:
        assert {layer.convolutions for layer in record.layers} == {"regenerated"}
    assert result.config["features"]["storage"] == "auto"


def test_features_that_no_longer_fit_are_replanned(tmp_path, stored_targets, monkeypatch, caplog):
    plan_layers = context.plan_layers

    def short(network, features, *rest):
        if features.storage == "memory":
            raise RunError("the layers need more memory than is free")
        plan = plan_layers(network, features, *rest)
        layers = [dataclasses.replace(layer, storage="regenerate") for layer in plan.layers]
        return dataclasses.replace(plan, layers=layers)

    monkeypatch.setattr(context, "plan_layers", short)
    result = main_job.run(config(tmp_path, "auto", stored_targets)).result
    assert "less memory is free than before: features.storage=regenerate" in caplog.text
    assert {layer.convolutions for layer in result.seeds[0].layers} == {"regenerated"}
    with pytest.raises(RunError, match="more memory than is free"):
        main_job.run(config(tmp_path / "other", "memory", stored_targets))


def test_storage_changes_no_name_and_no_count(tmp_path, stored_targets):
    names, counts = set(), set()
    for storage in ("auto", "memory", "regenerate", "disk"):
        chosen = config(tmp_path / storage, storage, stored_targets)
        names.add(naming.run_folder(chosen).name)
        if storage != "auto":
            result = main_job.run(chosen).result
            counts.add((result.parameters, result.trainable_parameters))
    assert len(names) == len(counts) == 1
