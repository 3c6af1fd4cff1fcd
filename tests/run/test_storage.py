"""Runs with regenerated features: resumed by layer, and identical to runs with stored ones."""

import dataclasses
import logging
import tempfile

import pytest
from processes import SMALLEST

from bnrecon.config.composition import compose
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.run import context, main_job, naming, seed_files


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


def test_storage_is_planned_by_the_memory_that_is_free_after_the_training(
    tmp_path, stored_targets, monkeypatch, caplog
):
    """And is that of every seed, whatever was announced."""
    caplog.set_level(logging.INFO)
    plans = []

    def short(*arguments):
        plan = plan_layers(*arguments)
        layers = [dataclasses.replace(layer, storage="regenerate") for layer in plan.layers]
        plans.append(dataclasses.replace(plan, layers=layers))
        return plans[-1]

    monkeypatch.setattr(context, "plan_layers", short)
    result = main_job.run(config(tmp_path, "auto", "seeds=[0,1]", stored_targets)).result
    assert "(features in memory)" in caplog.text
    assert len(plans) == 1
    assert [seed.seed for seed in result.seeds] == [0, 1]
    for seed in result.seeds:
        assert {layer.convolutions for layer in seed.layers} == {"regenerated"}


def test_storage_changes_no_name_and_no_count(tmp_path, stored_targets):
    names, counts = set(), set()
    for storage in ("auto", "memory", "regenerate", "disk"):
        chosen = config(tmp_path / storage, storage, stored_targets)
        names.add(naming.run_folder(chosen).name)
        if storage != "auto":
            result = main_job.run(chosen).result
            counts.add((result.parameters, result.trainable_parameters))
    assert len(names) == len(counts) == 1
