"""Tables of runs: verdicts are about losses, commands can be pasted, text is made of numbers."""

import csv
import io
import shlex

import pytest

from bnrecon.config import composition
from bnrecon.reporting import tables
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.run_table import (
    FORMATS,
    Cell,
    Reported,
    Row,
    list_rows,
    numbers,
    summarize,
    verdict,
)
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


@pytest.mark.parametrize(
    ("mean", "half", "reported", "expected"),
    [
        (0.0, 0.0, Reported(94.12, 94.12, 0.07), "agrees"),
        (0.0, 0.0, Reported.printed(70.46, "70.1", "0.2"), "smaller loss than reported"),
        (0.0, 0.0, Reported.printed(94.12, "94.0", "0.1"), "agrees"),  # 94.0 may be 94.04
        (0.9, 0.1, Reported(70.46, 70.1, 0.2), "larger loss than reported"),
        (0.0, None, Reported(94.12, 94.1, 0.08), "one seed, no interval"),
    ],
)
def test_the_verdict_asks_whether_intervals_of_the_loss_meet(mean, half, reported, expected):
    assert verdict(Interval(mean, half, 3), reported) == expected
    assert verdict(Interval(mean, half, 3), reported, possible=False).endswith("impossible")


def test_a_row_that_was_not_run_says_so_and_has_a_command():
    printed = Reported.printed(93.66, "94.0", "0.1")
    cell = cell_of(Row({"target": "tanh"}, ("target=vgg18", "seeds=[0,1]"), printed))
    line = numbers([cell], absolute=False).iloc[0]
    assert line["verdict"] == "not run"
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
    assert line["reproduced: rebuilt"] == finished.result.accuracy
    assert line["layers not converged"] == 0
    assert line["test images"] == finished.result.target.images
    text = tables.csv(frame)
    (found,) = csv.DictReader(io.StringIO(text))
    assert float(found["reproduced_rebuilt_mean"]) == finished.result.accuracy.mean
    assert found["reproduced_rebuilt_n"] == "2"
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
