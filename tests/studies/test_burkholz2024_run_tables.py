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
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.reproduction.work import RunWork
from bnrecon.run import main_job
from bnrecon.run.naming import run_folder
from bnrecon.studies import registry
from bnrecon.studies.burkholz2024.run_tables.grids import as_printed, grids, overview
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Grid, Row, RowWork
from bnrecon.studies.burkholz2024.run_tables.row_numbers import (
    FORMATS,
    at_limit,
    numbers,
    summarize,
)
from bnrecon.studies.burkholz2024.run_tables.run_table import list_rows
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


def test_a_row_that_was_not_run_says_so_and_has_a_command():
    printed = Reported.printed(93.66, "94.0 ± 0.1")
    labels = {"target": "tanh", "target width": "64"}
    cell = cell_of(Row(labels, ("target=vgg18", "seeds=[0,1]"), printed))
    line = numbers([cell]).iloc[0]
    assert [name for name in line.index if "width" in name] == ["target width"]
    assert line["verdict: against the target"] == "not run"
    assert line["command"] == "bnrecon run target=vgg18 'seeds=[0,1]'"
    assert line["reported: rebuilt"] == Interval(94.0, 0.1, 3)
    assert summarize([cell])["reported: rebuilt"][0] == "94.0 ± 0.1"


def test_no_command_names_a_folder_of_this_machine():
    local = ("data.root=/home/me/my data", "outputs=/tmp/mine", "targets=/tmp/t", "device=cpu")
    cell = cell_of(Row({}, ("target=vgg18", *local)))
    assert cell.command == "bnrecon run target=vgg18"


def test_the_command_of_a_finished_row_gives_the_same_digits(finished, tmp_path, command):
    words = shlex.split(finished.command)
    assert words[:2] == ["bnrecon", "run"]
    folders = {"targets": finished.config.outputs + "/targets", "outputs": tmp_path}
    given = [
        f"{name}={folders[name]}" if (name := word.partition("=")[0]) in folders else word
        for word in words[1:]
    ]
    code, _, error = command(*given)
    assert code == 0, error
    config = composition.compose(given[1:])
    again = RunWork("", {}, (), config).result()
    assert again.target.folder == finished.result.target.folder
    assert again.accuracies == finished.result.accuracies
    assert [layer.relative_error for layer in again.layers] == [
        layer.relative_error for layer in finished.result.layers
    ]


def test_numbers_stay_numbers_until_they_are_printed(finished):
    frame = numbers([finished])
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
    page = tables.markdown(summarize([finished]), FORMATS)
    assert f"{finished.result.target.accuracy:.2f}" in page
    assert "0 of 4" in page


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
    line = numbers([cell]).iloc[0]
    assert line["images predicted otherwise"] == 15
    assert line["of images"] == 200
    assert line["predicted otherwise by seed"] == "12, 3"
    assert (line["only target right"], line["only rebuilt right"]) == (10, 2)
    assert line["McNemar p, smallest"] == mcnemar(9, 1) < mcnemar(1, 1)
    assert (line["seeds"], line["seeds counted"], line["McNemar tests"]) == (2, 2, 2)
    assert line["smallest reserve"] is None  # all images went through the real source
    headings = [tables.snake_case(name) for name in line.index]
    assert {"mcnemar_p_smallest", "verdict_against_the_paper"} <= set(headings)
    assert not [name for name in headings if "_s_" in name]
    text = summarize([cell]).iloc[0]
    assert text["target"] == "digits"
    assert text["images predicted otherwise"] == "15 of 200"
    assert text["McNemar p"] == f"{mcnemar(9, 1):.2g} (smallest of 2)"


def test_the_smallest_reserve_of_the_seeds_stands_in_the_row(finished):
    cell = with_predictions(finished, (100, 0, 0, 0, 64, 3.5), (100, 0, 0, 0, 64, 1.5))
    for frame in (numbers([cell]), summarize([cell])):
        assert frame.iloc[0]["smallest reserve"] == 1.5
        assert frame.iloc[0]["verdict: against the target"] == "identical where tested"
    cell = with_predictions(finished, (100, 0, 0, 0, 100), (100, 0, 0, 0, 64, 3.5))
    line = numbers([cell]).iloc[0]
    assert line["smallest reserve"] == 3.5
    assert line["verdict: against the target"] == "identical predictions"


def test_page_and_csv_sum_over_the_seeds_that_were_counted_and_say_how_many(finished):
    cell = with_predictions(finished, (100, 12, 9, 1), (100, 3, 1, 1))
    first, second = cell.result.seeds
    seeds = (first, dataclasses.replace(second, predictions=None))
    cell = dataclasses.replace(cell, result=dataclasses.replace(cell.result, seeds=seeds))
    line = numbers([cell]).iloc[0]
    assert (line["images predicted otherwise"], line["of images"]) == (12, 100)
    assert (line["seeds"], line["seeds counted"], line["McNemar tests"]) == (2, 1, 1)
    assert line["predicted otherwise by seed"] == "12, not counted"
    told = "12 of 100 (1 of 2 seeds counted)"
    assert summarize([cell]).iloc[0]["images predicted otherwise"] == told
    grouped = dataclasses.replace(
        cell, row=dataclasses.replace(cell.row, labels={"target": "t", "features": "f", "by": "1"})
    )
    line = overview([grouped], Grid("target", "features", ("by",))).iloc[0]
    assert line["images predicted otherwise"] == told


