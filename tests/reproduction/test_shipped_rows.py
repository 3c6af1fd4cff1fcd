"""Results in the installed package are read, never written, and yield to the user's."""

import dataclasses
import shutil
from collections import Counter
from pathlib import Path

import pytest
from fake_study import Counted, counted_experiment, study_of

from bnrecon.config import composition
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.engine import plan
from bnrecon.reproduction.pages import write
from bnrecon.reproduction.parts import PartText
from bnrecon.reproduction.request import read
from bnrecon.reproduction.task_store import TaskResult
from bnrecon.run import main_job
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files, shipped
from bnrecon.studies.burkholz2024.run_tables.row import Row, RowWork
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

NAMES = ("first", "second", "third")
SHIPPED = "Shipped with bnrecon, not computed here: "
RUN = ("scale=smoke", "target.groups=[1]", "train.epochs=1", "features=id_cond", "seeds=[0]")


@pytest.fixture(autouse=True)
def packaged(tmp_path, monkeypatch):
    """The package's results folder; the test works in an empty one."""
    folder = tmp_path / "package"
    (folder / "paper").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(shipped, "packaged", lambda: folder)
    return folder


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture
def study(counted, packaged):
    """A study of three tasks whose results ship."""
    made = study_of(part=counted_experiment(counted, *NAMES))
    run_study(made, read("paper", ["scale=smoke"]))
    shutil.move("outputs/studies/paper/tasks", packaged / "paper/tasks")
    shutil.rmtree("outputs")
    counted.calls.clear()
    return made


def request_for(*options):
    return read("paper", ["scale=smoke", *options])


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_shipped_results_are_shown_and_not_recomputed(study, counted, packaged):
    before = content_of(packaged)
    printed = write(study, request_for())[0]
    assert "3 of 3 tasks finished" in printed
    assert f"{SHIPPED}all 3 finished results." in printed
    assert run_study(study, request_for()).text == printed
    assert counted.calls == []
    assert content_of(packaged) == before
    assert Path("outputs/studies/paper/part-smoke.md").exists()


def test_page_reads_no_file_twice_and_detects_changes(study, packaged, monkeypatch):
    counts, read_json = Counter(), files.read_json

    def counted_read(path, *arguments):
        counts[path.name] += path.exists()
        return read_json(path, *arguments)

    monkeypatch.setattr(files, "read_json", counted_read)
    write(study, request_for())
    assert len(counts) == 3
    assert set(counts.values()) == {1}
    (work, *_), (first, *_) = plan(study, request_for())[0].work, packaged.rglob("first*.json")
    before = work.result()
    assert work.result() is before
    dataclasses.replace(before, commit="another").write(first)
    assert work.result().commit == "another"


def test_file_that_becomes_readable_is_no_longer_damaged(study, packaged, monkeypatch):
    (work, *_) = plan(study, request_for())[0].work
    result = work.result()

    def refuse(_):
        raise files.Unreadable("first.json cannot be read (Permission denied)")

    work = dataclasses.replace(work)
    with monkeypatch.context() as patch:
        patch.setattr(TaskResult, "read", refuse)
        assert "Permission denied" in work.damage()
        assert not work.is_finished()
    assert work.damage() is None
    assert work.result() == result


def test_other_outputs_folder_recomputes_everything(study, counted):
    printed = run_study(study, request_for("outputs=again")).text
    assert counted.calls == list(NAMES)
    assert SHIPPED not in printed


def test_unshipped_and_damaged_results_are_computed(study, counted, packaged, caplog):
    (first,) = (packaged / "paper").rglob("first*.json")
    first.write_text(first.read_text().replace("2.25", "2.35"))
    (second,) = (packaged / "paper").rglob("second*.json")
    second.unlink()
    before = content_of(packaged)
    assert "1 of 3 tasks finished" in write(study, request_for())[0]
    assert f"{first} is damaged" in caplog.text
    printed = run_study(study, request_for()).text
    assert sorted(counted.calls) == ["first", "second"]
    assert f"{SHIPPED}1 of 3 finished results: part third." in printed
    assert content_of(packaged) == before


def test_run_ships_and_the_users_takes_precedence(packaged):
    work = RowWork.of("table", Row({"target": "digits"}, RUN))
    main_job.run(work.config)
    folder = run_folder(work.config)
    assert not work.is_shipped()
    published = dataclasses.replace(RunResult.read(folder / "result.json"), notes=("published",))
    published.write(packaged / "runs" / folder.name / "result.json")
    assert work.result().notes != ("published",)
    shutil.move(folder, "aside")
    assert work.is_shipped()
    assert work.cell().result.notes == ("published",)
    elsewhere = composition.compose([*RUN, "outputs=again"])
    assert not dataclasses.replace(work, config=elsewhere).is_finished()
    made = study_of(
        part=RunTable(
            PartText("Table 0", "Digits", "", {}),
            lambda scale, options: [Row({"target": "digits"}, RUN)],
        )
    )
    printed = write(made, request_for())[0]
    assert "1 of 1 runs finished" in printed
    assert f"{SHIPPED}the result. Trained weights are not in the package" in printed
    # A damaged result of the user's is named and recomputed, not replaced silently.
    shutil.move("aside", folder)
    (folder / "result.json").write_text("{")
    assert work.result() is None
    assert "is damaged" in work.damage()
