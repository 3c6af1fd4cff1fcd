"""Measured rows are saved one by one and measured once."""

import subprocess

import pytest
from bench_rows import measure_missing

from bnrecon.runtime import files

ONE, TWO, THREE = ({"size": size, "threads": 1} for size in (1, 2, 3))


class Measurement:
    """Records the requested sizes; fails for some."""

    def __init__(self, *failing):
        self.asked, self.failing = [], failing

    def __call__(self, about):
        self.asked.append(about["size"])
        if about["size"] in self.failing:
            raise subprocess.CalledProcessError(3, "row")
        return {"seconds": float(len(self.asked))}


def rows_of(path):
    return {row["size"]: row["seconds"] for row in files.read_json(path)["rows"]}


def test_call_adds_its_rows_to_earlier_ones(tmp_path):
    path, measurement = tmp_path / "rows.json", Measurement()
    first, second = measure_missing(path, [ONE, TWO], measurement)
    assert (first["size"], first["seconds"], second["seconds"]) == (1, 1.0, 2.0)
    assert len(measure_missing(path, [TWO, THREE], measurement)) == 3
    assert measurement.asked == [1, 2, 3]
    assert rows_of(path) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_interruption_and_failure_lose_no_row(tmp_path, capsys):
    def interrupted(about):
        if about is TWO:
            raise KeyboardInterrupt
        return {"seconds": 5.0}

    path = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        measure_missing(path, [ONE, TWO], interrupted)
    assert rows_of(path) == {1: 5.0}
    measure_missing(path, [ONE, TWO, THREE], Measurement(2))
    assert rows_of(path) == {1: 5.0, 3: 2.0}
    assert "2 1: failed\n" in capsys.readouterr().err


def test_row_with_only_a_note_is_retried(tmp_path):
    path = tmp_path / "rows.json"
    for measured in ({"note": "not run: 8 GB needed"}, {"note": "float64", "seconds": 7.0}):
        measure_missing(path, [ONE], lambda about, measured=measured: measured)
    (row,) = files.read_json(path)["rows"]
    assert row.items() >= (ONE | {"note": "float64", "seconds": 7.0}).items()
    assert measure_missing(path, [ONE], Measurement())[0]["seconds"] == 7.0
