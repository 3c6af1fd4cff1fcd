"""Tables and figures of runs, from the shipped results."""

import dataclasses
import errno
import io
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from repository import RESULTS

from bnrecon.reporting import run_tables
from bnrecon.reporting.convergence import warnings
from bnrecon.reporting.overview import overview
from bnrecon.reporting.result import Predictions, RunResult


@pytest.fixture(scope="module")
def results():
    return [RunResult.read(path) for path in RESULTS]


@pytest.fixture(scope="module")
def unsolved(results):
    return next(result for result in results if result.unconverged)


def test_csv_of_a_run_holds_its_numbers(results):
    frame = pd.read_csv(io.StringIO(run_tables.table_files(results[0])["table.csv"]))
    assert frame["source_accuracy_mean"][0] == results[0].accuracy.mean
    assert frame["source_accuracy_half_width"][0] == results[0].accuracy.half_width
    assert frame["loss_n"][0] == 3
    assert frame["evaluated_on"][0] == results[0].evaluation.images


def test_similar_rows_show_their_options_and_held_out_images(results):
    first, options = results[0], ["train.lr=0.1", "train.lr=0.2"]
    assert list(run_tables.summary([first, first], options)["options"]) == options
    assert all(line in run_tables.terminal([first, first], options) for line in options)
    assert "options" not in run_tables.summary([first], options[:1])
    data = first.config["data"] | {"validation": 100}
    held_out = dataclasses.replace(first, config=first.config | {"data": data})
    assert run_tables.summary([first, held_out])["data"].tolist() == [
        first.data.name,
        f"{first.data.name} (held out)",
    ]


def test_layer_is_summarized_by_its_largest_error(results):
    frame = run_tables.layer_summary(results[0].layers)
    named = [layer for layer in results[0].layers if layer.name == frame["layer"][2]]
    assert frame["max. error"][2] == max(layer.relative_error for layer in named)
    assert frame["converged"][2] == "3 of 3"


def test_unconverged_run_says_so_last_and_in_its_table(unsolved):
    (warning,) = warnings(unsolved)
    assert warning.startswith("NOT CONVERGED: ")
    assert run_tables.run_text(unsolved).endswith(warning)
    assert warning in run_tables.table_files(unsolved)["table.md"]


def test_pruned_run_shows_kept_features_and_advice(results):
    whole = results[0]
    layers = tuple(dataclasses.replace(r, kept=7, converged=False) for r in whole.seeds[0].layers)
    seeds = (dataclasses.replace(whole.seeds[0], layers=layers),)
    assert "kept" not in run_tables.layer_summary(whole.layers)
    assert set(run_tables.layer_summary(layers)["kept"]) == {7}
    for pruning, advice in (("magnitude", "and solve again"), ("l1", "Keep n features or more")):
        features = whole.config["features"] | {"keep": 0.5, "pruning": pruning}
        config = whole.config | {"features": features}
        (warning,) = warnings(dataclasses.replace(whole, config=config, seeds=seeds))
        assert advice in warning


def counted(result, *counts):
    seeds = (
        dataclasses.replace(seed, predictions=Predictions(10000, *count) if count else None)
        for seed, count in zip(result.seeds, counts, strict=True)
    )
    return dataclasses.replace(result, seeds=tuple(seeds))


def test_predictions_of_the_worst_seed_are_shown(results):
    result = counted(results[0], (3, 1, 0), (12, 2, 8), (0, 0, 0))
    line = (
        "12 of 10000 predictions differ from the target's, in the seed with most "
        "(2 only the target right, 8 only the source right)"
    )
    assert line in run_tables.run_text(result)
    files = run_tables.table_files(result)
    frame = pd.read_csv(io.StringIO(files["table.csv"]))
    columns = ["changed_predictions", "only_target_right", "only_source_right"]
    assert list(frame[columns].loc[0]) == [12, 2, 8]
    assert frame["mcnemar_p"][0] == pytest.approx(2 * (1 + 10 + 45) / 2**10)
    assert run_tables.PREDICTIONS in files["table.md"]


# The list of all runs


@pytest.fixture(scope="module")
def listed(shipped_outputs):
    return overview(shipped_outputs)


def test_every_shipped_run_is_listed_within_100_columns(listed):
    assert max(map(len, listed.splitlines())) <= 100
    rows = [line for line in listed.splitlines() if line.endswith(("shipped", "own"))]
    keys = [path.parent.name.rpartition("-")[2] for path in RESULTS]
    assert len(keys) == len(rows)
    assert all(sum(key in row for row in rows) == 1 for key in keys)


def test_user_runs_are_distinguished_from_shipped_ones(tmp_path):
    for path, kind in zip(RESULTS[:2], ("shipped", "own"), strict=True):
        shutil.copytree(path.parent, tmp_path / "runs" / path.parent.name)
        if kind == "own":
            (tmp_path / "runs" / path.parent.name / "seed-0").mkdir()
    text = overview(tmp_path)
    for path, kind in zip(RESULTS[:2], ("shipped", "own"), strict=True):
        key = path.parent.name.rpartition("-")[2]
        assert next(line for line in text.splitlines() if key in line).endswith(kind)


def test_unreadable_result_is_named(tmp_path, caplog, monkeypatch):
    shutil.copytree(RESULTS[0].parent, tmp_path / "runs" / RESULTS[0].parent.name)
    link = tmp_path / "runs" / "elsewhere" / "result.json"
    link.parent.mkdir()
    link.symlink_to("unmounted.json")
    (tmp_path / "runs" / "begun").mkdir()
    closed = tmp_path / "runs" / "closed" / "result.json"
    closed.parent.mkdir()
    look = Path.stat

    def stat(path, **settings):  # permissions do not stop root
        if path == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **settings)

    monkeypatch.setattr(Path, "stat", stat)
    overview(tmp_path)
    assert caplog.messages == [
        f"left out: {closed} cannot be read (Permission denied)",
        f"left out: {link} is a link that leads nowhere",
    ]


def test_warning_names_the_error_that_failed_and_no_features_that_there_are(unsolved):
    layer = dataclasses.replace(
        unsolved.unconverged[0],
        width=150,
        equations=100,
        shape=(4, 25),
        relative_error=0.2,
        assembled_error=0.3,
        converged=False,
    )

    def warned(**changes):
        one = dataclasses.replace(layer, **changes)
        seeds = (dataclasses.replace(unsolved.seeds[0], layers=(one,)),)
        return warnings(dataclasses.replace(unsolved, seeds=seeds))[0]

    assert "relative errors up to 3.0e-01" in warned()
    assert "oversampling" not in warned()
    assert "features.oversampling=1.5" in warned(width=110)
    within = {"relative_error": 1e-13, "assembled_error": 6e-5, "channel_error": 1.3e-4}
    assert "relative errors up to 1.3e-04" in warned(**within)
