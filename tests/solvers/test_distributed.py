"""A layer divided among processes has the products and the solution of one process."""

import json
import subprocess
import sys

import pytest
import torch
from distributed_process import plan, products
from processes import ENVIRONMENT
from safetensors.torch import load_file
from torch import distributed as parallel
from torch import nn

import bnrecon
from bnrecon.features.matrix import feature_operator
from bnrecon.operators import distributed
from bnrecon.runtime.errors import UserError

CASES = {
    "he_normal,memory": "bfloat16 and int8",
    "he_normal,regenerate": "bfloat16",
    "he_normal,memory,suits": "bfloat16",  # only one process could use integers
    "sign,memory": "int8",
    "sign,regenerate": "int8",
}


def solve_in(count, folder, cases, last=0):
    """Run this many processes and return their exit codes."""
    line = [sys.executable, "tests/distributed_process.py"]
    words = [str(count), str(folder), str(last), *cases]
    processes = [
        subprocess.Popen([*line, str(rank), *words], env=ENVIRONMENT) for rank in range(count)
    ]
    return [process.wait(240) for process in processes]


def written(folder, case, rank):
    stem = folder / f"{case}-{rank}"
    return load_file(f"{stem}.safetensors"), json.loads(stem.with_suffix(".json").read_text())


@pytest.mark.process
def test_products_and_solution_match_one_process(tmp_path):
    assert solve_in(2, tmp_path, CASES) == [0, 0]
    for case, precision in CASES.items():
        (numbers, report), (same, other) = (written(tmp_path, case, rank) for rank in (0, 1))
        assert all(torch.equal(numbers[name], same[name]) for name in numbers)
        layer = plan(*case.split(",")).layers[0]
        alone = products(feature_operator(layer.draw(), torch.float64, torch.device("cpu")))
        for name, wanted in alone.items():
            torch.testing.assert_close(numbers[name], wanted, rtol=1e-12, atol=1e-12)
        assert report["iterations"] == other["iterations"] > 50
        assert report["precision"].startswith(precision)
        assert ("int8" in report["precision"]) == ("int8" in precision)
        assert report["relative_residual"] <= 1e-10
        solution = bnrecon.solve_layer(layer)
        assert torch.dist(numbers["scale"], solution.scale) < 0.05 * solution.scale.norm()


@pytest.mark.process
@pytest.mark.parametrize("differs", ["target", "seed", "checkpoint"])
def test_processes_with_different_plans_are_told(tmp_path, capfd, differs):
    assert solve_in(2, tmp_path, [f"sign,memory,{differs}"]) == [2, 2]
    assert "the processes have different plans or targets" in capfd.readouterr().err


def test_missing_process_group_is_refused():
    (layer,) = bnrecon.plan_layers(nn.Linear(6, 6).eval()).layers
    with pytest.raises(UserError, match="init_process_group before it"):
        bnrecon.solve_layer(layer, distributed=True)


@pytest.mark.process
def test_interrupted_solve_resumes_with_another_number_of_processes(tmp_path):
    (case,) = cases = ["sign,regenerate"]
    assert solve_in(2, tmp_path, cases, last=60)[0] == 3
    assert [path.name for path in tmp_path.glob("*.state")] == ["0.state"]
    assert solve_in(3, tmp_path, cases) == [0, 0, 0]
    first, last = (written(tmp_path, case, rank)[1] for rank in (0, 2))
    assert last["relative_residual"] <= 1e-10
    assert 60 + first["saved"] - 3 <= first["iterations"] == last["iterations"] < 150
    assert 30 < first["saved"] < 80
    assert last["saved"] == 0


def test_shares_begin_at_multiples_of_sixteen_and_none_is_empty(monkeypatch):
    for features, count in ((54, 2), (33, 3), (864, 7), (100, 5), (2592, 16)):
        parts = []
        for rank in range(count):
            monkeypatch.setattr(distributed, "rank_and_world_size", lambda r=rank, c=count: (r, c))
            sizes, part = distributed.shares(features)
            parts.append(part)
        assert sizes == [part.stop - part.start for part in parts]
        assert all(part.start % 16 == 0 and part.stop > part.start for part in parts)
        assert [i for part in parts for i in range(features)[part]] == [*range(features)]
    monkeypatch.setattr(distributed, "rank_and_world_size", lambda: (0, 4))
    with pytest.raises(UserError, match="33 features are too few for 4 processes"):
        distributed.shares(33)


@pytest.fixture
def alone(tmp_path):
    """A group of one process."""
    parallel.init_process_group(
        "gloo", store=parallel.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    parallel.destroy_process_group()


@pytest.mark.parametrize(
    ("spec", "solver", "match"),
    [
        (bnrecon.FeatureSpec(oversampling=1), "auto", "for one process"),
        (bnrecon.FeatureSpec(), "least_squares", "for one process"),
        (bnrecon.FeatureSpec(keep=0.9, pruning="refit"), "auto", "grouped or pruned"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_single_process_features_are_refused(spec, solver, match):
    (layer,) = bnrecon.plan_layers(nn.Linear(6, 6).eval(), spec, solver).layers
    with pytest.raises(UserError, match=match):
        bnrecon.solve_layer(layer, distributed=True)
