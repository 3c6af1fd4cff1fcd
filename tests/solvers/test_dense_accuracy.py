"""Dense solvers reach the rounding of M x in float64, unlike a plain LU."""

import pytest
import torch
from random_layer import gaussian, random_layer

from bnrecon.features.shapes import LayerShape
from bnrecon.solvers import SolverSpec, choose, factorization, solve
from bnrecon.solvers.base import LinAlgError
from bnrecon.solvers.dense import approximate_inverse, gmres
from bnrecon.solvers.factorization import by_lapack, by_panels, factorize

SHAPE = LayerShape(6, 6, (3, 3))  # 324 equations, 319 of them at minimum width
ILL_CONDITIONED = (251, 493, 528)  # the three worst of 600 seeds for a plain LU
# Largest residual in units of u ‖|M| |x|‖ / ‖b‖, u = 2^-52. The plain LU is above 1.5.
LARGEST = {"lu": 0.5, "refined": 0.5, "least_squares": 1.5}


def minimum_width(seed):
    """The system of a layer at minimum width; its right-hand side has one entry."""
    return random_layer("he_normal", SHAPE, SHAPE.minimum_width, seed)[-1]


def residual(system, x):
    """‖M x - b‖ / ‖b‖ computed from M."""
    return float((system.operator.dense() @ x - system.rhs).norm() / system.rhs.norm())


def rounding(system, x):
    """The cost of rounding M x to float64: u ‖|M| |x|‖ / ‖b‖."""
    size = (system.operator.dense().abs() @ x.abs()).norm() / system.rhs.norm()
    return torch.finfo(torch.float64).eps * float(size)


@pytest.mark.parametrize("solver", LARGEST)
@pytest.mark.parametrize("seed", ILL_CONDITIONED)
def test_dense_solver_reaches_the_rounding_of_the_product(solver, seed):
    system = minimum_width(seed)
    solution = solve(system, SolverSpec(solver))
    reached = residual(system, solution.scale)
    assert reached < LARGEST[solver] * rounding(system, solution.scale)
    assert reached < 1e-10
    assert solution.report.converged


@pytest.mark.parametrize("solver", ["lu", "refined"])
def test_tolerance_below_rounding_is_reported_as_missed(solver):
    report = solve(minimum_width(528), SolverSpec(solver, tolerance=1e-13)).report
    assert not report.converged
    assert not report.at_limit
    assert report.relative_residual > 1e-13


def test_corrections_need_no_more_memory_than_the_factors():
    """At 46,340 unknowns, the most for an LU, eight vectors are below the allowed 64 MiB."""
    from bnrecon.solvers.dense import lu_memory
    from bnrecon.solvers.factorization import LARGEST

    assert lu_memory(LARGEST, LARGEST) - 8 * LARGEST**2 > 8 * 8 * LARGEST
    assert choose(4000, 4000, False, lu_memory(4000, 4000)).solver == "lu"
    assert choose(4000, 4000, False, lu_memory(4000, 4000) - 1).solver == "matrix_free"


class Matrix:
    """The operator of a dense matrix."""

    def __init__(self, matrix):
        self.matrix, self.shape = matrix, matrix.shape

    def matvec(self, x):
        return self.matrix @ x


def nearly_singular(n, values, share):
    """A random matrix whose smallest singular values are shares of the largest."""
    vectors, sizes, right = torch.linalg.svd(gaussian(n, n, seed=n))
    sizes[n - values :] = share * sizes[0] * torch.arange(values, 0, -1)
    return vectors @ torch.diag(sizes) @ right


@pytest.mark.parametrize("values", [1, 2])
@pytest.mark.parametrize("n", [3, 60, 400])
def test_nearly_singular_float32_matrix_takes_few_corrections(n, values):
    """With only the LU it takes 30 to 45 steps at n = 400; at n = 36,801 none helped."""
    matrix = nearly_singular(n, values, 1e-8)
    rhs = torch.eye(n, dtype=torch.float64)[-1]
    factors = factorize(matrix.float().T.contiguous().T)
    inverse = approximate_inverse(Matrix(matrix).matvec, factors)
    x, steps = gmres(Matrix(matrix), rhs, inverse, 1e-11, 400)
    noise = torch.finfo(torch.float64).eps * float((matrix.abs() @ x.abs()).norm())
    assert float((matrix @ x - rhs).norm()) < max(0.5 * noise, 1e-11)
    assert steps <= 15


