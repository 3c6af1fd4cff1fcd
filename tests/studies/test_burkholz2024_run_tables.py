"""Tables of runs: commands, summaries of numbers, and grids."""

import dataclasses
import shlex

import pytest

from bnrecon.config import composition
from bnrecon.reporting import tables
from bnrecon.reporting.result import Predictions
from bnrecon.reporting.statistics import Interval, mcnemar
from bnrecon.reproduction import engine, request
from bnrecon.reproduction.study import read_study
from bnrecon.reproduction.work import RunWork
from bnrecon.run import main_job
from bnrecon.run.naming import run_folder
from bnrecon.studies.burkholz2024.run_tables.grids import overview
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Row, RowWork
from bnrecon.studies.burkholz2024.run_tables.row_numbers import (
    at_limit,
    numbers,
    summarize,
)
from bnrecon.studies.burkholz2024.run_tables.verdicts import Reported

DIGITS = ("scale=smoke", "target.groups=[1]", "features=id_cond", "seeds=[0,1]")


def cell_of(row):
    config = composition.compose(row.overrides)
    return Cell(row, config, run_folder(config), None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("made")
    row = Row({"target": "digits"}, (*DIGITS, f"outputs={outputs}"), Reported(94.1, 94.0, 0.1))
    work = RowWork.of("table0", row)
    main_job.run(work.config)
    return work.cell()


def test_unfinished_row_shows_its_command():
    printed = Reported.printed(93.66, "94.0 ± 0.1")
    labels = {"target": "tanh", "target width": "64"}
    cell = cell_of(Row(labels, ("target=vgg18", "seeds=[0,1]"), printed))
    line = numbers([cell]).iloc[0]
    assert [name for name in line.index if "width" in name] == ["target width"]
    assert line["verdict: against the target"] == "not run"
    assert line["command"] == "bnrecon run target=vgg18 'seeds=[0,1]'"
    assert line["reported: rebuilt"] == Interval(94.0, 0.1, 3)
    assert summarize([cell])["reported: rebuilt"][0] == "94.0 ± 0.1"


def test_commands_name_no_local_folder():
    local = ("data.root=/home/me/my data", "outputs=/tmp/mine", "targets=/tmp/t", "device=cpu")
    cell = cell_of(Row({}, ("target=vgg18", *local)))
    assert cell.command == "bnrecon run target=vgg18"


def test_command_of_a_finished_row_reproduces_it(finished, tmp_path, succeed):
    words = shlex.split(finished.command)
    assert words[:2] == ["bnrecon", "run"]
    folders = {"targets": finished.config.outputs + "/targets", "outputs": tmp_path}
    overrides = [
        f"{name}={folders[name]}" if (name := word.partition("=")[0]) in folders else word
        for word in words[1:]
    ]
    succeed(*overrides)
    config = composition.compose(overrides[1:])
    again = RunWork("", {}, (), config).result()
    assert again.target.folder == finished.result.target.folder
    assert again.accuracies == finished.result.accuracies
    assert [layer.relative_error for layer in again.layers] == [
        layer.relative_error for layer in finished.result.layers
    ]


def with_predictions(cell, *counts):
    """The cell with other predictions, by seed."""
    seeds = tuple(
        dataclasses.replace(seed, predictions=Predictions(*count))
        for seed, count in zip(cell.result.seeds, counts, strict=True)
    )
    return dataclasses.replace(cell, result=dataclasses.replace(cell.result, seeds=seeds))


def test_changed_predictions_are_summed_over_seeds_and_tested_by_seed(finished):
    cell = with_predictions(finished, (100, 12, 9, 1), (100, 3, 1, 1))
    line = numbers([cell]).iloc[0]
    assert line["changed predictions"] == 15
    assert line["of images"] == 200
    assert line["changed predictions by seed"] == "12, 3"
    assert (line["only target right"], line["only rebuilt right"]) == (10, 2)
    assert line["McNemar p, smallest"] == mcnemar(9, 1) < mcnemar(1, 1)
    assert (line["seeds"], line["seeds counted"], line["McNemar tests"]) == (2, 2, 2)
    assert line["smallest reserve"] is None  # all images went through the real source
    headings = [tables.snake_case(name) for name in line.index]
    assert {"mcnemar_p_smallest", "verdict_against_the_paper"} <= set(headings)
    assert not [name for name in headings if "_s_" in name]
    text = summarize([cell]).iloc[0]
    assert text["target"] == "digits"
    assert text["changed predictions"] == "15 of 200"
    assert text["McNemar p"] == f"{mcnemar(9, 1):.2g} (smallest of 2)"


def test_row_shows_the_smallest_reserve_of_the_seeds(finished):
    cell = with_predictions(finished, (100, 0, 0, 0, 64, 3.5), (100, 0, 0, 0, 64, 1.5))
    for frame in (numbers([cell]), summarize([cell])):
        assert frame.iloc[0]["smallest reserve"] == 1.5
        assert frame.iloc[0]["verdict: against the target"] == "identical where tested"
    cell = with_predictions(finished, (100, 0, 0, 0, 100), (100, 0, 0, 0, 64, 3.5))
    line = numbers([cell]).iloc[0]
    assert line["smallest reserve"] == 3.5
    assert line["verdict: against the target"] == "identical predictions"


def test_sums_cover_counted_seeds_and_say_how_many(finished):
    cell = with_predictions(finished, (100, 12, 9, 1), (100, 3, 1, 1))
    first, second = cell.result.seeds
    seeds = (first, dataclasses.replace(second, predictions=None))
    cell = dataclasses.replace(cell, result=dataclasses.replace(cell.result, seeds=seeds))
    line = numbers([cell]).iloc[0]
    assert (line["changed predictions"], line["of images"]) == (12, 100)
    assert (line["seeds"], line["seeds counted"], line["McNemar tests"]) == (2, 1, 1)
    assert line["changed predictions by seed"] == "12, not counted"
    told = "12 of 100 (1 of 2 seeds counted)"
    assert summarize([cell]).iloc[0]["changed predictions"] == told
    labels = {"target": "t", "features": "f", "target width": "1", "rebuilt by": "w"}
    row = dataclasses.replace(cell.row, labels=labels)
    line = overview([dataclasses.replace(cell, row=row)]).iloc[0]
    assert line["changed predictions"] == told


def test_layers_at_the_limit_of_lbfgs_are_counted(finished):
    assert at_limit(finished.result) is None
    seed, layers = finished.result.seeds[0], []
    for name, flag in (("lu_lbfgs", True), ("lu_lbfgs", False), ("matrix_free", True)):
        solution = dataclasses.replace(seed.layers[0].solution, solver=name, at_limit=flag)
        layers.append(dataclasses.replace(seed.layers[0], solution=solution))
    seeds = (dataclasses.replace(seed, layers=tuple(layers)),)
    assert at_limit(dataclasses.replace(finished.result, seeds=seeds)) == 1


@pytest.mark.parametrize(
    ("option", "compared"),
    [
        ("train.epochs=1", False),
        ("data.train_limit=500", False),
        ("target.width=64", True),
        ("solver.tolerance=1e-6", True),
    ],
)
def test_other_settings_are_not_compared_with_print(option, compared, tmp_path):
    words = ["table1", "scale=paper", option, f"outputs={tmp_path}"]
    (part,) = engine.plan(read_study("burkholz2024"), request.read("burkholz2024", words))
    assert {work.row.reported is not None for work in part.work} == {compared}
    assert not part.part.decide_claims(part.work)  # nothing is finished
