"""One contract for every distribution, solver and shape, checked independently."""

import pytest
import torch
from random_layer import gaussian, random_layer

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer, linear_system
from bnrecon.features import pair
from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS, choose_width
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.precision import FLOAT64
from bnrecon.solvers import SOLVERS, Unsuitable, base, choose, factorization, least_squares, solve
from bnrecon.solvers.factorization import factorize
from bnrecon.solvers.register import lookup
from bnrecon.solvers.spec import SolverSpec

CPU = torch.device("cpu")
SHAPES = [LayerShape(6, 5, (3, 3)), LayerShape(8, 3, (3, 3)), LayerShape(10, 12)]
FEATURES = sorted(DISTRIBUTIONS)
# Largest relative error of the weight by solver; LBFGS runs in float32 as in the paper.
TOLERANCE = {
    "lu": 1e-9,
    "refined": 1e-9,
    "matrix_free": 1e-9,
    "minimum_norm": 1e-9,
    "least_squares": 1e-9,
    "closed_form": 1e-14,
    "lbfgs": 1e-4,
    "lu_lbfgs": 3e-2,
    "lu_lbfgs_defaults": 3e-2,
    "svd_lbfgs": 1e-3,
    "svd_lu_lbfgs": 1e-3,
}
SQUARE = {"lu", "refined", "lu_lbfgs", "lu_lbfgs_defaults"}


def independent_error(target, features, scales):
    """‖outer ∘ Σ_l B_l γ_l A_l - W‖ / ‖W‖, computed without the operator."""
    first, second = (w.double() for w in features.weights())
    reached = torch.einsum("o,oluv,l,lc->ocuv", scales.outer, second, scales.inner, first)
    return float((reached - target.weight).norm() / target.weight.norm())


def combinations():
    for name in FEATURES:
        for solver in TOLERANCE:
            if solver == "closed_form" and not DISTRIBUTIONS[name].orthogonal:
                continue
            for shape in SHAPES:
                yield pytest.param(
                    name,
                    solver,
                    shape,
                    id=f"{name}-{solver}-{shape.outputs}x{shape.inputs}x{shape.taps}",
                )


def test_every_registered_solver_is_tested():
    user_defined = {name for name, solver in SOLVERS.items() if solver.registered.user_defined}
    assert set(SOLVERS) - user_defined == set(TOLERANCE)
    assert {name for name in TOLERANCE if SOLVERS[name].square} == SQUARE


@pytest.mark.parametrize(("name", "solver", "shape"), list(combinations()))
def test_every_solver_rebuilds_every_layer_from_every_distribution(name, solver, shape):
    width = choose_width(name, shape, width="maximum" if solver in SQUARE else None)
    target, features, system = random_layer(name, shape, width)
    solution = solve(system, SolverSpec(solver))
    scales = system.scales(solution.scale)
    error = independent_error(target, features, scales)
    assert error < TOLERANCE[solver]
    report = solution.report
    assert report.relative_residual == pytest.approx(error, rel=1e-2, abs=1e-12)
    assert report.converged == (error <= 1e-10)
    assert report.solver == solver
    assert solution.scale.dtype == torch.float64
    assert report.norm


@pytest.mark.parametrize(
    "name", ["he_normal", "he_uniform", "orthogonal", "sparse_he_normal", "id_cond"]
)
@pytest.mark.parametrize("solver", ["lu", "refined"])
@pytest.mark.parametrize("shape", SHAPES)
def test_minimum_width_suffices(name, solver, shape):
    """Burkholz 2024, Theorem 2.2: n - c2 + 1 features and the second scales."""
    target, features, system = random_layer(name, shape, shape.minimum_width)
    assert system.operator.shape == (shape.minimum_width, shape.minimum_width)
    scales = system.scales(solve(system, SolverSpec(solver)).scale)
    assert independent_error(target, features, scales) < 1e-8
    assert (scales.outer != 1).any()


def test_pathological_target_of_eq_3_is_named():
    shape = LayerShape(3, 4)
    weight = torch.ones(3, 4, 1, 1, dtype=torch.float64)
    weight[1, 0] = 0
    features = draw("id_cond", shape, shape.minimum_width, 0, 0)
    system = layer_system(TargetLayer("t", weight, torch.zeros(3)), features, CPU, orthogonal=True)
    with pytest.raises(RunError, match="pathological"):
        solve(system, SolverSpec("closed_form"))


