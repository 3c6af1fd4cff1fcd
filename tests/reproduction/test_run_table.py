"""Tables of runs: commands can be pasted, text is made of numbers, grids are the paper's."""

import csv
import dataclasses
import io
import shlex

import pytest

from bnrecon.config import composition
from bnrecon.reporting import tables
from bnrecon.reporting.result import Predictions
from bnrecon.reporting.statistics import Interval, mcnemar
from bnrecon.reproduction.grids import grids, overview
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.row_numbers import FORMATS, at_limit, numbers, summarize
from bnrecon.reproduction.run_table import Cell, Grid, Reported, Row, list_rows
from bnrecon.reproduction.work import RunWork
from bnrecon.run import main_job
from bnrecon.run.naming import run_folder

DIGITS = ("scale=smoke", "target.groups=[1]", "features=id_cond", "seeds=[0,1]")


def cell_of(row):
    config = composition.compose(row.overrides)
    return Cell(row, config, run_folder(config), None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("made")
    row = Row({"target": "digits"}, (*DIGITS, f"outputs={outputs}"), Reported(94.1, 94.0, 0.1))
    work = RunWork("table0", row, composition.compose(row.overrides))
    main_job.run(work.config)
    return work.cell()


def test_a_row_that_was_not_run_says_so_and_has_a_command():
    printed = Reported.printed(93.66, "94.0", "0.1")
    cell = cell_of(Row({"target": "tanh"}, ("target=vgg18", "seeds=[0,1]"), printed))
    line = numbers([cell], absolute=False).iloc[0]
    assert line["verdict: against the target"] == "not run"
    assert line["command"] == "bnrecon run target=vgg18 'seeds=[0,1]'"
    assert line["reported: rebuilt"] == Interval(94.0, 0.1, 3)
    assert summarize([cell], absolute=False)["reported: rebuilt"][0] == "94.0 ± 0.1"


def test_no_command_names_a_folder_of_this_machine():
    local = ("data.root=/home/me/my data", "outputs=/tmp/mine", "targets=/tmp/t", "device=cpu")
    cell = cell_of(Row({}, ("target=vgg18", *local)))
    assert command_of(cell) == "bnrecon run target=vgg18"


def test_the_command_of_a_finished_row_gives_the_same_digits(finished, tmp_path, command):
    words = shlex.split(command_of(finished))
    assert words[:2] == ["bnrecon", "run"]
    folders = {"targets": finished.config.outputs + "/targets", "outputs": tmp_path}
    given = [
        f"{name}={folders[name]}" if (name := word.partition("=")[0]) in folders else word
        for word in words[1:]
    ]
    code, _, error = command(*given)
    assert code == 0, error
    config = composition.compose(given[1:])
    again = RunWork("", finished.row, config).result()
    assert again.target.folder == finished.result.target.folder
    assert again.accuracies == finished.result.accuracies
    assert [layer.relative_error for layer in again.layers] == [
        layer.relative_error for layer in finished.result.layers
    ]


def test_numbers_stay_numbers_until_they_are_printed(finished):
    frame = numbers([finished], absolute=False)
    line = frame.iloc[0]
    assert line["accuracy: rebuilt"] == finished.result.accuracy
    assert line["target"] == "digits"  # the row's label
    assert line["layers not converged"] == 0
    assert line["test images"] == finished.result.target.images
    text = tables.csv(frame)
    (found,) = csv.DictReader(io.StringIO(text))
    assert float(found["accuracy_rebuilt_mean"]) == finished.result.accuracy.mean
    assert found["accuracy_rebuilt_n"] == "2"
    assert found["run"] == finished.folder.name
    page = tables.markdown(summarize([finished], absolute=False), FORMATS)
    assert f"{finished.result.target.accuracy:.2f}" in page
    assert "0 of 4" in page


def test_accuracies_compare_at_the_papers_scale_only(finished):
    heading = "rebuilt, reproduced minus reported"
    assert heading not in numbers([finished], absolute=False)
    difference = finished.result.accuracy.mean - 94.0
    assert numbers([finished], absolute=True)[heading][0] == pytest.approx(difference)


def test_listed_rows_carry_the_users_options_last():
    rows = list_rows("groups", ("target=vgg18",), {"smoke": ("scale=smoke",)}, {"one": ("a=1",)})
    (row,) = rows("smoke", ["a=2"])
    assert row.overrides == ("target=vgg18", "a=1", "scale=smoke", "a=2")
    assert row.labels == {"groups": "one"}


def with_predictions(cell, *counts):
    """The cell with other predictions of its seeds."""
    seeds = tuple(
        dataclasses.replace(seed, predictions=Predictions(*found))
        for seed, found in zip(cell.result.seeds, counts, strict=True)
    )
    return dataclasses.replace(cell, result=dataclasses.replace(cell.result, seeds=seeds))


def test_images_predicted_otherwise_are_counted_over_seeds_and_tested_by_seed(finished):
    cell = with_predictions(finished, (100, 12, 9, 1), (100, 3, 1, 1))
    line = numbers([cell], absolute=False).iloc[0]
    assert line["images predicted otherwise"] == 15
    assert line["of images"] == 200
    assert line["predicted otherwise by seed"] == "12, 3"
    assert (line["only target right"], line["only rebuilt right"]) == (10, 2)
    assert line["smallest p of McNemar's tests"] == mcnemar(9, 1) < mcnemar(1, 1)
    text = summarize([cell], absolute=False).iloc[0]
    assert text["target"] == "digits"
    assert text["images predicted otherwise"] == "15 of 200"
    assert text["McNemar's p"] == f"{mcnemar(9, 1):.2g} (smallest of 2)"


def test_results_without_stored_predictions_have_no_such_columns(finished):
    seeds = tuple(dataclasses.replace(seed, predictions=None) for seed in finished.result.seeds)
    old = dataclasses.replace(finished, result=dataclasses.replace(finished.result, seeds=seeds))
    assert "images predicted otherwise" not in numbers([old], absolute=False)
    assert numbers([old], absolute=False).iloc[0]["verdict: against the target"] != "not run"


def test_widths_redrawn_features_and_assembled_errors_stand_in_the_row(finished):
    line = numbers([finished], absolute=False).iloc[0]
    layers = finished.result.layers
    ratios = [layer.width / layer.equations for layer in layers]
    assert (line["c1/n, smallest"], line["c1/n, largest"]) == (min(ratios), max(ratios))
    assert line["max. error as assembled"] == max(layer.assembled_error for layer in layers)
    assert line["features redrawn"] == sum(layer.redrawn for layer in layers)
    assert line["layers at LBFGS's limit"] is None  # solver=auto has no LBFGS


def test_layers_that_lbfgs_left_at_its_limit_are_counted(finished):
    seed = finished.result.seeds[0]
    layers = tuple(
        dataclasses.replace(
            layer,
            solution=dataclasses.replace(layer.solution, solver="lu_lbfgs", at_limit=number < 1),
        )
        for number, layer in enumerate(seed.layers)
    )
    seeds = (dataclasses.replace(seed, layers=layers),)
    assert at_limit(dataclasses.replace(finished.result, seeds=seeds)) == 1 < len(layers)
    assert at_limit(finished.result) is None


GRID = Grid("target", "features", ("solver",))


def test_a_grid_has_a_cell_for_each_run_and_says_which_are_not_run(finished):
    def placed(cell, target, features, reported, possible=True):
        labels = {"target": target, "features": features, "solver": "exact"}
        row = dataclasses.replace(cell.row, labels=labels, reported=reported, possible=possible)
        return dataclasses.replace(cell, row=row)

    equal = dataclasses.replace(
        finished,
        result=dataclasses.replace(
            finished.result,
            seeds=tuple(
                dataclasses.replace(
                    seed,
                    accuracy=finished.result.target.accuracy,
                    predictions=Predictions(128, 0, 0, 0),
                )
                for seed in finished.result.seeds
            ),
        ),
    )
    waiting = dataclasses.replace(finished, result=None)
    cells = [
        placed(equal, "relu", "a", Reported.printed(94.12, "94.1", "0.08")),
        placed(equal, "relu", "b", Reported.printed(94.12, "93.12", "0.1")),
        placed(waiting, "tanh", "a", Reported.printed(93.66, "93.5", "0.1")),
        placed(equal, "sigmoid", "a", Reported.printed(67.42, "94.1", "0.08"), possible=False),
    ]
    (frame,) = grids(cells, GRID).values()
    assert list(frame["target"]) == ["relu", "tanh", "sigmoid"]
    assert list(frame["a"]) == [
        "0.00 ± 0.00 / 0.02 ± 0.08 =",
        "not run / 0.16 ± 0.1",
        "0.00 ± 0.00 / impossible",
    ]
    assert list(frame["b"]) == ["0.00 ± 0.00 / 1.00 ± 0.1 ≠", "", ""]
    line = overview(cells, GRID).iloc[0]
    assert line["cells"] == "3 of 4"
    counted = "1 loss reproduced, 1 different (smaller), 1 impossible in print"
    assert line["against the paper's loss"] == counted
    steps = max(layer.iterations for layer in finished.result.layers)
    assert line.get("most iterations", 0) == steps
    assert line["McNemar's p"] == "1 (smallest of 6)"  # three runs of two seeds
    assert line["images predicted otherwise"].startswith("0 of ")