def test_results_without_stored_predictions_have_no_such_columns(finished):
    seeds = tuple(dataclasses.replace(seed, predictions=None) for seed in finished.result.seeds)
    old = dataclasses.replace(finished, result=dataclasses.replace(finished.result, seeds=seeds))
    frame = numbers([old])
    assert "images predicted otherwise" not in frame
    assert (frame["seeds"][0], frame["seeds counted"][0]) == (2, 0)
    shown = summarize([old])
    assert shown["images predicted otherwise"][0] == "not counted"
    assert numbers([old]).iloc[0]["verdict: against the target"] != "not run"


def test_widths_redrawn_features_and_assembled_errors_stand_in_the_row(finished):
    line = numbers([finished]).iloc[0]
    layers = finished.result.layers
    ratios = [layer.width / layer.equations for layer in layers]
    assert (line["c1/n, smallest"], line["c1/n, largest"]) == (min(ratios), max(ratios))
    assert line["max. error as assembled"] == max(layer.assembled_error for layer in layers)
    assert line["features redrawn"] == sum(layer.redrawn for layer in layers)
    assert line["layers at the LBFGS limit"] is None  # solver=auto has no LBFGS


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


@pytest.mark.parametrize(("limit", "expected"), [(None, 2), (150, 3), (3000, 0)])
def test_in_older_results_lbfgs_is_at_its_limit_where_its_iterations_are(finished, limit, expected):
    """They hold no flag; 2,000 iterations are the limit where a run names no other."""
    seed = finished.result.seeds[0]
    solvers = [("lbfgs", 2000), ("lu_lbfgs", 2000), ("lu_lbfgs", 150), ("matrix_free", 2000)]
    layers = tuple(
        dataclasses.replace(
            seed.layers[0],
            solution=dataclasses.replace(
                seed.layers[0].solution, solver=name, iterations=iterations, at_limit=False
            ),
        )
        for name, iterations in solvers
    )
    config = finished.result.config
    config = {**config, "solver": {**config["solver"], "max_iterations": limit}}
    seeds = (dataclasses.replace(seed, layers=layers),)
    assert at_limit(dataclasses.replace(finished.result, seeds=seeds, config=config)) == expected


GRID = Grid("target", "features", ("target width", "solver"))


def test_a_grid_has_a_cell_for_each_run_and_says_which_are_not_run(finished):
    def placed(cell, target, features, reported, possible=True):
        labels = {"target": target, "features": features}
        labels |= {"target width": "8", "solver": "auto, 1.5 n"}
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
        placed(equal, "relu", "a", Reported.printed(94.12, "94.1 ± 0.08")),
        placed(equal, "relu", "b", Reported.printed(94.12, "93.12 ± 0.1")),
        placed(waiting, "tanh", "a", Reported.printed(93.66, "93.5 ± 0.1")),
        placed(equal, "sigmoid", "a", Reported.printed(67.42, "94.1 ± 0.08"), possible=False),
    ]
    ((title, frame),) = grids(cells, GRID).items()
    assert title == "target width 8, auto, 1.5 n"
    assert list(frame["target"]) == ["relu", "tanh", "sigmoid"]
    assert list(frame["a"]) == [
        "0.00 ± 0.00 / 0.02 ± 0.08 (0)",
        "not run / 0.16 ± 0.1",
        "0.00 ± 0.00 / impossible",
    ]
    assert list(frame["b"]) == ["0.00 ± 0.00 / 1.00 ± 0.1 ≠", "", ""]
    line = overview(cells, GRID).iloc[0]
    assert line["cells"] == "3 of 4"
    counted = "1 no more than reported; 1 different (smaller); 1 impossible in print"
    assert line["against the paper"] == counted
    steps = max(layer.iterations for layer in finished.result.layers)
    assert line.get("most iterations", 0) == steps
    told = "1 (smallest of 6; 0 below 0.05, by chance 0)"  # three runs of two seeds
    assert line["McNemar p"] == told
    assert line["images predicted otherwise"].startswith("0 of ")


def test_the_papers_table_lies_beside_ours_at_its_own_setting(shipped_outputs):
    study = registry.find("burkholz2024")
    (planned,) = engine.plan(study, read(study.name, ["table2", f"outputs={shipped_outputs}"]))
    cells = [work.cell() for work in planned.work]
    printed = as_printed(cells, planned.part.grid, "rebuilt by")
    frame = printed["In print / here: rebuilt by bnrecon, 1.5 n features"].set_index("")
    assert list(frame.index) == ["relu", "leaky_relu", "tanh", "sigmoid"]
    assert list(frame.columns) == [
        *("target", "he_normal", "he_uniform", "orthogonal", "sparse_he_normal"),
    ]
    shown = {
        cell.row.labels["target"].partition(",")[0]: cell.result
        for cell in cells
        if cell.config.scale == "paper" and cell.config.features.name == "he_normal" and cell.result
    }
    assert set(shown) == set(frame.index)
    for name, result in shown.items():
        assert frame["target"][name].endswith(f"/ {result.target.accuracy:.2f}")
        assert frame["he_normal"][name].endswith(f"/ {result.accuracy}")
    assert frame["he_normal"]["sigmoid"].startswith("(94.1 ± 0.08) / ")  # impossible: erratum 5