def test_lu_of_a_wide_system_is_refused_with_advice():
    _, _, system = random_layer("he_normal", SHAPES[0], 405)
    for solver in SQUARE:
        with pytest.raises(Unsuitable, match=r" width=maximum"):
            solve(system, SolverSpec(solver))


def test_auto_chooses_the_cheapest_exact_solver_with_a_reason(monkeypatch):
    memory = 16 * 10**9

    def picked(rows, columns, orthogonal=False, memory=memory):
        choice = choose(rows, columns, orthogonal, memory)
        assert choice.reason
        return choice.solver, choice.features

    assert picked(36864, 55296) == ("matrix_free", 55296)
    assert picked(36864, 37601) == ("matrix_free", 37601)
    assert picked(36864, 37000) == ("refined", 36864)  # an oversampling of 1.004
    assert picked(1000, 1000, orthogonal=True) == ("closed_form", 1000)
    assert picked(1000, 1000) == ("lu", 1000)
    assert picked(20000, 20000) == ("refined", 20000)
    assert picked(1000, 900) == ("least_squares", 900)
    assert picked(36864, 36864, memory=5 * 10**9) == ("matrix_free", 36864)
    monkeypatch.setattr(factorization, "onednn_is_faster", lambda _: False)
    assert "5.5 GB" in choose(36864, 36864, False, 5 * 10**9).reason
    assert (
        "too many for a dense LU"
        in choose(90000, 90000, False, 10**15, device=torch.device("meta")).reason
    )
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert picked(90000, 90000, memory=10**15) == ("refined", 90000)  # by panels
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert picked(90000, 90000, memory=10**15) == ("matrix_free", 90000)


def test_slightly_wide_systems_are_factorized():
    shape = LayerShape(8, 8, (3, 3))
    target, features, system = random_layer("he_normal", shape, shape.equations + 5)
    solution = solve(system, SolverSpec("auto"))
    assert solution.report.solver == "lu"
    assert solution.report.converged
    assert (solution.scale[-5:] == 0).all()
    assert independent_error(target, features, system.scales(solution.scale)) < 1e-9


def test_system_too_large_for_memory_is_refused_beforehand(monkeypatch):
    monkeypatch.setattr(base, "available_memory", lambda device: 10_000)
    _, _, system = random_layer("he_normal", SHAPES[0], 270)
    with pytest.raises(RunError, match=r"needs .* are free; use solver=matrix_free"):
        solve(system, SolverSpec("lu"))


WIDE = LayerShape(8, 12, (3, 3))  # 864 equations


def pseudo_inverse(system):
    return torch.linalg.pinv(system.operator.dense()) @ system.rhs


@pytest.mark.parametrize("name", ["he_normal", "orthogonal", "sparse_he_normal"])
@pytest.mark.parametrize("shape", [WIDE, LayerShape(6, 3, (3, 3)), LayerShape(9, 20)])
def test_minimum_norm_is_the_pseudo_inverse_in_any_precision(name, shape, every_precision):
    """X = M^T (M M^T)^-1 b to float64 accuracy, although inner solves run in bf16."""
    _, _, system = random_layer(name, shape, round(1.6 * shape.equations))
    solution = solve(system, SolverSpec("minimum_norm"))
    expected = pseudo_inverse(system)
    assert solution.report.precision.startswith("bfloat16")
    assert solution.report.norm == "minimum norm of the scales"
    assert (solution.scale - expected).norm() < 1e-8 * expected.norm()


def test_matrix_free_in_bf16_is_near_the_minimum_norm_and_says_so(every_precision):
    _, _, system = random_layer("he_normal", WIDE, 1296)
    solution = solve(system, SolverSpec("matrix_free"))
    expected = pseudo_inverse(system)
    assert solution.report.converged
    assert solution.report.norm == "near the minimum norm of the scales"
    assert solution.report.diagnosis == ""
    assert 1e-6 < (solution.scale - expected).norm() / expected.norm() < 0.05


