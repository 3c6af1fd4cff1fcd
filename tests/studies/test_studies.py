"""The papers' tables: every cell's run can be composed, verdicts are about losses, and what was not run says how to run it."""

import dataclasses

import numpy as np
import pytest

from bnrecon.cli import main
from bnrecon.config import composition
from bnrecon.data.load import CIFAR10_CLASSES
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction import running
from bnrecon.reproduction.cells import (
    Cell,
    Reported,
    frame,
    listed_cells,
    reconstruction_cells,
    verdict,
)
from bnrecon.studies import registry
from bnrecon.studies.burkholz2024 import width_threshold


@pytest.fixture
def small_study(monkeypatch):
    """Table 1 with one target and two feature distributions."""
    study = registry.find("burkholz2024")
    table = study.tables["table1"]
    rebuilt = {
        "relu": {name: table["rebuilt"]["relu"][name] for name in ("he_normal", "orthogonal")}
    }
    reported = study.reported | {"tables": {"table1": table | {"rebuilt": rebuilt}}}
    monkeypatch.setattr(
        registry, "find", lambda name: dataclasses.replace(study, reported=reported)
    )


@pytest.fixture
def cifar(tmp_path):
    """A cifar10.npz of noise."""
    generator = np.random.default_rng(0)
    arrays = {"classes": list(CIFAR10_CLASSES)}
    for split, count in (("train", 600), ("test", 140)):
        arrays[f"{split}_x"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_y"] = np.arange(count) % 10
    np.savez(tmp_path / "cifar10.npz", **arrays)
    return tmp_path


def test_every_run_of_the_tables_can_be_composed():
    study = registry.find("burkholz2024").reported
    for table in ("table1", "table2"):
        for solver in study["solvers"]:
            cells = reconstruction_cells(study, table, "laptop", solver)
            assert len(cells) == 16
            for cell in cells[::5]:
                asked = composition.compose(cell.words)
                assert asked.target.activation == cell.row
                assert asked.features.name == cell.column
                assert asked.solver.name == {"exact": "auto", "paper": "lu_lbfgs"}[solver]
                assert asked.data.name == {"table1": "cifar10", "table2": "cifar100"}[table]
                assert asked.seeds == [0, 1, 2]
    assert (
        composition.compose(
            reconstruction_cells(study, "table1", "paper", "exact")[0].words
        ).train.epochs
        == 205
    )


def test_every_listed_run_can_be_composed_at_every_scale():
    study = registry.find("burkholz2024").reported
    listed = [table for table, content in study["tables"].items() if "rows" in content]
    assert listed == ["width100", "excess", "residual", "rounding", "epsilon", "pooling"]
    for table in listed:
        for scale in study["scales"]:
            cells = listed_cells(study, table, scale)
            asked = [
                composition.compose(cell.words)
                for cell in (cells if scale == "laptop" else cells[-1:])
            ]
            assert len({str(config) for config in asked}) == len(asked)
            assert {config.scale for config in asked} == {scale}
    excess = [
        composition.compose(cell.words).features.excess
        for cell in listed_cells(study, "excess", "laptop")
    ]
    assert excess == [0, 40, 80, 120, 400]
    wide = listed_cells(study, "width100", "paper")[1]
    assert (wide.reported.target, wide.reported.rebuilt, wide.reported.half_width) == (
        73.34,
        73.37,
        0.05,
    )
    assert composition.compose(wide.words).target.width == 100


def test_the_reported_numbers_are_the_papers():
    """Burkholz 2024, Tables 1 and 2, as printed: targets, and the corners of both tables."""
    tables = registry.find("burkholz2024").reported["tables"]
    assert list(tables["table1"]["target"].values()) == [94.12, 94.37, 93.66, 92.9]
    assert list(tables["table2"]["target"].values()) == [70.46, 70.22, 69.65, 67.42]
    assert tables["table1"]["rebuilt"]["relu"]["he_uniform"] == ["94.0", "0.1"]
    assert tables["table1"]["rebuilt"]["sigmoid"]["sparse_he_normal"] == ["92.8", "0.04"]
    assert tables["table2"]["rebuilt"]["tanh"]["sparse_he_normal"] == ["69.6", "0.05"]
    # What makes two rows of Table 2 unusable: accuracies above 90% on CIFAR-100.
    impossible = [
        row
        for row, cells in tables["table2"]["rebuilt"].items()
        if min(float(mean) for mean, _ in cells.values()) > 90
    ]
    assert impossible == tables["table2"]["unusable"] == ["leaky_relu", "sigmoid"]


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
    assert verdict(Interval(mean, half, 3), reported, True) == expected
    assert verdict(Interval(mean, half, 3), reported, False).startswith("unusable")


def test_a_cell_that_was_not_run_names_its_command():
    cell = Cell(
        "table1",
        "tanh",
        "he_normal",
        "exact",
        ("target=vgg18", "seeds=[0,1]"),
        Reported(93.66, 93.5, 0.1),
    )
    line = frame([cell], absolute=False).iloc[0]
    assert line["verdict"] == "not run: bnrecon run target=vgg18 'seeds=[0,1]'"
    assert line["paper: loss"] == "0.16"
    assert (
        frame(
            [dataclasses.replace(cell, reported=Reported.printed(94.12, "94.0", "0.1"))], False
        ).iloc[0]["paper: rebuilt"]
        == "94.0 ± 0.1"
    )


def test_a_study_runs_what_it_lacks_once_and_writes_its_tables(
    small_study, cifar, capsys, monkeypatch
):
    words = ["table1", "exact", "scale=smoke", f"data.root={cifar}", f"outputs={cifar}"]
    assert main._study(["burkholz2024", *words]) == 0
    printed = capsys.readouterr().out
    assert (
        "2 of 4 cells run" in printed
    )  # the paper's solver was not asked for, and its cells say how to run them
    assert (
        "bnrecon run target=vgg18 data=cifar10 features=orthogonal solver=lu_lbfgs features.width=minimum"
        in printed
    )
    assert "he_normal" in printed and "orthogonal" in printed
    for kind in ("md", "csv", "tex"):
        assert (cifar / "studies" / "burkholz2024" / f"table1-smoke.{kind}").exists()
    log = (cifar / "studies" / "burkholz2024" / "smoke.log").read_text()
    assert log.count("bnrecon run ") == 2
    monkeypatch.setattr(running.main_job, "run", None)  # nothing is left to run
    assert main._study(["burkholz2024", *words]) == 0
    assert capsys.readouterr().out == printed
    assert main._tables(["study=burkholz2024", *words]) == 0


def test_a_failed_cell_is_named_and_the_others_go_on(small_study, cifar, capsys, monkeypatch):
    from bnrecon.runtime.errors import RunError

    truly = running.main_job.run

    def run(asked):
        if asked.features.name == "he_normal":
            raise RunError("no luck")
        return truly(asked)

    monkeypatch.setattr(running.main_job, "run", run)
    assert (
        main._study(
            [
                "burkholz2024",
                "table1",
                "exact",
                "scale=smoke",
                f"data.root={cifar}",
                f"outputs={cifar}",
            ]
        )
        == 1
    )
    captured = capsys.readouterr()
    assert "no luck" in captured.err
    assert "1 failed of 2 cells" in captured.err
    assert "1 of 4 cells run" in captured.out


def test_an_experiment_is_computed_once_and_drawn(tmp_path, capsys, monkeypatch):
    few = (width_threshold.Setting(3, 2, 1, 1, 1), width_threshold.Setting(4, 3, 3, 3, 1))
    monkeypatch.setattr(width_threshold, "SETTINGS", few)
    words = ["thresholds", "scale=smoke", f"outputs={tmp_path}"]
    assert main._tables(["study=burkholz2024", *words]) == 0
    assert "not run: bnrecon study burkholz2024 thresholds scale=smoke" in capsys.readouterr().out
    assert main._study(["burkholz2024", *words]) == 0
    printed = capsys.readouterr().out
    assert "108 (n)" in printed  # pathological targets of the second setting
    assert (tmp_path / "studies" / "burkholz2024" / "thresholds-smoke.png").read_bytes()[
        1:4
    ] == b"PNG"
    monkeypatch.setattr(width_threshold, "success_rates", None)
    assert main._study(["burkholz2024", *words]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["burkholz2042"], "did you mean 'burkholz2024'"),
        (["burkholz2024", "scale=lapdog"], "did you mean 'laptop'"),
        (["burkholz2024", "tabel1"], "did you mean 'table1'"),
        (["burkholz2024", "target.widht=3"], "target.widht is not an option"),
    ],
)
def test_mistakes_are_said_in_one_line(words, message, capsys):
    assert main._study(words) == 2
    assert message in capsys.readouterr().err
