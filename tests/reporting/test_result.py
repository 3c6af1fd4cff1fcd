"""Results as objects: every shipped one is read and written back to the same content."""

import dataclasses
import json
from pathlib import Path

import pytest

from bnrecon.reporting.result import RunResult, SeedRecord, SeedResult
from bnrecon.reporting.statistics import mean_interval
from bnrecon.runtime import files

RUNS = sorted((Path(__file__).parents[2] / "outputs" / "runs").glob("*/result.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_every_shipped_result_is_read_and_written_to_the_same_text(path):
    content = files.read_json(path)
    result = RunResult.from_json(content)
    assert json.dumps(result.to_json()) == json.dumps(content)  # the order of the keys included
    assert RunResult.from_json(result.to_json()) == result == RunResult.read(path)


def test_all_results_ship():
    assert len(RUNS) == 64


def test_a_written_result_is_the_same_file(tmp_path):
    RunResult.read(RUNS[0]).write(tmp_path / "result.json")
    assert (tmp_path / "result.json").read_bytes() == RUNS[0].read_bytes()


def test_statistics_of_a_result_are_those_of_its_seeds():
    content = files.read_json(RUNS[-1])
    result = RunResult.from_json(content)
    target, accuracies = content["target"]["accuracy"], content["source"]["accuracy"]
    assert result.accuracy == mean_interval(accuracies)
    assert result.losses == [target - accuracy for accuracy in accuracies]
    assert result.loss == mean_interval(result.losses)
    assert [layer.relative_error for layer in result.layers] == [
        row["relative_error"] for row in content["layers"]
    ]
    assert len(result.unconverged) == sum(not row["converged"] for row in content["layers"])


def test_keys_of_a_later_version_are_passed_over():
    content = files.read_json(RUNS[0])
    later = content | {"energy": 3, "target": content["target"] | {"color": "red"}}
    assert RunResult.from_json(later) == RunResult.from_json(content)


@pytest.mark.parametrize("gone", ["source", "layers", "target", "seeds"])
def test_a_result_without_a_part_is_of_another_version(tmp_path, gone):
    content = files.read_json(RUNS[0])
    del content[gone]
    files.write_json(tmp_path / "result.json", content)
    with pytest.raises(files.Damaged, match="was written by another version of bnrecon"):
        RunResult.read(tmp_path / "result.json")


def test_a_seed_is_written_and_read_and_its_part_of_the_result_taken(tmp_path):
    seed = RunResult.read(RUNS[0]).seeds[1]
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
    )
    files.write_json(tmp_path / "result.json", record.to_json())
    assert SeedRecord.read(tmp_path / "result.json") == record
    assert record.result() == seed
