"""The engine: tasks are computed once, and damage and failures affect no other task."""

import contextlib
import dataclasses
import json
import logging

import pandas as pd
import pytest
import torch
from fake_study import Counted, counted_experiment, study_of
from fake_tasks import task_work

from bnrecon.reproduction import engine, pieces
from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.pages import write
from bnrecon.reproduction.pieces import piece, stored_in
from bnrecon.reproduction.request import read
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.studies import registry

NAMES = ("first", "second", "7", "1e3")


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture
def study(counted):
    return study_of(part=counted_experiment(counted, *NAMES))


@pytest.fixture
def request_for(tmp_path):
    return lambda *options: read("paper", ["scale=smoke", f"outputs={tmp_path}", *options])


def files_of(request):
    return {path.name: path for path in request.folder.glob("tasks/part-smoke/*.json")}


def test_damaged_file_costs_one_task(study, counted, request_for, caplog, tmp_path):
    run_study(study, request_for())
    before = {name: path.read_bytes() for name, path in files_of(request_for()).items()}
    (damaged,) = (path for name, path in files_of(request_for()).items() if "second" in name)
    damaged.write_text(damaged.read_text().replace("2.25", "2.35"))
    counted.calls.clear()
    with caplog.at_level(logging.WARNING):
        write(study, request_for())
    assert f"{damaged} is damaged" in caplog.text
    again = f"computed again by: bnrecon study paper part scale=smoke outputs={tmp_path}"
    assert caplog.text.endswith(f"{again}\n")
    stamps = {path: path.stat().st_mtime_ns for path in files_of(request_for()).values()}
    run_study(study, request_for())
    assert counted.calls == ["second"]
    assert damaged.with_name(f"{damaged.name}.damaged").exists()
    for name, path in files_of(request_for()).items():
        if path != damaged:
            assert path.read_bytes() == before[name]
            assert path.stat().st_mtime_ns == stamps[path]


def test_damaged_user_file_is_set_aside_although_the_task_ships(study, counted, request_for):
    request = request_for()
    run_study(study, request)
    request.folder.rename(request.shipped)
    shipped = next(request.shipped.glob("tasks/part-smoke/*.json"))
    local = request.folder / shipped.relative_to(request.shipped)
    local.parent.mkdir(parents=True)
    local.write_text("rubbish")
    counted.calls.clear()
    run_study(study, request)
    assert counted.calls == []
    assert not local.exists()
    assert local.with_name(f"{local.name}.damaged").read_text() == "rubbish"


def test_file_of_another_task_is_recomputed(study, counted, request_for, caplog):
    run_study(study, request_for())
    first, second = (
        next(path for name, path in files_of(request_for()).items() if task in name)
        for task in ("first", "second")
    )
    before = second.read_bytes()
    second.write_bytes(first.read_bytes())
    counted.calls.clear()
    with caplog.at_level(logging.WARNING):
        run_study(study, request_for())
    assert f"{second} is of another task, part first" in caplog.text
    assert counted.calls == ["second"]
    again, old = (json.loads(content) for content in (second.read_bytes(), before))
    assert again["rows"] == old["rows"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(RunError("no luck"), RunError), (UserError("no such"), UserError), (KeyError("k"), RunError)],
)
def test_failed_task_stops_no_other(request_for, caplog, error, raised):
    counted = Counted({"second": error})
    study = study_of(part=counted_experiment(counted, *NAMES))
    with caplog.at_level(logging.ERROR):
        outcome = run_study(study, request_for())
    assert type(outcome.error) is raised
    assert counted.calls == list(NAMES)
    assert "3 of 4 tasks finished" in outcome.text
    assert outcome.text == write(study, request_for())[0]
    log = (request_for().folder / "smoke.log").read_text(encoding="utf-8")
    assert f"part second failed: {error}" in log
    assert "part first: " in log
    counted.failing.clear()
    counted.calls.clear()
    assert "4 of 4 tasks finished" in run_study(study, request_for()).text
    assert counted.calls == ["second"]


