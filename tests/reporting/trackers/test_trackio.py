"""Trackio's database holds the numbers of the run."""

import json
import sqlite3

import pytest
from processes import TWO_SEEDS, folder_of, succeeded

from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files

pytestmark = pytest.mark.process
pytest.importorskip("trackio")


def rows(folder):
    """(run, step, numbers) in the order written, and options by run."""
    (database,) = folder.glob("*.db")
    with sqlite3.connect(database) as connection:
        stored = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY rowid")
        numbers = [(run, step, json.loads(text)) for run, step, text in stored]
        stored = connection.execute("SELECT run_name, config FROM configs")
        return numbers, {run: json.loads(text) for run, text in stored}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run of two seeds in another process, where trackio keeps its only folder."""
    outputs = tmp_path_factory.mktemp("outputs")
    out, err = succeeded(*TWO_SEEDS, "tracker=trackio", f"outputs={outputs}")
    assert "trackio failed" not in err
    return folder_of(out), outputs / "trackers" / "trackio"


def test_database_has_epochs_layers_seeds_and_the_result(tracked):
    folder, trackers = tracked
    result = RunResult.read(folder / "result.json")
    numbers, options = rows(trackers)
    of_run = [(step, values) for run, step, values in numbers if run == folder.name]
    accuracies = [
        (step, values["seed/accuracy"]) for step, values in of_run if "seed/accuracy" in values
    ]
    assert accuracies == [(seed.seed, pytest.approx(seed.accuracy)) for seed in result.seeds]
    errors = [
        values["layer/relative_error/seed-1"]
        for _, values in of_run
        if "layer/relative_error/seed-1" in values
    ]
    assert errors == [pytest.approx(layer.relative_error) for layer in result.seeds[1].layers]
    assert of_run[-1][1]["result/accuracy"] == pytest.approx(result.accuracy.mean)
    assert options[folder.name]["features.name"] == "he_normal"
    (target,) = (trackers.parents[1] / "targets").iterdir()
    log = files.read_json(target / "target.json")["log"]
    losses = [v["epoch/loss"] for run, _, v in numbers if run == target.name and "epoch/loss" in v]
    assert losses == [pytest.approx(row["loss"]) for row in log]


def test_export_replaces_the_rows(tracked):
    _, trackers = tracked
    before = rows(trackers)
    out, _ = succeeded("trackio", str(trackers.parents[1]), command="export")
    assert f"{len(before[0])} rows sent" in out
    assert len(rows(trackers)[0]) == len(before[0])
    words = ("trackio", str(trackers.parents[1]), "tracker_project=another")
    out, _ = succeeded(*words, command="export")
    assert f"{len(before[0])} rows sent" in out
    assert "trackio show --project another" in out
