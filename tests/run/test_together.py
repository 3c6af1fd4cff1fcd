"""Runs that share features take each other's factorization, and end at the same network."""

import logging

import solve_together
from processes import SMALLEST

from bnrecon.config.composition import compose
from bnrecon.run import main_job
from bnrecon.run.naming import run_folder

WIDE = (*SMALLEST, "features=he_normal", "features.width=minimum", "seeds=[0]")


def requests(outputs):
    """Two targets with the same features."""
    others = ("train.seed=0", "train.seed=1")
    return [compose([*WIDE, other, f"outputs={outputs}"]) for other in others]


def test_runs_read_the_layers_that_were_solved_for_all_of_them(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    alone = [main_job.run(config).result for config in requests(tmp_path / "alone")]
    together = requests(tmp_path / "together")
    layers = len(alone[0].seeds[0].layers)
    shared = solve_together.solve(together, least=0)
    assert 0 < shared <= 2 * layers
    caplog.clear()
    for config, expected in zip(together, alone, strict=True):
        result = main_job.run(config).result
        solvers = [layer.solver for layer in result.seeds[0].layers]
        assert solvers.count("shared_lu") == shared / 2
        assert all(layer.relative_error < 1e-10 for layer in result.seeds[0].layers)
        assert result.seeds[0].accuracy == expected.seeds[0].accuracy
        assert result.seeds[0].predictions.differ == 0
    assert caplog.text.count(f"seed 0: {shared // 2} layers were solved before") == 2


def test_mistakes_are_one_line_and_leave_nothing(tmp_path, capsys):
    for words in (["burkholz2023"], ["burkholz2024", "table9"], ["burkholz2024", "target.widht=4"]):
        assert solve_together.main([*words, f"outputs={tmp_path}"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_small_layers_are_left_to_the_runs(tmp_path):
    configs = requests(tmp_path)
    assert solve_together.solve(configs, least=10**6) == 0
    assert not list(run_folder(configs[0]).glob("seed-*/layer-*"))
