"""The converting script: each number of an earlier CSV is in a task file, and damage is refused."""

import convert_study
import pandas as pd
import pytest
from made_study import Counted, counted_experiment, study_of

from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.request import read
from bnrecon.reproduction.task_store import TaskResult, task_path

ROWS = """\
largest error,n,why not,setting,piece,commit,machine,seconds_in_all
0.30000000000000004,1,,1,first,abc,cpu (1 threads),1.5
1e-300,2,no memory,1,first,abc,cpu (1 threads),1.5
,3,,10,second,def,cpu (2 threads),2.0
"""


@pytest.fixture
def made(tmp_path):
    """An experiment, and a CSV of it as earlier versions wrote them."""
    path = tmp_path / "part-smoke.csv"
    path.write_text(ROWS)
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    digests = {piece: convert_study.digest(group) for piece, group in rows.groupby("piece")}
    rows.assign(digest=rows["piece"].map(digests)).to_csv(path, index=False)
    counted = Counted()
    return counted_experiment(counted, "first", "second", "third"), path, counted


def convert(made):
    part, path, _ = made
    return convert_study.convert(part, "part", "smoke", path, path.parent)


def test_every_number_is_in_a_task_file(made):
    assert convert(made) == "2 tasks, 5 equal numbers, 1 tasks missing"
    part, path, _ = made
    first, second, _ = (
        task_path(path.parent, "part", "smoke", task) for task in part.tasks("smoke", ())
    )
    stored = TaskResult.read(first)
    assert (stored.task, stored.commit, stored.machine, stored.seconds) == (
        "first",
        "abc",
        "cpu (1 threads)",
        1.5,
    )
    assert stored.rows[0] == {
        "largest_error": 0.1 + 0.2,
        "n": 1,
        "why_not": None,
        "setting": "1",  # a word, though it looks like a number
    }
    assert stored.rows[1]["why_not"] == "no memory"
    assert TaskResult.read(second).rows[0]["largest_error"] is None


def test_what_was_converted_is_not_computed_again(made):
    part, path, counted = made
    request = read("paper", ["scale=smoke", f"outputs={path.parent}"])
    request.folder.mkdir(parents=True)
    convert_study.convert(part, "part", "smoke", path, request.folder)
    run_study(study_of(part=part), request)
    assert counted.calls == ["third"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1e-300", "1e-301", "the rows of 'first' are not those that were written"),
        ("piece", "task", "not of the earlier version"),
    ],
)
def test_a_damaged_or_other_csv_is_refused(made, old, new, message):
    _, path, _ = made
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        convert(made)
    assert not (path.parent / "tasks").exists()


def test_a_piece_that_is_no_task_is_refused(made):
    _, path, counted = made
    part = counted_experiment(counted, "first")
    with pytest.raises(ValueError, match="'second' is no task of part"):
        convert_study.convert(part, "part", "smoke", path, path.parent)
