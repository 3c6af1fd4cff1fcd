"""One factorization shared by targets gives each target's separate solution."""

import pytest
import torch
from random_layer import gaussian

from bnrecon.construction.residual import layer_system, minimum_width
from bnrecon.construction.two_layer import (
    TargetLayer,
    composed_weight,
    linear_system,
    relative_error,
)
from bnrecon.features import LayerShape, draw
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.errors import RunError
from bnrecon.solvers import Unsuitable, solve
from bnrecon.solvers.shared_factorization import SharedFactorization

SHAPE = LayerShape(5, 6, (3, 3))
N = SHAPE.equations


def targets():
    """Usual weights; rows of sizes 1 to 1e-6; one zero row; a few large entries."""
    weights = gaussian(4, 5, 6, 3, 3)
    weights[1] *= torch.logspace(0, -6, 5, dtype=torch.float64)[:, None, None, None]
    weights[2][3] = 0
    weights[3] = weights[3] ** 9
    return [TargetLayer("", weight, torch.zeros(5)) for weight in weights]


def systems(features, width, skip="none"):
    pair = draw(features, SHAPE, width, 0, 3, skip=skip)
    cpu = torch.device("cpu")
    return pair, [layer_system(target, pair, cpu, orthogonal=False) for target in targets()]


@pytest.mark.parametrize("features", ["he_normal", "he_uniform", "orthogonal", "sparse_he_normal"])
@pytest.mark.parametrize("skip", ["none", "inner", "outer"])
@pytest.mark.parametrize("width", ["minimum", "n"])
def test_every_target_gets_its_separate_scales(features, skip, width):
    count = N if width == "n" else minimum_width(SHAPE, skip)
    pair, together = systems(features, count, skip)
    shared = SharedFactorization(together[0].matrix)
    for target, system in zip(targets(), together, strict=True):
        solution = shared.solve(system)
        assert solution.report.converged
        assert solution.report.solver == "shared_lu"
        scales = system.scales(solution.scale)
        assert relative_error(composed_weight(system.matrix, scales, pair), target.weight) < 1e-10
        alone = solve(system).scale
        assert (solution.scale - alone).norm() < 1e-8 * alone.norm()


@pytest.mark.parametrize("distance", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("width", [N - 4, N])
def test_nearly_dependent_features_cost_no_target_its_solution(width, distance):
    """In float32 such a matrix is singular."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    second, first = random(45, width), random(6, width)
    for factor in (second, first):
        factor[:, 1] = factor[:, 0] + distance * random(len(factor))
    matrix = KhatriRao(second.T, first.T)
    weights = [matrix.matvec(random(width)).reshape(5, -1) for _ in range(3)]  # of usual scales
    shared = SharedFactorization(matrix)
    for weight in weights:
        assert shared.solve(linear_system(matrix, weight)).report.relative_residual < 1e-11


def test_other_widths_and_singular_features_are_refused():
    _, (system, *_) = systems("he_normal", N + 1)
    with pytest.raises(Unsuitable, match=f"{N + 1} features for {N} equations"):
        SharedFactorization(system.matrix)
    second, first = torch.randn(N // 6, N).double(), torch.randn(6, N).double()
    first[:, 0] = 0
    with pytest.raises(RunError, match=f"{N} x {N} matrix of features is singular"):
        SharedFactorization(KhatriRao(second.T, first.T))
