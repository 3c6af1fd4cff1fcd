"""One contract for every feature distribution, solver and layer shape, checked by an independent computation."""

import pytest
import torch

from bnrecon.construction.two_layer import TargetLayer, two_layer_system
from bnrecon.errors import RunError, UserError
from bnrecon.features import DISTRIBUTIONS, LayerShape, choose_width, draw
from bnrecon.solvers import SOLVERS, SolverOptions, Unsuitable, choose, solve

CPU = torch.device("cpu")
SHAPES = [LayerShape(6, 5, (3, 3)), LayerShape(8, 3, (3, 3)), LayerShape(10, 12)]
FEATURES = ["he_normal", "he_uniform", "orthogonal", "sparse_he_normal", "id_cond", "ortho_cond"]
# Largest relative error of the weight, per solver: float64 solvers against float32 LBFGS as the paper has it.
TOLERANCE = {"lu": 1e-9, "refined": 1e-9, "matrix_free": 1e-9, "closed_form": 1e-12, "lbfgs": 1e-4, "lu_lbfgs": 3e-2}
SQUARE = {"lu", "refined", "lu_lbfgs"}


def problem(name, shape, width, seed=0):
    weight = torch.randn(
        shape.outputs, shape.inputs, *shape.kernel, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    target = TargetLayer("layer", weight, torch.zeros(shape.outputs))
    features = draw(name, shape, width, seed, 0)
    return target, features, two_layer_system(target, features, CPU, DISTRIBUTIONS[name].orthogonal)


def independent_error(target, features, scales):
    """‖outer ∘ Σ_l B_l γ_l A_l - W‖ / ‖W‖ written out, without the operator."""
    first, second = (w.double() for w in features.weights())
    reached = torch.einsum("o,oluv,l,lc->ocuv", scales.outer, second, scales.inner, first)
    return float((reached - target.weight).norm() / target.weight.norm())


def combinations():
    for name in FEATURES:
        orthogonal = DISTRIBUTIONS[name].orthogonal
        for solver in TOLERANCE:
            if (solver == "closed_form") != orthogonal and solver == "closed_form":
                continue
            for shape in SHAPES:
                yield pytest.param(name, solver, shape, id=f"{name}-{solver}-{shape.outputs}x{shape.inputs}x{shape.taps}")


@pytest.mark.parametrize(("name", "solver", "shape"), list(combinations()))
def test_every_solver_rebuilds_every_layer_from_every_distribution(name, solver, shape):
    width = choose_width(name, shape, width="maximum") if solver in SQUARE else choose_width(name, shape)
    target, features, system = problem(name, shape, width)
    solution = solve(solver, system)
    scales = system.scales(solution.scale)
    error = independent_error(target, features, scales)
    assert error < TOLERANCE[solver]
    report = solution.report
    assert report.relative_residual == pytest.approx(error, rel=1e-2, abs=1e-12)
    assert report.converged == (error <= 1e-10)
    assert report.solver == solver
    assert solution.scale.dtype == torch.float64
    assert report.seconds > 0
    assert report.norm


@pytest.mark.parametrize("name", ["he_normal", "he_uniform", "orthogonal", "sparse_he_normal", "id_cond"])
@pytest.mark.parametrize("solver", ["lu", "refined"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_minimum_width_suffices(name, solver, shape):
    """Burkholz 2024, Thm 2.2: n - c2 + 1 features and the second scales."""
    target, features, system = problem(name, shape, shape.minimum_width)
    assert system.operator.shape == (shape.minimum_width, shape.minimum_width)
    scales = system.scales(solve(solver, system).scale)
    assert independent_error(target, features, scales) < 1e-8
    assert (scales.outer != 1).any()


def test_the_closed_form_of_eq_3_is_exact():
    shape = SHAPES[0]
    target, features, system = problem("id_cond", shape, shape.minimum_width)
    assert independent_error(target, features, system.scales(solve("closed_form", system).scale)) < 1e-14


def test_a_pathological_target_of_eq_3_is_named():
    shape = LayerShape(3, 4)
    weight = torch.ones(3, 4, 1, 1, dtype=torch.float64)
    weight[1, 0] = 0
    features = draw("id_cond", shape, shape.minimum_width, 0, 0)
    system = two_layer_system(TargetLayer("t", weight, torch.zeros(3)), features, CPU, orthogonal=True)
    with pytest.raises(RunError, match="pathological"):
        solve("closed_form", system)


def test_one_feature_fewer_than_the_minimum_does_not_suffice():
    shape = SHAPES[0]
    target, features, system = problem("he_normal", shape, shape.minimum_width - 1)
    solution = solve("matrix_free", system, SolverOptions(max_iterations=1000))
    assert not solution.report.converged
    assert independent_error(target, features, system.scales(solution.scale)) > 1e-4


def test_a_solver_that_falls_short_says_so():
    _, _, system = problem("he_normal", SHAPES[0], 405)
    report = solve("matrix_free", system, SolverOptions(max_iterations=3)).report
    assert not report.converged
    assert report.iterations == 3
    assert report.relative_residual > 1e-3


def test_lu_of_a_wide_system_is_refused_with_the_way_out():
    _, _, system = problem("he_normal", SHAPES[0], 405)
    for solver in SQUARE:
        with pytest.raises(Unsuitable, match=r"features\.width=maximum"):
            solve(solver, system)


def test_the_closed_form_is_refused_where_m_is_not_orthogonal():
    _, _, system = problem("he_normal", SHAPES[0], 270)
    with pytest.raises(Unsuitable, match="closed_form"):
        solve("closed_form", system)


def test_a_singular_system_is_a_clear_failure():
    shape = LayerShape(4, 3, (3, 3))
    target = TargetLayer("t", torch.randn(4, 3, 3, 3, dtype=torch.float64), torch.zeros(4))
    features = draw("sparse_he_normal", shape, shape.equations, 0, 0, strict=True)
    system = two_layer_system(target, features, CPU, orthogonal=False)
    with pytest.raises(RunError, match="singular"):
        solve("lu", system)


def test_an_unknown_solver_is_named_with_the_nearest():
    _, _, system = problem("he_normal", SHAPES[2], 180)
    with pytest.raises(UserError, match="did you mean 'matrix_free'"):
        solve("matrixfree", system)


def test_refined_lu_reaches_float64_on_a_hundred_draws():
    """Plain refinement fails on some draws; GMRES preconditioned by the float32 factors must not."""
    shape = LayerShape(6, 6, (3, 3))
    for seed in range(100):
        _, _, system = problem("he_normal", shape, shape.equations, seed)
        assert solve("refined", system).report.relative_residual < 1e-10, seed


def test_auto_takes_the_cheapest_exact_solver():
    memory = 16 * 10**9
    assert choose(36864, 55296, False, memory) == "matrix_free"
    assert choose(1000, 1000, True, memory) == "closed_form"
    assert choose(1000, 1000, False, memory) == "lu"
    assert choose(20000, 20000, False, memory) == "refined"
    assert choose(36864, 36864, False, memory) == "matrix_free"  # 16 GB hold no factors of that size
    assert choose(90000, 90000, False, 10**15) == "matrix_free"  # beyond 32-bit indexing
    assert set(TOLERANCE) <= set(SOLVERS)


def test_a_few_features_more_than_equations_are_factorized_not_iterated():
    shape = LayerShape(8, 8, (3, 3))
    target, features, system = problem("he_normal", shape, shape.equations + 5)
    solution = solve("auto", system)
    assert solution.report.solver == "lu"
    assert solution.report.converged
    assert (solution.scale[-5:] == 0).all()
    assert independent_error(target, features, system.scales(solution.scale)) < 1e-9


def test_a_system_too_large_for_the_machine_is_refused_beforehand(monkeypatch):
    from bnrecon.solvers import base

    monkeypatch.setattr(base, "available_memory", lambda device: 10_000)
    _, _, system = problem("he_normal", SHAPES[0], 270)
    with pytest.raises(RunError, match=r"needs .* are free; use solver=matrix_free"):
        solve("lu", system)
