"""Results as objects: every shipped one is read and written back unchanged."""

import dataclasses
import json

import pytest
from repository import RESULTS

from bnrecon.reporting.result import Predictions, RunResult, SeedRecord, SeedResult
from bnrecon.reporting.statistics import mean_interval
from bnrecon.runtime import files


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_every_shipped_result_round_trips(path):
    content = files.read_json(path)
    result = RunResult.from_json(content)
    assert json.dumps(result.to_json()) == json.dumps(content)  # including the order of keys
    assert RunResult.from_json(result.to_json()) == result == RunResult.read(str(path))


def test_statistics_of_a_result_are_those_of_its_seeds():
    content = files.read_json(RESULTS[-1])
    result = RunResult.from_json(content)
    target, accuracies = content["target"]["accuracy"], content["source"]["accuracy"]
    assert result.accuracy == mean_interval(accuracies)
    assert result.loss == mean_interval([target - accuracy for accuracy in accuracies])
    assert [layer.relative_error for layer in result.layers] == [
        row["relative_error"] for row in content["layers"]
    ]
    assert len(result.unconverged) == sum(not row["converged"] for row in content["layers"])


def test_time_host_and_command_of_a_result_are_stored(tmp_path):
    made = {"finished": "2026-01-31T09:05:00Z", "host": "node7", "command": "bnrecon run"}
    old = RunResult.read(RESULTS[0])
    result = dataclasses.replace(old, **made)
    result.write(tmp_path / "result.json")
    assert RunResult.read(tmp_path / "result.json") == result
    assert files.read_json(tmp_path / "result.json") == old.to_json() | made


def test_no_shipped_result_names_a_machine():
    for path in RESULTS:
        content = files.read_json(path)
        assert "host" not in content
        assert content["config"]["outputs"] == "outputs"
        assert content["config"]["targets"] is content["config"]["data"]["root"] is None


def test_keys_of_later_versions_are_ignored():
    content = files.read_json(RESULTS[0])
    later = content | {"energy": 3, "target": content["target"] | {"color": "red"}}
    assert RunResult.from_json(later) == RunResult.from_json(content)


@pytest.mark.parametrize("gone", ["source", "layers", "target", "seeds", "notes"])
def test_incomplete_result_is_of_another_version(tmp_path, gone):
    content = files.read_json(RESULTS[0])
    del content[gone]
    files.write_json(tmp_path / "result.json", content)
    with pytest.raises(files.Damaged, match="was written by another version of bnrecon"):
        RunResult.read(tmp_path / "result.json")


def test_seed_record_round_trips_and_gives_its_result(tmp_path):
    seed = RunResult.read(RESULTS[0]).seeds[1]
    seed = dataclasses.replace(seed, predictions=Predictions(100, 3, 1, 0))
    record = SeedRecord(
        **{field.name: getattr(seed, field.name) for field in dataclasses.fields(SeedResult)},
        images=100,
        source_images=64,
        largest_logit_difference=1e-6,
        largest_difference_to_target=2e-6,
        outside_linear_region=0,
        trainable_parameters=10,
        parameters=1000,
        notes=("a note",),
        key="0123456789",
        source="89abcdef",
    )
    files.write_json(tmp_path / "result.json", record.to_json())
    assert SeedRecord.read(tmp_path / "result.json") == record
    assert record.result() == seed


def test_predictions_of_some_or_all_seeds_round_trip(tmp_path):
    uncounted = (r for r in map(RunResult.read, RESULTS) if r.seeds[0].predictions is None)
    result = next(uncounted)
    counts = [Predictions(10000, 3, 1, 0), Predictions(10000, 5, 0, 2), None]
    path = tmp_path / "result.json"
    for last in (None, Predictions(10000, 4, 2, 2)):
        counts[2] = last
        seeds = zip(result.seeds, counts, strict=True)
        seeds = tuple(dataclasses.replace(seed, predictions=count) for seed, count in seeds)
        counted = dataclasses.replace(result, seeds=seeds)
        counted.write(path)
        assert RunResult.read(path) == counted
        written = files.read_json(path)["source"]["predictions"]
        assert written == [count and dataclasses.asdict(count) for count in counts]
        assert counted.predictions == (counts[1] if last else None)
    assert result.predictions is None


def test_totals_of_a_result_are_those_of_its_layers():
    result = RunResult.read(RESULTS[-1])
    rows = files.read_json(RESULTS[-1])["layers"]
    assert result.redrawn == sum(row["redrawn"] for row in rows) > 0
    assert result.largest_assembled_error == max(row["assembled_error"] for row in rows)
    assert result.iterations == max(row["iterations"] for row in rows) > 0
