"""Reports recompute the residual and do not trust the solver."""

import dataclasses

import numpy as np
import pytest
import torch
from random_layer import random_layer

from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import SOLVERS, SolverSpec, iterative, register_solver, solve
from bnrecon.solvers.diagnosis import diagnose
from bnrecon.solvers.solving import relative_residual

SHAPE = LayerShape(6, 5, (3, 3))  # n = 270


def random_system():
    return random_layer("he_normal", SHAPE, 405)[-1]


@pytest.mark.parametrize(("share", "converged"), [(0.9, True), (1.1, False), (9.0, False)])
def test_solution_has_converged_up_to_the_tolerance(share, converged):
    @register_solver("off", memory=lambda rows, columns: 0)
    def off(system, spec):
        least = torch.linalg.pinv(system.operator.dense()) @ system.rhs
        return least * (1 + share * spec.tolerance), 0

    system = random_system()
    report = solve(system, SolverSpec("off", tolerance=1e-4)).report
    assert SOLVERS["off"].norm == "not stated"
    assert report.relative_residual == pytest.approx(share * 1e-4, rel=1e-6)
    assert report.converged == converged


def test_non_finite_scales_are_refused():
    @register_solver("broken", memory=lambda rows, columns: 0)
    def broken(system, spec):
        return torch.full((405,), float("nan"), dtype=torch.float64), 0

    with pytest.raises(RunError, match=r"scales that are not finite.*: correct the solver"):
        solve(random_system(), "broken")


@pytest.mark.parametrize(
    ("returned", "seen"),
    [
        (torch.zeros(405, 1), r"float32 of shape \(405, 1\)"),
        (np.zeros(405), "ndarray"),
    ],
    ids=["column", "numpy"],
)
def test_scales_of_another_shape_or_type_are_refused_with_the_solver_name(returned, seen):
    @register_solver("other", memory=lambda rows, columns: 0)
    def other(system, spec):
        return returned, 0

    with pytest.raises(UserError, match=rf"^solver other: its scales are {seen}; .* \(405,\)$"):
        solve(random_system(), SolverSpec("other"))


def test_drifted_residual_does_not_end_the_solve(monkeypatch):
    """The second update claims a residual of 0, which is recomputed before it counts.

    The first call is no update, as it starts from x = 0.
    """
    line_search, updates = iterative._line_search, []

    def drifted(exact, x, residual, direction):
        updates.append(residual)
        if len(updates) == 2:
            return x, 0 * residual
        return line_search(exact, x, residual, direction)

    monkeypatch.setattr(iterative, "_line_search", drifted)
    system = random_system()
    assert solve(system, SolverSpec("matrix_free")).report.converged
    assert len(updates) > 2


@pytest.mark.parametrize("unit", [1.0, 1e-165, 1e165])
def test_residual_of_any_unit_and_precision_is_that_of_float64(unit):
    """Squares of a small right-hand side underflow; float32 has residuals of 0 by chance."""
    system = random_layer("he_normal", LayerShape(3, 2), 6)[-1]
    system = dataclasses.replace(system, rhs=unit * system.rhs)
    zero, half = torch.zeros(6).double(), 0.5 * unit * torch.ones(6).double()
    assert relative_residual(system, zero) == pytest.approx(1.0, rel=1e-14)
    missed = (system.operator.dense() @ half - system.rhs) / unit
    expected = float(missed.norm() / (system.rhs / unit).norm())
    assert relative_residual(system, half) == pytest.approx(expected, rel=1e-12)
    if unit == 1.0:
        single = dataclasses.replace(
            system, operator=system.operator.to(FLOAT32), rhs=system.rhs.float()
        )
        assert relative_residual(single, half.float()) == pytest.approx(expected, rel=1e-6)
        x = torch.linalg.solve(single.operator.dense(), single.rhs)
        assert relative_residual(single, x) > 1e-9


def test_full_rank_has_no_diagnosis():
    """Zero and repeated features are no cause if the others suffice."""
    for seed in range(5):
        assert diagnose(random_layer("sign", LayerShape(2, 3), 40, seed)[-1]) == ""
    assert "rank 4 of 6 equations" in diagnose(random_layer("sign", LayerShape(2, 3), 4)[-1])
