"""Iterative solves that go on where another process stopped."""

import dataclasses

import pytest
import torch

from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64
from bnrecon.solvers import iterative
from bnrecon.solvers.register import SOLVERS
from bnrecon.solvers.solving import solve
from bnrecon.solvers.spec import SolverSpec

RESUMABLE = [name for name, solver in SOLVERS.items() if solver.resumable]


class Kept:
    """A checkpoint in memory, which interrupts the solve after some corrections."""

    def __init__(self, corrections):
        self.state, self.left = None, corrections

    def load(self):
        return self.state

    def save(self, state):
        self.state, self.left = state, self.left - 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture
def system():
    draw = torch.Generator().manual_seed(0)
    second, first = (torch.randn(900, size, generator=draw).double() for size in (48, 12))
    target = torch.randn(48, 12, generator=draw).double()
    return linear_system(KhatriRao(second, first), target)


def test_both_matrix_free_solvers_are_resumable():
    assert {"matrix_free", "minimum_norm"} == set(RESUMABLE)


@pytest.mark.parametrize("corrections", [1, 2])
@pytest.mark.parametrize("name", RESUMABLE)
def test_an_interrupted_solve_goes_on_to_the_same_numbers(system, name, corrections):
    spec, kept = SolverSpec(name, tolerance=1e-12), Kept(corrections)
    with pytest.raises(KeyboardInterrupt):
        solve(system, spec, kept)
    assert kept.state is not None
    assert kept.state.iterations > 0
    resumed, whole = solve(system, spec, kept), solve(system, spec)
    assert torch.equal(resumed.scale, whole.scale)
    assert resumed.report.iterations == whole.report.iterations > kept.state.iterations
    assert resumed.report.precision == whole.report.precision


def test_a_resumed_solve_starts_from_what_was_saved(system):
    """With the solution as its state it has nothing left to do."""
    spec, kept = SolverSpec("matrix_free", tolerance=1e-12), Kept(2)
    with pytest.raises(KeyboardInterrupt):
        solve(system, spec, kept)
    before = kept.state.iterations
    kept.left = 100
    again = solve(system, SolverSpec("matrix_free", tolerance=0.5), kept)
    assert again.report.iterations == before
    assert again.report.converged


def test_a_state_of_a_machine_with_more_precisions_goes_on_in_the_next_one_there_is(
    system, monkeypatch
):
    monkeypatch.setattr(iterative, "SMALL", 0)
    monkeypatch.setattr(
        iterative, "precision_schedule", lambda device: [BFLOAT16, FLOAT32, FLOAT64]
    )
    spec, kept = SolverSpec("matrix_free", tolerance=1e-12), Kept(1)
    with pytest.raises(KeyboardInterrupt):
        solve(system, spec, kept)
    monkeypatch.setattr(iterative, "precision_schedule", lambda device: [FLOAT32, FLOAT64])
    for left, precisions in ((3, "float32"), (2, "float32"), (1, "float64")):
        state = Kept(100)
        state.state = dataclasses.replace(kept.state, left=left, names=())
        report = solve(system, spec, state).report
        assert report.converged
        assert report.precision.startswith(precisions)
