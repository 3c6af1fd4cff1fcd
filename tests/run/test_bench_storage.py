"""The storage benchmark saves its rows, and draws features only where it measures that."""

import bench_storage
import pytest
import torch

from bnrecon.features import LayerShape
from bnrecon.operators import signs
from bnrecon.runtime import files, precision


@pytest.mark.process
def test_solve_is_measured_in_a_separate_process(tmp_path, monkeypatch, capsys):
    words = ("solves", "--features", "sign", "--widths", "4", "--outputs", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["bench_storage.py", *words])
    bench_storage.main()
    rows = files.read_json(tmp_path / "solves.json")["rows"]
    assert [(row["width"], row["precision"]) for row in rows] == [(4, "int8"), (4, "bfloat16")]
    assert all(row["n"] == 144 and row["residual"] < 1e-10 for row in rows)
    assert "bench_storage.py solves`" in (tmp_path / "solves.md").read_text()


@pytest.mark.parametrize("precision", bench_storage.PRECISIONS)
def test_products_are_measured_with_stored_and_regenerated_features(precision):
    row = bench_storage.time_products({"features": "sign", "width": 8, "precision": precision})
    assert row["n"] == 576
    assert all(row[f"{each} cpu"] > 0 for each in ("memory", "regenerate", bench_storage.DRAWN))


@pytest.mark.parametrize(("storage", "drawings"), [("regenerate", 0), (bench_storage.DRAWN, 2)])
@pytest.mark.parametrize("name", ["int8", "bfloat16"])
def test_bits_are_drawn_in_products_only_if_measured(name, storage, drawings, monkeypatch):
    wanted = getattr(precision, name.upper())
    operator = bench_storage.operator_of("sign", LayerShape(8, 8, (3, 3)), 864, storage, wanted)
    drawn = []
    words = signs.SignMatrix.words
    monkeypatch.setattr(
        signs.SignMatrix,
        "words",
        lambda self, *run: drawn.append(self.held is None) or words(self, *run),
    )
    operator.matvec(torch.randn(864))
    assert sum(drawn) == drawings
