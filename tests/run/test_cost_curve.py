"""The cost curve has a row for each solver and distribution, measured once."""

import cost_curve
import pytest

from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.runtime import files
from bnrecon.solvers.register import SOLVERS


@pytest.mark.process
def test_rows_are_measured_once_per_number_of_threads(tmp_path, monkeypatch, capsys):
    methods = ["refined", "float32 LU at torch.matmul's rate"]
    line = ["cost_curve.py", *methods, "--largest", "8", "--outputs", str(tmp_path)]
    for threads, measured in ((1, 2), (2, 2), (1, 0)):
        monkeypatch.setattr("sys.argv", [*line, "--threads", str(threads)])
        cost_curve.main()
        out, err = capsys.readouterr()
        assert (err.count(": measured"), out.count("| refined ")) == (measured, 1)
    rows = files.read_json(tmp_path / "cost_curve.json")["rows"]
    solved = [row for row in rows if row["method"] not in cost_curve.BOUNDS]
    assert {(row["n"], row["c1"]) for row in solved} == {(576, 576)}
    assert all(row["residual"] < 1e-10 and row["memory"] > 0 for row in solved)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png", ".svg"}


def test_every_method_is_a_solver_a_distribution_or_a_bound():
    registered = {*SOLVERS, *DISTRIBUTIONS}
    assert {*cost_curve.WIDTHS} - {*cost_curve.BOUNDS} <= registered
    assert {*cost_curve.BOUNDS} <= {*cost_curve.WIDTHS}
