"""Systems of groups solved together, against each solved alone."""

import pytest
import torch
from random_layer import random_layer
from torch import nn

import bnrecon
from bnrecon.features import FeatureSpec
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction import groups
from bnrecon.reconstruction.groups import solve_groups, weakest
from bnrecon.runtime.errors import RunError
from bnrecon.solvers import SolverSpec, solve
from bnrecon.solvers.report import SolverReport

SHAPE = LayerShape(2, 3, (3, 3))  # 54 equations


def problems(spec):
    return [(random_layer("he_normal", SHAPE, 81, seed)[-1], spec) for seed in range(5)]


@pytest.mark.parametrize("room", [1, 80_000, 2**25])
def test_blocks_of_any_size_give_each_groups_scales_in_order(room, monkeypatch):
    """A system has 35 kB: blocks of one, three or all systems."""
    monkeypatch.setattr(groups, "TOGETHER_BYTES", room)
    systems = problems(SolverSpec())
    solution = solve_groups(systems)
    assert "solved together" in solution.report.reason
    least = [torch.linalg.pinv(system.operator.dense()) @ system.rhs for system, _ in systems]
    torch.testing.assert_close(solution.scale, torch.cat(least))


def test_groups_beyond_tolerance_are_solved_alone():
    systems = problems(SolverSpec(tolerance=1e-18))
    solution = solve_groups(systems)
    assert "solved together" not in solution.report.reason
    assert not solution.report.converged
    alone = [solve(system, spec) for system, spec in systems]
    assert torch.equal(solution.scale, torch.cat([each.scale for each in alone]))
    worst = max(each.report.relative_residual for each in alone)
    assert solution.report.relative_residual == worst


def test_report_of_a_layer_is_that_of_its_worst_failed_group():
    """Tolerances of groups differ: the largest residual may be that of a solved one."""
    solved = SolverReport("solved", 1e-3, iterations=5, seconds=1.0, converged=True, norm="")
    failed = SolverReport("failed", 1e-5, iterations=7, seconds=2.0, converged=False, norm="")
    worse = SolverReport("worse", 1e-4, iterations=6, seconds=4.0, converged=False, norm="")
    report = weakest([solved, failed, worse])
    assert (report.solver, report.relative_residual, report.converged) == ("worse", 1e-4, False)
    assert (report.iterations, report.seconds) == (7, 7.0)


@pytest.mark.parametrize("seed", range(4))
def test_small_groups_of_signs_have_spare_features(seed):
    """With 14 random signs for 9 equations, some of 96 groups were singular."""
    torch.manual_seed(seed)
    model = nn.Conv2d(96, 96, 3, groups=96).eval()
    (report,) = bnrecon.reconstruct(model, "sign", seed=seed).layers
    assert report.converged
    assert report.width == 9 + 64


def test_singular_groups_are_noted_with_their_unavoidable_error(caplog):
    """The error is the distance of a group's weights from the range of M."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, groups=64)).eval()
    spec = FeatureSpec("sign", width=12)
    (planned,) = bnrecon.reconstruction.plan_layers(model, spec).layers
    lost = []
    for target, pair in zip(planned.folded.target.split(), planned.draw_groups(), strict=True):
        matrix = feature_operator(pair, torch.float64, torch.device("cpu")).dense()
        wanted = target.rows().flatten()
        missed = wanted - matrix @ (torch.linalg.pinv(matrix) @ wanted)
        lost.append(float(missed.norm() / wanted.norm()))
    assert 0 < sum(share > 1e-3 for share in lost) < 64  # some groups of the layer, not all
    rebuilt = bnrecon.reconstruct(model, spec)
    (report,) = rebuilt.layers
    assert not report.converged
    assert report.relative_error == pytest.approx(max(lost), rel=1e-6)
    said = f"layer 0 did not converge, its weights are off by {max(lost):.1e}: "
    assert [note for note in rebuilt.notes if note.startswith(said)]
    levels = [each.levelname for each in caplog.records if each.getMessage().startswith(said)]
    assert levels == ["WARNING"]
    images = torch.randn(4, 64, 8, 8, generator=torch.Generator().manual_seed(1))
    with pytest.raises(RunError, match="not converged: 0") as caught:
        bnrecon.reconstruct(model, spec, images=images)
    assert caught.value.reconstruction.layers[0].relative_error == report.relative_error