def test_columns_are_scaled_where_their_norms_spread(every_precision):
    _, _, system = random_layer("he_normal", LayerShape(12, 3, (3, 3)), 486)
    report = solve(system, SolverSpec("matrix_free")).report
    assert "times their columns' norms" in report.norm
    norms = system.operator.column_norms()
    scaled, plain = (
        torch.linalg.cond(m) for m in (system.operator.dense() / norms, system.operator.dense())
    )
    assert scaled < 0.8 * plain


@pytest.mark.parametrize(
    ("solver", "shape", "width", "precisions"),
    [
        ("matrix_free", WIDE, 868, ["bfloat16", "float32"]),
        ("minimum_norm", WIDE, 868, ["bfloat16", "float32"]),
        ("matrix_free", LayerShape(16, 16, (3, 3)), 2351, ["bfloat16"]),  # 1.02 n
    ],
)
def test_precision_increases_only_where_bf16_stalls(
    solver, shape, width, precisions, every_precision
):
    report = solve(random_layer("he_normal", shape, width)[-1], SolverSpec(solver)).report
    assert report.precision.split(" then ")[:2] == precisions
    assert report.converged


@pytest.mark.parametrize("width", [200, 270, 300])
def test_least_squares_of_any_rank_is_the_pseudo_inverse(width):
    """With repeated and dead features it is still the least-squares solution of minimum norm."""
    _, _, system = deficient(width)
    solution = solve(system, SolverSpec("least_squares"))
    expected = pseudo_inverse(system)
    assert torch.allclose(
        solution.scale, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max())
    )
    assert not solution.report.converged


def deficient(width):
    """A system of 270 equations with 3 dead features and 30 repeated ones."""
    target, features, system = random_layer("he_normal", SHAPES[0], width)
    transposed, first = system.matrix.transposed.clone(), system.matrix.first.clone()
    transposed[:3] = 0
    transposed[40:70], first[40:70] = 2 * transposed[10:40], -first[10:40]
    return target, features, linear_system(KhatriRao(transposed, first, FLOAT64), target.rows())


def test_large_least_squares_avoids_the_dense_form(monkeypatch):
    monkeypatch.setattr(least_squares, "LARGEST", 10)
    _, _, system = deficient(200)
    expected = pseudo_inverse(system)
    reached = system.operator.matvec(solve(system, SolverSpec("least_squares")).scale)
    assert torch.allclose(reached, system.operator.matvec(expected), atol=1e-7)


def test_hopeless_system_is_diagnosed():
    _, _, system = deficient(300)
    report = solve(system, SolverSpec("matrix_free", max_iterations=3000)).report
    assert not report.converged
    assert "3 of 300 features are all-zero" in report.diagnosis
    assert "30 of 300 features repeat others up to a factor" in report.diagnosis
    assert "rank 267 of 270 equations" in report.diagnosis
    with pytest.raises(RunError, match="singular: 3 of 270 features are all-zero") as raised:
        solve(deficient(270)[2], SolverSpec("lu"))
    assert "solver=least_squares" in str(raised.value)


def test_unreached_weights_are_counted():
    first, transposed = gaussian(90, 5), gaussian(90, 12, seed=1)
    first[:, 2] = 0
    system = linear_system(KhatriRao(transposed, first), torch.ones(4, 15, dtype=torch.float64))
    report = solve(system, SolverSpec("matrix_free")).report
    assert "12 weights that are not zero are reached by no feature" in report.diagnosis
    assert report.relative_residual == pytest.approx((12 / 60) ** 0.5)


def test_zero_target_has_zero_scales():
    matrix = KhatriRao(gaussian(90, 12), gaussian(90, 5, seed=1))
    system = linear_system(matrix, torch.zeros(4, 15, dtype=torch.float64))
    for solver in ("matrix_free", "minimum_norm", "least_squares", "lbfgs", "auto"):
        solution = solve(system, SolverSpec(solver))
        assert solution.report.converged
        assert not solution.scale.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["target", "features"])