def test_interrupted_study_continues_with_the_interrupted_task(request_for):
    counted = Counted({"second": Interrupted("stopped")})
    study = study_of(part=counted_experiment(counted, *NAMES))
    with pytest.raises(Interrupted):
        run_study(study, request_for())
    assert counted.calls == ["first", "second"]
    written = (request_for().folder / "part-smoke.md").read_text(encoding="utf-8")
    assert "1 of 4 tasks finished" in written
    counted.failing.clear()
    counted.calls.clear()
    run_study(study, request_for())
    assert counted.calls == ["second", "7", "1e3"]


def test_missing_images_are_reported_before_anything_is_computed(
    counted, request_for, tmp_path, caplog
):
    available = counted_experiment(counted, "digits", options=("data=digits",))
    lost = counted_experiment(counted, "cifar", options=("data=cifar10", "data.download=false"))
    study = study_of(available=available, lost=lost)
    request = request_for(f"data.root={tmp_path}")
    with caplog.at_level(logging.ERROR):
        outcome = run_study(study, request)
    assert isinstance(outcome.error, UserError)
    assert "cifar10" in str(outcome.error)
    assert "data.root=FOLDER" in str(outcome.error)
    assert counted.calls == ["digits"]
    assert "1 of 2 tasks cannot be computed: " in caplog.text


@pytest.mark.parametrize(
    ("parts", "rows"),
    [
        (("exact",), {"table1": 51, "table2": 32}),
        (("table1", "paper", "target.width=32"), {"table1": 18}),
        (("pooling", "exact"), {"pooling": 10}),
    ],
)
def test_parts_and_solvers_select_runs(parts, rows, tmp_path):
    study = registry.find("burkholz2024")
    planned = engine.plan(study, read(study.name, [*parts, f"outputs={tmp_path}"]))
    counts = {part.name: len(part.work) for part in planned}
    assert counts == rows


def test_tasks_without_options_use_the_requested_threads(tmp_path):
    request = read("random_features", ["matching", "scale=smoke", "threads=1"])
    (planned,) = engine.plan(registry.find("random_features"), request)
    assert {work.threads for work in planned.work} == {1}
    work = dataclasses.replace(task_work(tmp_path, "a"), threads=1)
    work.compute()
    assert work.result().machine == "cpu (1 thread)"


def test_interrupted_task_resumes_from_its_pieces(tmp_path):
    """Computed pieces are reused, a damaged one is recomputed, and finally all are removed."""
    computed = []

    def in_pieces(folder, name, stop):
        def compute(number):
            computed.append(number)
            return {"number": torch.tensor(float(number))}

        rows = [
            {"number": float(piece(str(n), {}, lambda n=n: compute(n))["number"])} for n in stop
        ]
        if len(rows) < 3:
            raise Interrupted("stopped")
        return pd.DataFrame(rows)

    def work(*numbers):
        return task_work(tmp_path, "task", lambda **arguments: in_pieces(**arguments, stop=numbers))

    with pytest.raises(Interrupted):
        work(1, 2).compute()
    (folder,) = tmp_path.glob("studies/tasks/part-smoke/*")
    (folder / "2.safetensors").write_bytes(b"half of it")
    work(1, 2, 3).compute()
    assert computed == [1, 2, 2, 3]
    assert [row["number"] for row in work().result().rows] == [1, 2, 3]
    assert not folder.exists()
    with pytest.raises(ValueError, match="two pieces named 1"):
        work(1, 1).compute()


@pytest.mark.parametrize("changed", ["settings", "commit", "versions"])
def test_piece_of_other_settings_or_versions_is_recomputed(changed, tmp_path, monkeypatch):
    def one(settings, number):
        with contextlib.suppress(Interrupted), stored_in(tmp_path / "task") as saved:
            tensor = piece("x", settings, lambda: {"x": torch.tensor(number)})["x"]
            raise Interrupted("stopped")
        return int(tensor), len(saved)

    assert one({"rates": (0.1,)}, 1) == (1, 0)
    assert one({"rates": (0.1,)}, 2) == (1, 1)
    if changed != "settings":
        monkeypatch.setattr(pieces, changed, lambda: "another")
    assert one({"rates": (0.1, 0.2) if changed == "settings" else (0.1,)}, 3) == (3, 0)
