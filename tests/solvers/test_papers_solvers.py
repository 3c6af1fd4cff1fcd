"""The papers' solvers take the described steps in the described precision."""

import dataclasses

import pytest
import torch
from random_layer import gaussian, random_layer

from bnrecon.features.shapes import LayerShape
from bnrecon.operators.system import Scales
from bnrecon.runtime.hardware import use_threads
from bnrecon.solvers import SolverSpec, lbfgs, solve

SHAPE = LayerShape(6, 5, (3, 3))  # 270 equations


@pytest.fixture(autouse=True)
def one_thread():
    """Small systems are solved on one thread; rounding is compared here."""
    with use_threads(1):
        yield


@pytest.fixture
def minimized(monkeypatch):
    """The matrix, right-hand side and start that each solve passes to LBFGS."""
    solves, minimize = [], lbfgs.minimize

    def watched(matvec, rmatvec, rhs, start, *spec):
        columns = torch.eye(len(start)).to(rhs)
        solves.append((torch.stack([matvec(column) for column in columns], 1), rhs, start.clone()))
        return minimize(matvec, rmatvec, rhs, start, *spec)

    monkeypatch.setattr(lbfgs, "minimize", watched)
    return solves


@pytest.fixture
def steps(monkeypatch):
    """Settings, start, error and gradient of each LBFGS step."""
    seen = []

    class Watched(torch.optim.LBFGS):
        def step(self, closure):
            (x,) = self.param_groups[0]["params"]
            error = float(closure())
            seen.append((self.defaults, x.detach().clone(), error, x.grad.clone()))
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "LBFGS", Watched)
    return seen


def in_float32(system):
    return system.operator.dense().float(), system.rhs.float()


def test_lbfgs_after_lu_starts_from_the_float32_solution(minimized):
    system = random_layer("he_normal", SHAPE, 270)[-1]
    solve(system, SolverSpec("lu_lbfgs"))
    ((matrix, rhs, start),) = minimized
    expected, expected_rhs = in_float32(system)
    torch.testing.assert_close(matrix, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(rhs, expected_rhs)
    assert start.dtype == torch.float32
    residual = (expected.double() @ start.double() - system.rhs).norm() / system.rhs.norm()
    wanted = torch.linalg.solve(expected, expected_rhs).double()
    direct = (expected.double() @ wanted - system.rhs).norm() / system.rhs.norm()
    assert residual > 1e-7  # a solution in float64, rounded, would be closer
    assert residual == pytest.approx(float(direct), rel=0.2)


@pytest.mark.parametrize(("name", "begins"), [("svd_lbfgs", "zero"), ("svd_lu_lbfgs", "lu")])
def test_svd_scales_the_system_to_condition_1(minimized, name, begins):
    """M V S^-1 is U up to the SVD's rounding, which LBFGS has to solve for too."""
    system = random_layer("he_normal", SHAPE, 405)[-1]
    solve(system, SolverSpec(name))
    ((matrix, rhs, start),) = minimized
    dense, expected_rhs = in_float32(system)
    u, values, vh = torch.linalg.svd(dense, full_matrices=False)
    assert torch.equal(rhs, expected_rhs)
    torch.testing.assert_close(matrix, dense @ (vh.T / values), rtol=1e-5, atol=1e-5)
    scaled = torch.linalg.svdvals(matrix.double())
    assert 1e-7 < float(scaled[0] - scaled[-1]) < 1e-2
    if begins == "zero":
        assert not start.any()
    else:
        torch.testing.assert_close(start, torch.linalg.solve(matrix, rhs), rtol=1e-3, atol=1e-4)


def test_lbfgs_alone_starts_from_zero(minimized):
    solve(random_layer("he_normal", SHAPE, 405)[-1], SolverSpec("lbfgs"))
    assert not minimized[0][-1].any()


def test_lbfgs_has_its_documented_settings(steps):
    solve(random_layer("he_normal", SHAPE, 405)[-1], SolverSpec("lbfgs"))
    named = ("lr", "max_iter", "history_size", "line_search_fn")
    assert [steps[0][0][name] for name in named] == [1, 2000, 100, "strong_wolfe"]


def test_lbfgs_receives_the_gradient_of_the_error(steps):
    """The gradient of ‖M x - b‖² / mean(b²), against autograd."""
    matrix, rhs = gaussian(9, 9), gaussian(9, seed=1)
    spec = SolverSpec("lbfgs", max_iterations=2)
    lbfgs.minimize(matrix.matmul, matrix.T.matmul, rhs, torch.ones(9).double(), spec)
    _, x, _, gradient = steps[0]
    x.requires_grad_()
    ((matrix @ x - rhs).square().sum() / rhs.square().mean()).backward()
    torch.testing.assert_close(gradient, x.grad)


def test_pytorch_defaults_are_used_with_the_mean_error(steps):
    defaults = torch.optim.LBFGS([torch.zeros(1)]).defaults
    matrix, rhs = gaussian(9, 9).float(), gaussian(9, seed=1).float()
    start = torch.ones(9, requires_grad=True)
    spec = SolverSpec("lu_lbfgs_defaults")
    result = lbfgs.minimize(matrix.mv, matrix.T.mv, rhs, start.detach(), spec, lbfgs.PYTORCHS)
    ((settings, _, first_error, gradient),) = steps
    assert settings == defaults | {"max_eval": defaults["max_iter"] * 5 // 4}
    assert result.iterations <= defaults["max_iter"] == 20
    torch.nn.functional.mse_loss(matrix @ start, rhs).backward()
    torch.testing.assert_close(gradient, start.grad)
    error = (matrix @ start.detach() - rhs).square().mean()
    assert first_error == pytest.approx(float(error))


def test_weight_error_is_minimized_over_both_scales_as_by_autograd():
    system = random_layer("he_normal", LayerShape(4, 3), 9)[-1]
    start = Scales(gaussian(9), gaussian(4, seed=1))
    ended, _ = lbfgs.minimize_weight_error(system, start, SolverSpec(max_iterations=3))
    inner, outer = (part.float().requires_grad_() for part in (start.inner, start.outer))
    optimizer = torch.optim.LBFGS([inner, outer], max_iter=3)

    def closure():
        optimizer.zero_grad()
        reached = (system.matrix.dense().float() @ inner).reshape(4, 3)
        error = (outer[:, None] * reached - system.weight.float()).square().mean()
        error.backward()
        return error

    optimizer.step(closure)
    torch.testing.assert_close(ended.inner, inner.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ended.outer, outer.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("solver", ["lbfgs", "svd_lbfgs", "lu_lbfgs", "svd_lu_lbfgs"])
@pytest.mark.parametrize("unit", [1e-30, 1e-8, 1e4, 1e100])
def test_lbfgs_does_not_depend_on_the_unit_of_the_weights(solver, unit):
    system = random_layer("he_normal", LayerShape(4, 3), 12)[-1]
    errors = []
    for scale in (1.0, unit):
        scaled = dataclasses.replace(system, rhs=scale * system.rhs)
        errors.append(solve(scaled, SolverSpec(solver)).report.relative_residual)
    assert max(errors) < 1e-4
    assert errors[1] < 10 * errors[0] + 1e-6
