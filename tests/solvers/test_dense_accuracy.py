"""Dense solvers reach the rounding of M x in float64, where a plain LU does not."""

import pytest
import torch

from bnrecon.construction.two_layer import TargetLayer, two_layer_system
from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape
from bnrecon.solvers import SolverSpec, choose, solve
from bnrecon.solvers.dense import factorize, gmres

SHAPE = LayerShape(6, 6, (3, 3))  # 324 equations, 319 of them at minimum width
ILL_CONDITIONED = (251, 493, 528)  # of 600 seeds the three whose plain LU is worst
# Largest residual in units of u ‖|M| |x|‖ / ‖b‖, u = 2^-52. The plain LU is above 1.5.
LARGEST = {"lu": 0.5, "refined": 0.5, "least_squares": 1.5}


def minimum_width(seed):
    """The system of a layer at minimum width; its right-hand side has one entry."""
    weight = torch.randn(
        6, 6, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    target = TargetLayer("layer", weight, torch.zeros(6))
    features = draw("he_normal", SHAPE, SHAPE.minimum_width, seed, 0)
    return two_layer_system(target, features, torch.device("cpu"), orthogonal=False)


def residual(system, x):
    """‖M x - b‖ / ‖b‖ from M itself."""
    return float((system.operator.dense() @ x - system.rhs).norm() / system.rhs.norm())


def rounding(system, x):
    """What rounding M x to float64 may cost: u ‖|M| |x|‖ / ‖b‖."""
    size = (system.operator.dense().abs() @ x.abs()).norm() / system.rhs.norm()
    return torch.finfo(torch.float64).eps * float(size)


def plain_lu(system):
    return torch.linalg.solve(system.operator.dense(), system.rhs)


@pytest.mark.parametrize("seed", ILL_CONDITIONED)
def test_the_plain_lu_leaves_more_than_rounding(seed):
    system = minimum_width(seed)
    x = plain_lu(system)
    assert residual(system, x) > 1.5 * rounding(system, x)


@pytest.mark.parametrize("solver", LARGEST)
@pytest.mark.parametrize("seed", ILL_CONDITIONED)
def test_a_dense_solver_reaches_the_rounding_of_the_product(solver, seed):
    system = minimum_width(seed)
    solution = solve(system, SolverSpec(solver))
    reached = residual(system, solution.scale)
    assert reached < LARGEST[solver] * rounding(system, solution.scale)
    assert reached < 1e-10
    assert solution.report.converged


def test_auto_reaches_a_tolerance_that_the_plain_lu_misses():
    system = minimum_width(528)
    assert residual(system, plain_lu(system)) > 5e-11
    report = solve(system, SolverSpec(tolerance=2e-11)).report
    assert report.solver == "lu"
    assert report.converged
    assert report.relative_residual < 2e-11


@pytest.mark.parametrize("solver", ["lu", "refined"])
def test_a_tolerance_below_rounding_is_reported_as_missed(solver):
    report = solve(minimum_width(528), SolverSpec(solver, tolerance=1e-13)).report
    assert not report.converged
    assert not report.at_limit
    assert report.relative_residual > 1e-13


def test_corrections_need_no_more_memory_than_the_factors():
    """At 46,340 unknowns, the most that an LU takes, eight vectors are below the 64 MiB allowed."""
    from bnrecon.solvers.dense import LARGEST, lu_memory

    assert lu_memory(LARGEST, LARGEST) - 8 * LARGEST**2 > 8 * 8 * LARGEST
    assert choose(4000, 4000, False, lu_memory(4000, 4000)).solver == "lu"
    assert choose(4000, 4000, False, lu_memory(4000, 4000) - 1).solver == "matrix_free"


def test_gmres_stops_once_float64_can_gain_no_more():
    """Exact factors solve in two steps; an unreachable tolerance may not cost a whole restart."""
    system = minimum_width(528)
    factors = factorize(system.operator.dense())

    def exact(residual):
        return torch.linalg.lu_solve(*factors, residual[:, None])[:, 0]

    x, steps = gmres(system.operator, system.rhs, exact, 1e-17, 400)
    assert residual(system, x) < rounding(system, x)
    assert steps < 12
