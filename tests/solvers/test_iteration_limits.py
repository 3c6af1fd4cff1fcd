"""Reports say whether a solver stopped at its largest number of iterations."""

import dataclasses

import pytest
from random_layer import random_layer

from bnrecon.features.shapes import LayerShape
from bnrecon.solvers import SOLVERS, SolverSpec, lbfgs, least_squares, solve

SHAPE = LayerShape(6, 5, (3, 3))  # 270 equations
DIRECT = {"lu", "closed_form"}
WIDTH = dict.fromkeys(("lu", "refined", "lu_lbfgs", "lu_lbfgs_defaults"), 270)


def system_of(width, features="he_normal"):
    return random_layer(features, SHAPE, width)[-1]


def system_for(solver):
    if solver == "closed_form":
        return system_of(270, "id_cond")
    return system_of(WIDTH.get(solver, 405))


@pytest.fixture(autouse=True)
def _iterative_least_squares(monkeypatch):
    monkeypatch.setattr(least_squares, "LARGEST", 10)


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"lu_lbfgs_defaults"}))  # ends before
def test_iterative_solver_reports_its_limit(solver):
    report = solve(system_for(solver), SolverSpec(solver, max_iterations=2)).report
    assert report.at_limit == (solver not in DIRECT)
    assert report.iterations == (0 if solver in DIRECT else 2)


@pytest.mark.parametrize(
    "solver", ["refined", "matrix_free", "minimum_norm", "least_squares", "lu_lbfgs"]
)
def test_solver_that_stops_by_itself_is_not_at_its_limit(solver):
    report = solve(system_for(solver), SolverSpec(solver)).report
    assert not report.at_limit
    assert report.iterations > 0


@pytest.mark.parametrize("solver", ["refined", "matrix_free"])
def test_reaching_the_tolerance_in_the_last_iteration_is_no_limit(solver):
    system = system_for(solver)
    needed = solve(system, SolverSpec(solver)).report.iterations
    report = solve(system, SolverSpec(solver, max_iterations=needed)).report
    assert report.converged
    assert not report.at_limit


def test_paper_lbfgs_has_its_own_limit_unless_an_option_replaces_it(monkeypatch):
    assert lbfgs.MAX_ITERATIONS == 2000
    monkeypatch.setattr(lbfgs, "THOROUGH", dataclasses.replace(lbfgs.THOROUGH, iterations=30))
    system = system_of(270)
    default, more = (
        solve(system, SolverSpec("lbfgs", max_iterations=limit)).report for limit in (None, 60)
    )
    assert (default.iterations, default.at_limit) == (30, True)
    assert (more.iterations, more.at_limit) == (60, True)
    assert more.relative_residual < default.relative_residual
