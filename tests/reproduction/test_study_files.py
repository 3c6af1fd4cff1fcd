"""A study's files: pieces that are damaged are named and redone, what ships is only read, and no table names a folder."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from bnrecon.cli import main
from bnrecon.reproduction import experiments, running
from bnrecon.reproduction.cells import Cell, frame, reconstruction_cells
from bnrecon.run import main_job as run
from bnrecon.runtime.errors import UserError
from bnrecon.studies import registry

ROOT = Path(__file__).parents[2]
CALLS = []


def counted(name):
    CALLS.append(name)
    return (
        pd.DataFrame({"n": [1.5, 2.25], "word": ["a", ""]})
        if name != "wide"
        else pd.DataFrame({"n": [4.0], "more": [7]})
    )


def table(*names):
    return experiments.Experiment(
        "Theorem 0",
        "Nothing",
        "A caption.",
        lambda scale, words: {name: lambda name=name: counted(name) for name in names},
        lambda found: found,
    )


@pytest.fixture
def path(tmp_path):
    CALLS.clear()
    place = tmp_path / "studies" / "paper" / "table-smoke.csv"
    experiments.compute_missing(table("first", "wide", "7", "1e3"), "table", "smoke", place, ())
    assert CALLS == ["first", "wide", "7", "1e3"]
    CALLS.clear()
    return place


def again(path, *names, shipped=None):
    experiments.compute_missing(
        table(*(names or ("first", "wide", "7", "1e3"))), "table", "smoke", path, (), shipped
    )


def test_pieces_that_are_named_by_digits_are_found_again(path):
    again(path)
    assert CALLS == []
    assert experiments.read(path).pieces == {"first", "wide", "7", "1e3"}
    assert experiments.read(path).frame["n"].dtype.kind == "f"


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [
            line.replace("2.25", "2.35") if ",first," in line else line for line in lines
        ],
        lambda lines: [line for number, line in enumerate(lines) if number != 2],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: [line.replace("1.5", "one") if ",first," in line else line for line in lines],
    ],
    ids=["a digit changed", "a line lost", "a line doubled", "a word in a number's place"],
)
def test_a_damaged_piece_is_named_and_computed_again_alone(path, capsys, damage):
    wanted = path.read_text(encoding="utf-8")
    lines = wanted.splitlines(keepends=True)
    path.write_text("".join(damage(lines)), encoding="utf-8")
    stored = experiments.read(path)
    assert stored.pieces == {"wide", "7", "1e3"}
    assert list(stored.damaged) == ["first"]
    assert "the rows of 'first' are not those that were written" in stored.damaged["first"]
    again(path)
    assert CALLS == ["first"]
    assert "set aside as table-smoke.csv.damaged" in capsys.readouterr().err
    assert experiments.read(path).damaged == {}
    kept = [line for line in wanted.splitlines() if ",first," not in line]
    assert [
        line for line in path.read_text(encoding="utf-8").splitlines() if ",first," not in line
    ] == kept


@pytest.mark.parametrize(
    "content",
    ["", "rubbish", "a,b\n1,2\n", "\udcff"],
    ids=["empty", "rubbish", "other columns", "not UTF-8"],
)
def test_a_file_that_is_no_table_is_set_aside_and_redone(path, capsys, content):
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert experiments.read(path).frame is None
    again(path)
    assert CALLS == ["first", "wide", "7", "1e3"]
    assert "set aside" in capsys.readouterr().err


def test_pieces_that_ship_are_read_and_never_written(path):
    shipped = path.parent.parent.parent / "paper" / path.name
    shipped.parent.mkdir()
    path.rename(shipped)
    before = shipped.read_bytes()
    again(path, "first", "wide", "new", shipped=shipped)
    assert CALLS == ["new"]
    assert experiments.read(path).pieces == {"new"}
    assert experiments.read(path, shipped).pieces == {"first", "wide", "7", "1e3", "new"}
    assert shipped.read_bytes() == before
    assert running.shipped(path.parent, path.name) == shipped


def test_a_damaged_table_is_named_and_the_others_are_printed(tmp_path, capsys):
    words = ["projection", "matching", "scale=smoke", f"outputs={tmp_path}"]
    assert main._study(["random_features", *words]) == 0
    capsys.readouterr()
    file = tmp_path / "studies" / "random_features" / "matching-smoke.csv"
    file.write_text(file.read_text().replace("0.", "0.1", 1))
    assert main._tables(["study=random_features", *words]) == 2
    captured = capsys.readouterr()
    assert "matching-smoke.csv is damaged: the rows of 'all' are not those" in captured.err
    assert "computed again by: bnrecon study random_features matching" in captured.err
    assert "What too few features leave of a target" in captured.out
    assert main._study(["random_features", *words]) == 0


def test_no_table_names_a_folder_of_this_machine():
    words = (
        "target=vgg18",
        "data.root=/home/me/my data",
        "outputs=/tmp/mine",
        "targets=/tmp/t",
        "seeds=[0,1]",
    )
    lines = frame([Cell("table1", "tanh", "he_normal", "exact", words, None)], absolute=False)
    assert lines["verdict"][0] == "not run: bnrecon run target=vgg18 data.root=FOLDER 'seeds=[0,1]'"


def test_images_that_are_missing_are_named_before_the_first_cell(tmp_path, capsys, monkeypatch):

    study = registry.find("burkholz2024").reported
    words = [f"data.root={tmp_path}", f"outputs={tmp_path}", "data.download=false"]
    cells = [
        cell
        for t in ("table1", "table2")
        for cell in reconstruction_cells(study, t, "smoke", "exact", words)
    ]
    monkeypatch.setattr(run, "run", lambda asked: pytest.fail("nothing can run"))
    with pytest.raises(UserError, match=r"cifar100.*\(16 times\)"):
        running.run_missing(cells, tmp_path / "studies" / "smoke.log")
    said = capsys.readouterr().err
    assert said.count("16 cells cannot run, none does: ") == 2
    assert not (tmp_path / "runs").exists()


def test_progress_carries_the_result_and_what_is_left(tmp_path, capsys, monkeypatch):
    cells = [
        Cell(
            "table",
            "digits",
            name,
            "",
            ("scale=smoke", "target.groups=[1]", f"features={name}", f"outputs={tmp_path}"),
            None,
        )
        for name in ("he_normal", "id_cond")
    ]
    running.run_missing(cells, tmp_path / "studies" / "smoke.log")
    lines = capsys.readouterr().err.splitlines()
    first, second = (
        next(line for line in lines if line.startswith(f"table digits {name}: "))
        for name in ("he_normal", "id_cond")
    )
    assert "loss 0.00 (n=1), " in first
    assert "; 1 of 2 left, about " in first
    assert second.endswith("; none is left")


def test_tables_of_what_ships_change_no_tracked_file(tmp_path):
    """In a copy of outputs/, as a fresh clone has it."""
    copy = tmp_path / "outputs"
    tracked = subprocess.run(
        ["git", "ls-files", "outputs"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a checkout")
    for name in tracked:
        if "/targets/" not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for study in registry.STUDIES:
        assert main._tables([f"study={study}", f"outputs={copy}"]) == 0
    assert {path: path.read_bytes() for path in before} == before
    for study in registry.STUDIES:
        for path in (copy / study).glob("*-laptop.md"):
            written = (copy / "studies" / study / path.name).read_text(encoding="utf-8")
            shown = path.read_text(encoding="utf-8")
            assert _numbers(written) == _numbers(shown), path.name


def _numbers(page):
    """The rows of a page's tables, as they stand."""
    return [line for line in page.splitlines() if line.startswith("|")]


