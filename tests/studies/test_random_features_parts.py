"""Random features for normalization layers: every part, from its tasks to its table and figure."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from places import OUTPUTS
from processes import finish, start, wait_until
from scipy import stats

from bnrecon.reporting import figures, tables
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.study import SCALES
from bnrecon.reproduction.task_store import TaskResult, concatenate, task_path
from bnrecon.runtime.errors import UserError
from bnrecon.studies import random_features, registry
from bnrecon.studies.random_features import averages, conditioned, conditioning

STUDY = registry.find("random_features")
SHIPPED = OUTPUTS / "random_features"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The whole study at smoke scale: its folder, and what the command printed."""
    outputs = tmp_path_factory.mktemp("outputs")
    study = start("random_features", "scale=smoke", f"outputs={outputs}", command="study")
    code, out, err = finish(study, timeout=600)
    assert code == 0, err
    return outputs / "studies" / "random_features", out


def test_every_module_that_binds_a_part_is_listed():
    folder = Path(random_features.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "\nPART = " in path.read_text()}
    assert modules == set(STUDY.parts)


@pytest.mark.parametrize("part", STUDY.parts)
@pytest.mark.parametrize("scale", SCALES)
def test_tasks_have_names_and_files_of_their_own_and_json_arguments(part, scale):
    tasks = STUDY.part(part).tasks(scale, ())
    assert len({task.name for task in tasks}) == len(tasks)
    assert len({task_path(Path(), part, scale, task) for task in tasks}) == len(tasks)
    for task in tasks:
        assert json.loads(json.dumps(task.arguments)) == task.arguments
        module = importlib.import_module(task.function.__module__)
        assert getattr(module, task.function.__name__) is task.function  # nothing captured


@pytest.mark.parametrize("part", STUDY.parts)
def test_every_part_runs_at_smoke_scale(finished, part):
    folder, printed = finished
    experiment = STUDY.part(part)
    rows = pd.read_csv(folder / f"{part}-smoke.csv")
    assert set(rows["task"].astype(str)) == {task.name for task in experiment.tasks("smoke", ())}
    assert list(rows.columns) == [tables.snake_case(name) for name in rows.columns]
    page = (folder / f"{part}-smoke.md").read_text(encoding="utf-8")
    assert experiment.title in page
    assert page.strip() in printed
    for kind in ("png", "svg"):
        drawn = (folder / f"{part}-smoke.{kind}").exists()
        assert drawn == (experiment.draw is not None)


@pytest.mark.parametrize(
    "part", [name for name in STUDY.parts if isinstance(STUDY.part(name), Experiment)]
)
def test_a_page_can_be_made_of_any_single_task(finished, part):
    folder, _ = finished
    experiment = STUDY.part(part)
    for task in experiment.tasks("smoke", ()):
        rows = concatenate([TaskResult.read(task_path(folder, part, "smoke", task))])
        assert len(experiment.summary(rows)) > 0
        assert experiment.caption_for(rows)
        for claim in experiment.claims(rows) if experiment.claims else ():
            assert "nan" not in claim.evidence, (task.name, claim)
        if experiment.draw is not None:
            with figures.style():
                assert experiment.draw(rows).axes


@pytest.mark.parametrize("part", STUDY.parts)
def test_shipped_rows_have_the_columns_of_new_ones(finished, part):
    folder, _ = finished
    if not (SHIPPED / f"{part}-laptop.csv").exists():  # then no task may ship either
        assert not list((SHIPPED / "tasks" / f"{part}-laptop").glob("*.json"))
        return
    new, shipped = (
        pd.read_csv(file, nrows=1)
        for file in (folder / f"{part}-smoke.csv", SHIPPED / f"{part}-laptop.csv")
    )
    assert sorted(new.columns) == sorted(shipped.columns)


@pytest.mark.parametrize("part", STUDY.parts)
def test_shipped_tasks_are_the_studys_and_the_shipped_table_is_theirs(part):
    """No stale file; a part may be finished in part, and one without any result says so."""
    experiment = STUDY.part(part)
    tasks = {
        task_path(SHIPPED, part, "laptop", task): task for task in experiment.tasks("laptop", ())
    }
    shipped = set((SHIPPED / "tasks" / f"{part}-laptop").glob("*.json"))
    assert shipped <= set(tasks)
    if not shipped:
        assert not list(SHIPPED.glob(f"{part}-laptop.*"))
        return
    page = (SHIPPED / f"{part}-laptop.md").read_text(encoding="utf-8")
    stored = [TaskResult.read(path) for path in tasks if path in shipped]
    assert {result.task for result in stored} == {tasks[path].name for path in shipped}
    rows = concatenate(stored)
    assert tables.markdown(experiment.summary(rows), experiment.formats) in page
    assert experiment.caption_for(rows) in page


