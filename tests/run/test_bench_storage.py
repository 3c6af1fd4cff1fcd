"""The benchmark of storages keeps its rows, and says what it does not measure."""

import bench_storage
import pytest

from bnrecon.runtime import files


def call(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["bench_storage.py", *words])
    bench_storage.main()


@pytest.mark.process
def test_a_solve_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    words = ("--features", "sign", "--widths", "4", "256", "--outputs", str(tmp_path))
    call(monkeypatch, "solves", *words)
    rows = files.read_json(tmp_path / "solves.json")["rows"]
    assert [(row["width"], row["precision"]) for row in rows] == [(4, "int8"), (4, "bfloat16")]
    assert all(row["n"] == 144 and row["residual"] < 1e-10 for row in rows)
    assert "solves --features sign --widths 4`" in (tmp_path / "solves.md").read_text()
