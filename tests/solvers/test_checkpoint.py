"""Iterative solves that resume where another process stopped."""

import dataclasses

import pytest
import torch
from random_layer import Kept, gaussian, interrupted

from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64
from bnrecon.solvers import iterative
from bnrecon.solvers.register import SOLVERS
from bnrecon.solvers.solving import solve
from bnrecon.solvers.spec import SolverSpec

RESUMABLE = [name for name, solver in SOLVERS.items() if solver.resumable]


def corrected(state):
    return state.iterations > 0


@pytest.fixture
def system():
    matrix = KhatriRao(gaussian(900, 48), gaussian(900, 12, seed=1))
    return linear_system(matrix, gaussian(48, 12, seed=2))


def test_both_matrix_free_solvers_are_resumable():
    assert {"matrix_free", "minimum_norm"} == set(RESUMABLE)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda state: state.inner.step == 1,
        lambda state: state.inner.step == 20,
        corrected,
        lambda state: corrected(state) and state.inner.step == 20,
    ],
    ids=["at once", "in the first correction", "after it", "in the second"],
)
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT64], ids=lambda precision: precision.name)
@pytest.mark.parametrize("name", RESUMABLE)
def test_interrupted_solve_ends_at_the_same_numbers(system, name, precision, wanted, monkeypatch):
    monkeypatch.setattr(iterative, "precision_schedule", lambda device: [precision, FLOAT64])
    monkeypatch.setitem(iterative.GAIN, "float64", 1e-6)
    spec = SolverSpec(name, tolerance=1e-12)
    kept = interrupted(system, spec, wanted)
    begun, kept.wanted = kept.state, lambda state: state.iterations < begun.iterations
    resumed, whole = solve(system, spec, kept), solve(system, spec)
    assert torch.equal(resumed.scale, whole.scale)
    assert resumed.report.iterations == whole.report.iterations > begun.iterations
    assert resumed.report.precision == whole.report.precision


@pytest.mark.parametrize("name", RESUMABLE)
def test_iterations_before_an_interruption_are_not_repeated(system, name):
    spec, steps = SolverSpec(name, tolerance=1e-12), []
    kept = interrupted(system, spec, lambda state: state.inner.step == 20)
    kept.wanted = lambda state: steps.append(state.inner.step)
    solve(system, spec, kept)
    assert steps[0] == 21


def test_resumed_solve_starts_from_the_saved_state(system):
    """With the solution as its state no iteration remains."""
    kept = interrupted(system, SolverSpec("matrix_free", tolerance=1e-12), corrected)
    before = kept.state.iterations
    again = solve(system, SolverSpec("matrix_free", tolerance=0.5), kept)
    assert again.report.iterations == before
    assert again.report.converged


def test_state_with_more_precisions_continues_in_the_next_one(system, every_precision, monkeypatch):
    spec = SolverSpec("matrix_free", tolerance=1e-12)
    kept = interrupted(system, spec, corrected)
    monkeypatch.setattr(iterative, "precision_schedule", lambda device: [FLOAT32, FLOAT64])
    for remaining, precisions in ((3, "float32"), (2, "float32"), (1, "float64")):
        state = Kept(lambda state: False)
        state.state = dataclasses.replace(kept.state, precisions_remaining=remaining, names=())
        report = solve(system, spec, state).report
        assert report.converged
        assert report.precision.startswith(precisions)


def test_inner_solve_in_a_missing_precision_restarts(system, monkeypatch):
    monkeypatch.setattr(iterative, "BF16_ENTRIES", 0)
    monkeypatch.setattr(iterative, "precision_schedule", lambda device: [BFLOAT16, FLOAT64])
    spec, steps = SolverSpec("matrix_free", tolerance=1e-12), []
    kept = interrupted(system, spec, lambda state: state.inner.step == 5)
    monkeypatch.setattr(iterative, "precision_schedule", lambda device: [FLOAT32, FLOAT64])
    kept.wanted = lambda state: steps.append(state.inner.step)
    assert solve(system, spec, kept).report.converged
    assert steps[0] == 1