def test_tables_and_figures_are_written_again_from_the_task_files(finished, command):
    folder, printed = finished
    drawn = {path: path.read_bytes() for path in folder.glob("*.svg")}
    words = ("random_features", "scale=smoke", f"outputs={folder.parents[1]}")
    code, out, error = command("tables", *words)
    assert (code, out) == (0, printed), error
    assert {path: path.read_bytes() for path in folder.glob("*.svg")} == drawn
    (folder / "descent-smoke.png").unlink()
    few = ("descent", "minimum_width")
    assert [STUDY.part(part).draw is not None for part in few] == [True, False]
    code, out, error = command("figures", words[0], *few, *words[1:])
    assert code == 0, error
    assert [line.strip() for line in out.splitlines()] == [str(folder / "descent-smoke.png")]


def test_intervals_by_value():
    rows = pd.DataFrame({"x": [1, 1, 1, 2], "y": [1.0, 10.0, 100.0, 7.0]})
    found = averages.intervals_by(rows, "x", "y")
    expected = mean_interval([1.0, 10.0, 100.0])
    assert tuple(found.loc[1]) == (expected.mean, expected.half_width)
    assert found.loc[2, "mean"] == 7
    assert math.isnan(found.loc[2, "half_width"])  # one value has no interval


def test_intervals_of_unpaired_draws_are_those_of_the_textbook():
    """Welch's degrees of freedom by hand, and a slope from the normal equations."""
    left, right = [3.0, 5.0, 9.0, 4.0], [1.0, 2.0, 2.5]
    parts = [np.var(values, ddof=1) / len(values) for values in (left, right)]
    free = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    half = stats.t.ppf(0.975, free) * math.sqrt(sum(parts))
    middle = np.mean(left) - np.mean(right)
    assert averages.welch_interval(left, right) == pytest.approx((middle - half, middle + half))
    assert averages.welch_interval([1.0], right) == (-math.inf, math.inf)
    x, y = np.array([0.0, 1.0, 2.0, 2.0]), np.array([1.0, 2.0, 2.0, 4.0])
    design = np.stack([np.ones(4), x], 1)
    solution, (squares,), *_ = np.linalg.lstsq(design, y)
    error = math.sqrt(squares / 2 * np.linalg.inv(design.T @ design)[1, 1])
    found = averages.trend(list(x), list(y))
    expected = (solution[1], stats.t.ppf(0.975, 2) * error)
    assert (found.mean, found.half_width) == pytest.approx(expected)


def test_what_the_caption_of_table_1_says_is_computed_from_its_rows():
    both = conditioned.caption_numbers(pd.DataFrame({"setting": ["1", "5413", "1541601"]}))
    one = conditioned.caption_numbers(pd.DataFrame({"setting": ["1", "5413"]}))
    assert f"{conditioned.quantiles_apart([5413, 1541601]):.1g}" in both["differ"]
    assert "5,413" in both["differ"]
    assert one == {"differ": "", "at_other_rates": ""}


@pytest.mark.parametrize(
    ("part", "option"),
    [("conditioned", "target.condition=7"), ("sparse", "train.seed=7"), ("scales", "train.seed=7")],
)
def test_an_option_by_which_the_rows_differ_is_refused(part, option):
    with pytest.raises(UserError, match=option):
        STUDY.part(part).tasks("smoke", (option,))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("matching", "target.typo=7"), "typo"),
        (("conditioned", "target.typo=7"), "typo"),
        (("matching", "scale=smoke"), "scale= is given twice"),
        (("matching", "target.width=8"), "matching has no run that an option could change"),
        (("exact",), "exact"),
    ],
)
@pytest.mark.parametrize("name", ["study", "tables"])
def test_an_impossible_request_is_one_line(tmp_path, command, name, words, message):
    code, _, error = command(name, "random_features", *words, "scale=smoke", f"outputs={tmp_path}")
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.slow
def test_processes_share_the_tasks_and_one_may_die(tmp_path, command):
    """Three: one is killed as soon as it has begun; this one is the third."""
    words = ("random_features", "conditioning", "scale=smoke", f"outputs={tmp_path}")
    first, second = (start(*words, command="study") for _ in range(2))
    first.stderr.readline()  # it has begun
    first.kill()
    first.communicate()
    code, _, error = command("study", *words)
    assert code == 0, error
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


@pytest.mark.slow
def test_jobs_share_a_study_and_end_with_the_command(tmp_path, command):
    """The command is killed once a task is done: its processes end too, and it can be resumed."""
    words = ("random_features", "conditioned", "scale=smoke", f"outputs={tmp_path}")
    process = start(*words, "jobs=2", command="study")
    folder = tmp_path / "studies" / "random_features" / "tasks" / "conditioned-smoke"
    assert wait_until(lambda: list(folder.glob("*.json")))
    others = psutil.Process(process.pid).children()
    assert len(others) >= 2
    process.kill()
    finish(process)
    assert wait_until(lambda: not any(other.is_running() for other in others))
    tasks = STUDY.part("conditioned").tasks("smoke", ())
    assert len(list(folder.glob("*.json"))) < len(tasks)
    code, _, error = command("study", *words)
    assert code == 0, error
    assert len(list(folder.glob("*.json"))) == len(tasks)