@pytest.mark.parametrize("n", [1, 2])
def test_approximate_inverse_of_a_tiny_matrix_is_its_inverse(n):
    matrix = nearly_singular(n, 1, 0.5)
    factors = factorize(matrix.float().T.contiguous().T)
    rhs = torch.ones(n, dtype=torch.float64)
    x = approximate_inverse(Matrix(matrix).matvec, factors)(rhs)
    torch.testing.assert_close(matrix @ x, rhs, rtol=0, atol=1e-12)


def test_gmres_stops_once_float64_gains_no_more():
    """Exact factors solve in two steps; an unreachable tolerance must not cost a restart."""
    system = minimum_width(528)
    factors = factorize(system.operator.dense())

    def exact(residual):
        return factors.solve(residual[:, None])[:, 0]

    x, steps = gmres(system.operator, system.rhs, exact, 1e-17, 400)
    assert residual(system, x) < rounding(system, x)
    assert steps < 12


@pytest.fixture
def small_panels(monkeypatch):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("without oneDNN")
    monkeypatch.setattr(factorization, "PANEL", 24)
    monkeypatch.setattr(factorization, "TILE", 40)


@pytest.mark.parametrize("n", [1, 23, 24, 25, 130, 400])
def test_lu_by_panels_errs_like_lapacks(small_panels, n):
    """With one panel, a part of one, and several; with M and with its transpose."""
    matrix, columns = gaussian(n, n, seed=n).float(), gaussian(n, 3, seed=1).float()
    lapacks, panels = (factor(matrix.T.contiguous().T) for factor in (by_lapack, by_panels))
    for transposed, exact in ((False, matrix.double()), (True, matrix.double().T)):
        errors = [
            torch.linalg.norm(exact @ factors.solve(columns, transposed).double() - columns)
            for factors in (panels, lapacks)
        ]
        assert errors[0] < 3 * errors[1] + 1e-6
    size = matrix.abs().sum()
    order, lower = panels.order, panels.triangles.tril(-1) + torch.eye(n)
    assert (lower @ panels.triangles.triu() - matrix.T[order]).abs().sum() < 1e-5 * size
    assert lower.abs().max() <= 1  # pivoting was partial


def test_lu_by_panels_names_a_zero_pivot(small_panels):
    matrix = gaussian(60, 60).float()
    matrix[30] = 0
    with pytest.raises(LinAlgError, match="pivot 31 is zero"):
        by_panels(matrix.T.contiguous().T)


def test_panels_are_used_where_their_products_are_faster(small_panels, monkeypatch):
    monkeypatch.setattr(factorization, "BY_PANELS", 100)
    matrix = gaussian(120, 120)
    for faster in (True, False):
        monkeypatch.setattr(factorization, "onednn_is_faster", lambda _, faster=faster: faster)
        for n, by in ((120, faster), (99, False)):
            made = factorize(matrix[:n, :n].T.float().contiguous().T)
            assert isinstance(made, factorization.Panels) == by
        assert isinstance(factorize(matrix.T.contiguous().T), factorization.Lapack)  # float64
    matrix = matrix.float().T.contiguous().T
    assert by_panels(matrix).triangles.data_ptr() == matrix.data_ptr()


@pytest.mark.parametrize("seed", ILL_CONDITIONED)
def test_refined_corrects_an_lu_by_panels(small_panels, monkeypatch, seed):
    monkeypatch.setattr(factorization, "factorize", by_panels)
    system = minimum_width(seed)
    solution = solve(system, SolverSpec("refined"))
    assert residual(system, solution.scale) < 0.5 * rounding(system, solution.scale)
