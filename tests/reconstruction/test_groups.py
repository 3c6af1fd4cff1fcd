"""Systems of groups that are solved together, against each solved by itself."""

import pytest
import torch
from random_layer import random_layer
from torch import nn

import bnrecon
from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction import groups
from bnrecon.reconstruction.groups import solve_groups
from bnrecon.solvers import SolverSpec, solve

SHAPE = LayerShape(2, 3, (3, 3))  # 54 equations


def problems(spec, count=5):
    return [(random_layer("he_normal", SHAPE, 81, seed)[-1], spec) for seed in range(count)]


@pytest.mark.parametrize("room", [1, 80_000, 2**25])
def test_blocks_of_any_size_give_each_groups_own_scales_in_order(room, monkeypatch):
    """A system has 35 kB: one a block, three, or all of them."""
    monkeypatch.setattr(groups, "TOGETHER_BYTES", room)
    given = problems(SolverSpec())
    solution = solve_groups(given)
    assert "solved together" in solution.report.reason
    least = [torch.linalg.pinv(system.operator.dense()) @ system.rhs for system, _ in given]
    torch.testing.assert_close(solution.scale, torch.cat(least))


def test_groups_that_miss_the_tolerance_together_are_solved_alone():
    given = problems(SolverSpec(tolerance=1e-18))
    solution = solve_groups(given)
    assert "solved together" not in solution.report.reason
    assert not solution.report.converged
    alone = [solve(system, spec) for system, spec in given]
    assert torch.equal(solution.scale, torch.cat([each.scale for each in alone]))
    worst = max(each.report.relative_residual for each in alone)
    assert solution.report.relative_residual == worst


@pytest.mark.parametrize("seed", range(4))
def test_small_groups_of_signs_have_features_to_spare(seed):
    """Of 96 groups of 9 equations with 14 random signs each, one or the other was singular."""
    torch.manual_seed(seed)
    model = nn.Conv2d(96, 96, 3, groups=96).eval()
    (report,) = bnrecon.reconstruct(model, "sign", seed=seed).layers
    assert report.converged
    assert report.width == 9 + 24
