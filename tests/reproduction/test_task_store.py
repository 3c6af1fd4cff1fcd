"""Task files: rows round-trip, damage is detected, and keys depend on what matters."""

import json
import math

import pandas as pd
import pytest

from bnrecon.reproduction.parts import Task
from bnrecon.reproduction.task_store import TaskResult, concatenate, task_key, task_path
from bnrecon.runtime import files
from bnrecon.runtime.files import Damaged

ROWS = (
    {"n": 1, "error": 0.1 + 0.2, "word": "a", "converged": True},
    {"n": 2, "error": math.inf, "word": None, "converged": False},
    {"n": 3, "error": math.nan, "word": "1e3", "converged": True},
)


@pytest.fixture
def stored(tmp_path):
    result = TaskResult("matching", "smoke", "first", "0123456789", ROWS, "abc", "cpu", 1.5)
    path = tmp_path / "first.json"
    result.write(path)
    return path


def test_rows_round_trip_exactly(stored):
    rows = TaskResult.read(stored).rows
    assert rows[:2] == ROWS[:2]
    assert rows[2] == ROWS[2] | {"error": None}
    assert [type(cell) for cell in rows[0].values()] == [int, float, str, bool]


def test_file_has_the_documented_keys(stored):
    content = json.loads(stored.read_text(encoding="utf-8"))
    agreed = "experiment scale task key commit machine seconds rows digest"
    assert set(content) == set(agreed.split())


def test_damage_is_detected(stored):
    text = stored.read_text(encoding="utf-8")
    stored.write_text(text.replace("0.30000000000000004", "0.3000000000000009"), encoding="utf-8")
    with pytest.raises(Damaged, match=r"first\.json"):
        TaskResult.read(stored)


@pytest.mark.parametrize("rows", [[{"n": [1]}], [None], None, []], ids=str)
def test_impossible_rows_are_damage(stored, rows):
    task = {} if rows == [] else files.read_json(stored)  # rows alone are another type of file
    files.write_json(stored, task | {"rows": rows})
    with pytest.raises(Damaged, match=r"first\.json was written by another version .*\)$"):
        TaskResult.read(stored)


def test_rows_of_all_tasks_make_one_frame(stored):
    one = TaskResult.read(stored)
    other = TaskResult("matching", "smoke", "other", "1", ({"n": 4, "more": 7},), "", "", 0.0)
    frame = concatenate([one, other])
    assert list(frame["n"]) == [1, 2, 3, 4]
    assert frame["n"].dtype.kind == "i"
    assert list(frame["word"]) == ["a", "", "1e3", ""]  # missing words are empty
    assert frame["more"].dtype.kind == "f"
    assert pd.isna(frame["error"][2])
    assert frame["error"][1] == math.inf


def key(*options, name="first", arguments=None):
    return task_key("part", Task(name, dict, arguments or {"seed": 0}, options))


def test_options_count_if_they_change_results():
    assert key() == key()
    assert key("target.width=8") != key()
    assert key("train.seed=1") != key("train.seed=2") != key()
    for same in ("data.root=/images", "device=cpu", "outputs=/elsewhere", "threads=1"):
        assert key(same) == key(), same
    assert key("train.lr=0.1") == key("train.lr=0.10")


def test_names_and_arguments_count():
    assert key(name="second") != key()
    assert key(arguments={"seed": 1}) != key()
    task = Task("first", dict, {"seed": 0})
    assert task_key("part", task) != task_key("other", task)
    assert task_key("part", task) != key()


def test_file_is_named_after_its_task(tmp_path):
    path = task_path(tmp_path, "thresholds", "smoke", Task("k_t=1 (Δk=0), L = 2", dict))
    assert path.parent == tmp_path / "tasks" / "thresholds-smoke"
    assert path.name.startswith("k-t-1-k-0-l-2-")
    assert task_path(tmp_path, "thresholds", "smoke", Task("²", dict)).name[0] != "-"
