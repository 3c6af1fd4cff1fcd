"""Pruned solutions, against linear programming, NumPy and their promises."""

import itertools

import numpy as np
import pytest
import torch
from random_layer import gaussian, random_layer
from scipy.optimize import linprog

from bnrecon.construction.two_layer import linear_system
from bnrecon.features.register import DISTRIBUTIONS, choose_width
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import PRUNINGS
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.errors import UserError
from bnrecon.solvers.pruning import prune, prune_to, refit
from bnrecon.solvers.solving import relative_residual, solve
from bnrecon.solvers.spec import SolverSpec

N, WIDTH = 36, 54
SPEC = SolverSpec()


def system(seed=0, factors=None):
    """36 equations of 54 unknowns; ``factors`` scale the columns."""
    first, second = gaussian(2, WIDTH, 6, seed=seed)
    first = first if factors is None else first * factors
    return linear_system(KhatriRao(first, second), gaussian(6, 6, seed=seed + 100))


def kept(solution):
    return set(torch.nonzero(solution.scale)[:, 0].tolist())


def least_sum(made):
    """The least Σ |x_l| ‖m_l‖ among the solutions of M x = b, and its support."""
    matrix = made.operator.dense().numpy()
    cost = np.tile(np.linalg.norm(matrix, axis=0), 2)
    minimum = linprog(cost, A_eq=np.hstack([matrix, -matrix]), b_eq=made.rhs.numpy())
    x = np.subtract(*np.split(minimum.x, 2))
    return minimum.fun, set(np.flatnonzero(x).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_l1_keeps_n_features_as_linear_programming_does(seed):
    made = system(seed)
    solution = prune(made, SPEC, N, "l1")
    least, support = least_sum(made)
    norm = float((solution.scale.abs() * made.operator.column_norms()).sum())
    assert solution.report.converged
    assert least * (1 - 1e-9) <= norm <= 1.01 * least
    assert len(support) == N
    assert len(kept(solution) & support) >= N - 2
    whole = solve(made, SPEC).scale
    assert float((whole.abs() * made.operator.column_norms()).sum()) > 1.05 * least


@pytest.mark.parametrize("count", [10, 30, N, 45])
def test_refit_is_least_squares_on_the_kept_columns(count):
    made = system()
    index = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(1))[:count]
    solution = refit(made, SPEC, index)
    matrix = made.operator.dense().numpy()[:, index.numpy()]
    wanted, *_ = np.linalg.lstsq(matrix, made.rhs.numpy(), rcond=None)
    error = np.linalg.norm(matrix @ wanted - made.rhs.numpy()) / float(made.rhs.norm())
    assert kept(solution) == set(index.tolist())
    assert relative_residual(made, solution.scale) == pytest.approx(error, rel=1e-6, abs=1e-10)
    assert solution.report.relative_residual == pytest.approx(error, rel=1e-6, abs=1e-10)
    assert solution.report.converged == (count >= N)
    if count <= N:
        np.testing.assert_allclose(solution.scale[index].numpy(), wanted, rtol=1e-2, atol=1e-4)


def test_magnitude_keeps_the_largest_contributions_unchanged():
    made = system(factors=torch.logspace(-2, 2, WIDTH)[:, None])
    whole = solve(made, SPEC).scale
    contributions = whole.abs() * made.operator.column_norms()
    solution = prune(made, SPEC, 20, "magnitude")
    largest = contributions.argsort(descending=True)[:20]
    assert kept(solution) == set(largest.tolist())
    assert kept(solution) != set(whole.abs().argsort(descending=True)[:20].tolist())
    torch.testing.assert_close(solution.scale[largest], whole[largest], rtol=0, atol=0)


@pytest.mark.parametrize("method", ["iterative", "l1"])
def test_kept_features_do_not_depend_on_their_scale(method):
    scaled = system(factors=torch.logspace(-1, 1, WIDTH)[:, None])
    assert kept(prune(scaled, SPEC, 25, method)) == kept(prune(system(), SPEC, 25, method))


@pytest.mark.parametrize(("name", "method"), list(itertools.product(DISTRIBUTIONS, PRUNINGS)))
def test_every_method_keeps_the_requested_number_for_every_distribution(name, method):
    shape = LayerShape(6, 5, (1, 2))
    width = choose_width(name, shape, None, None, None)
    made = random_layer(name, shape, width)[-1]
    for count, solution in zip((40, 20), prune_to(made, SPEC, (40, 20), method), strict=True):
        assert len(kept(solution)) == count
        assert not solution.report.converged
        assert solution.report.diagnosis.startswith(f"approximated: {method} keeps {count} of ")
        assert solution.report.relative_residual == relative_residual(made, solution.scale) < 1


def test_pruning_methods_below_n_improve_on_random_and_each_other():
    errors = dict.fromkeys(("random", "refit", "iterative", "l1"), 0.0)
    for seed in range(5):
        made = system(seed)
        errors["random"] += refit(made, SPEC, torch.arange(30)).report.relative_residual
        for method in ("refit", "iterative", "l1"):
            errors[method] += prune(made, SPEC, 30, method).report.relative_residual
    assert errors["random"] > 1.5 * errors["refit"]
    assert errors["refit"] > 1.5 * max(errors["iterative"], errors["l1"])


@pytest.mark.parametrize("method", PRUNINGS)
def test_keeping_all_features_is_no_pruning(method):
    torch.testing.assert_close(
        prune(system(), SPEC, WIDTH, method).scale, solve(system(), SPEC).scale, rtol=0, atol=0
    )


@pytest.mark.parametrize("method", PRUNINGS)
def test_regenerated_features_are_pruned_like_stored_ones(method):
    shape = LayerShape(6, 6)
    solutions = []
    for storage in ("memory", "regenerate"):
        made = random_layer("sign", shape, 54, storage=storage)[-1]
        solutions.append(prune(made, SPEC, 30, method))
    torch.testing.assert_close(solutions[0].scale, solutions[1].scale, rtol=1e-4, atol=1e-5)


def test_zero_target_keeps_no_feature():
    made = system()
    zero = linear_system(made.matrix, torch.zeros(6, 6).double())
    for method in PRUNINGS:
        solution = prune(zero, SPEC, 20, method)
        assert kept(solution) == set()
        assert solution.report.converged


@pytest.mark.parametrize(("count", "method"), [(7, "bogus"), (0, "magnitude"), (-2, "l1")])
def test_unknown_methods_and_counts_are_refused(count, method):
    with pytest.raises(UserError, match=r"bogus|count="):
        prune(system(), SPEC, count, method)