def test_non_finite_numbers_are_refused(where, bad):
    _, _, system = random_layer("he_normal", SHAPES[0], 405)
    weight, first = system.weight.clone(), system.matrix.first.clone()
    (weight if where == "target" else first)[0, 0] = bad
    matrix = KhatriRao(system.matrix.transposed, first, FLOAT64)
    with pytest.raises(UserError, match=f"{where}.* not all finite"):
        solve(linear_system(matrix, weight), SolverSpec("auto"))


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
@pytest.mark.parametrize("kinds", [(torch.float32,) * 2, (torch.float64, torch.float32)])
def test_only_systems_in_float64_are_solved(solver, kinds):
    weight, features = (
        gaussian(3, 2).to(kinds[1]),
        KhatriRao(*(gaussian(6, size) for size in (3, 2))),
    )
    matrix = KhatriRao(features.transposed.to(kinds[0]), features.first.to(kinds[0]))
    with pytest.raises(UserError, match=r"in torch\.float32; give matrix and weight in float64"):
        solve(linear_system(matrix, weight), SolverSpec(solver))


@pytest.mark.parametrize(("skip", "width"), [("none", 81), ("none", 49), ("outer", 48)])
def test_weight_of_a_layer_in_training_is_a_target(skip, width):
    weight = gaussian(6, 1, 3, 3)
    features = draw("he_normal", LayerShape(6, 1, (3, 3)), width, 0, 0, skip=skip)
    scales = []
    for trained in (weight, torch.nn.Parameter(weight)):
        target = TargetLayer("layer", trained, torch.zeros(6))
        scales.append(solve(layer_system(target, features, CPU, False)).scale)
    assert torch.equal(*scales)
    assert not scales[1].requires_grad
    system = linear_system(KhatriRao(gaussian(81, 54), gaussian(81, 1)), trained.flatten(1))
    assert not system.rhs.requires_grad
    assert not system.weight.requires_grad


def test_lu_works_in_the_memory_of_the_matrix():
    matrix = gaussian(50, 50).T
    copy = matrix.clone()
    lu = factorize(matrix)
    assert lu.triangles.data_ptr() == matrix.data_ptr()
    identity = torch.eye(50, dtype=torch.float64)
    assert torch.allclose(copy @ lu.solve(identity), identity)
    with pytest.raises(ValueError, match="not stored by columns"):
        factorize(copy.contiguous())


def test_dense_lu_beyond_32_bit_indexing_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    lookup("refined").require(46_341, 46_341, False, CPU)  # by panels
    with pytest.raises(Unsuitable, match="46341 unknowns"):
        lookup("refined").require(46_341, 46_341, False, torch.device("meta"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for solver in sorted(SQUARE):
        lookup(solver).require(46_340, 46_340, False, CPU)
        with pytest.raises(
            Unsuitable, match=r"46341 unknowns has more than 2\^31 entries.*matrix_free"
        ):
            lookup(solver).require(46_341, 46_341, False, CPU)
    for solver in ("svd_lbfgs", "svd_lu_lbfgs"):
        with pytest.raises(Unsuitable, match=r"workspace of more than 2\^31"):
            lookup(solver).require(20_001, 20_001, False, CPU)


def test_patterned_features_are_solved_without_their_tensors(monkeypatch):
    """id_cond of both widths and ortho_cond: closed forms never form A or B."""
    drawn = {
        (name, word): draw(name, WIDE, choose_width(name, WIDE, width=word), 0, 0)
        for name, word in (
            ("id_cond", "maximum"),
            ("id_cond", "minimum"),
            ("ortho_cond", "maximum"),
        )
    }
    weights = {key: features.weights() for key, features in drawn.items()}

    def refuse(*_):
        raise AssertionError("feature tensors were formed")

    monkeypatch.setattr(pair.Features, "weights", refuse)
    target = TargetLayer("t", torch.randn(8, 12, 3, 3, dtype=torch.float64), torch.zeros(8))
    for key, features in drawn.items():
        assert features.first is None
        system = layer_system(target, features, CPU, orthogonal=True)
        solution = solve(system, SolverSpec("auto"))
        scales = system.scales(solution.scale)
        assert solution.report.solver == "closed_form"
        first, second = (w.double() for w in weights[key])
        reached = torch.einsum("o,oluv,l,lc->ocuv", scales.outer, second, scales.inner, first)
        assert (reached - target.weight).norm() < 1e-10 * target.weight.norm(), key


def test_papers_solvers_report_that_they_fall_short():
    _, _, system = random_layer("he_normal", SHAPES[0], SHAPES[0].minimum_width)
    for solver in sorted(set(TOLERANCE) & {name for name in SOLVERS if "lbfgs" in name}):
        report = solve(system, SolverSpec(solver)).report
        assert not report.converged
        assert report.precision == "float32"
