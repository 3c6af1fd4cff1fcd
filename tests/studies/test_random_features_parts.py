"""Random features for normalization layers: intervals, and tasks shared by processes."""

import math

import numpy as np
import pandas as pd
import pytest
from processes import finish, start

from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.task_store import TaskResult, task_path
from bnrecon.studies import registry
from bnrecon.studies.random_features import averages, conditioning

STUDY = registry.find("random_features")


def test_intervals_by_value():
    rows = pd.DataFrame({"x": [1, 1, 1, 2], "y": [1.0, 10.0, 100.0, 7.0]})
    intervals = averages.intervals_by(rows, "x", "y")
    expected = mean_interval([1.0, 10.0, 100.0])
    assert tuple(intervals.loc[1]) == (expected.mean, expected.half_width)
    assert intervals.loc[2, "mean"] == 7
    assert math.isnan(intervals.loc[2, "half_width"])  # one value has no interval


@pytest.mark.process
def test_processes_share_tasks_and_one_may_die(tmp_path, succeed):
    """Three processes: one is killed as soon as it has begun; this one is the third."""
    words = ("random_features", "conditioning", "scale=smoke", f"outputs={tmp_path}")
    first, second = (start(*words, command="study") for _ in range(2))
    first.stderr.readline()  # it has begun
    first.kill()
    first.communicate()
    succeed("study", *words)
    code, _, error = finish(second)
    assert code == 0, error
    folder = tmp_path / "studies" / "random_features"
    rows = pd.read_csv(folder / "conditioning-smoke.csv")
    tasks = {task.name: task for task in conditioning.PART.tasks("smoke", ())}
    assert sorted(rows["task"].unique()) == sorted(tasks)
    assert not rows.duplicated(["task", "seed", "solver"]).any()
    one = tasks["5, 10, orthogonal"]
    stored = TaskResult.read(task_path(folder, "conditioning", "smoke", one))
    computed = one.compute()["rmse"]
    np.testing.assert_allclose([row["rmse"] for row in stored.rows], computed, rtol=1e-15)