def test_an_earlier_table_is_given_its_digests_by_the_script(path):
    text = (
        pd.read_csv(path, dtype=str, keep_default_na=False)
        .drop(columns="digest")
        .to_csv(index=False)
    )
    path.write_text(text)
    assert experiments.read(path).frame is None
    line = [sys.executable, str(ROOT / "scripts" / "add_digests.py"), str(path)]
    assert subprocess.run(line, check=True, capture_output=True, text=True).stdout.endswith(
        "4 pieces\n"
    )
    assert experiments.read(path).pieces == {"first", "wide", "7", "1e3"}
    assert (
        pd.read_csv(path, dtype=str, keep_default_na=False)
        .drop(columns="digest")
        .to_csv(index=False)
        == text
    )


def test_a_damaged_own_file_is_set_aside_though_nothing_is_missing(path, capsys):
    """Every piece ships too: the study comes to an end and says nothing of it again."""
    shipped = path.parent.parent.parent / "paper" / path.name
    shipped.parent.mkdir()
    shipped.write_bytes(path.read_bytes())
    path.write_text("rubbish")
    again(path, shipped=shipped)
    assert CALLS == []
    assert "set aside as table-smoke.csv.damaged" in capsys.readouterr().err
    again(path, shipped=shipped)
    assert capsys.readouterr().err == ""


def test_a_table_of_one_data_set_takes_no_other(tmp_path, capsys):
    assert main._tables(["burkholz2024", "table1", "data=digits", f"outputs={tmp_path}"]) == 2
    assert "data=digits: that is what is compared here" in capsys.readouterr().err
