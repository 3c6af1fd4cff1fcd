"""More than two source layers for one target layer (Burkholz 2024, Theorem 2.5)."""

import pytest
import torch
import torch.nn.functional as F
from random_layer import gaussian
from scipy.optimize import least_squares

from bnrecon.construction.deep import (
    balanced_widths,
    compose_deep,
    deep_jacobian,
    draw_deep,
    draw_starts,
    generic_rank,
    least_total_width,
    solve_deep,
)
from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import System

DOUBLE = torch.float64


def scales_for(widths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(width, generator=generator, dtype=DOUBLE) for width in widths]


def test_chain_composes_to_one_convolution():
    """Against PyTorch's convolutions in sequence, borders included."""
    widths = (7, 6, 5, 4)
    weights, scales = draw_deep(3, 9, widths, 1), scales_for(widths)
    x = torch.randn(2, 3, 6, 7, dtype=DOUBLE)
    y = F.conv2d(x, weights[0].reshape(7, 3, 3, 3), padding=1) * scales[0][:, None, None]
    for weight, scale in zip(weights[1:], scales[1:], strict=True):
        y = F.conv2d(y, weight[:, :, None, None]) * scale[:, None, None]
    composed = compose_deep(weights, scales).reshape(4, 3, 3, 3)
    torch.testing.assert_close(F.conv2d(x, composed, padding=1), y)


@pytest.mark.parametrize("widths", [(9, 4), (7, 6, 4), (5, 6, 5, 4)])
def test_jacobian_is_the_derivative(widths):
    weights, scales = draw_deep(3, 1, widths, 2), scales_for(widths, 3)
    by_autograd = torch.autograd.functional.jacobian(
        lambda x: compose_deep(weights, x.split(list(widths))).flatten(), torch.cat(scales)
    )
    torch.testing.assert_close(deep_jacobian(weights, scales), by_autograd)
    several = [torch.stack([scale, 2 * scale]) for scale in scales]
    torch.testing.assert_close(deep_jacobian(weights, several)[0], by_autograd)


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_number_of_scales_is_what_the_dimension_requires(layers):
    """With n + L - 2 scales n - 1 dimensions are reached; the theorem's n + L is one too many."""
    outputs, inputs = 4, 4
    for beyond, rank in ((-1, 15), (0, 16), (1, 16)):
        widths = balanced_widths(least_total_width(16, layers) + beyond, outputs, layers)
        assert generic_rank(draw_deep(inputs, 1, widths, 0)) == rank


def test_first_layer_narrower_than_its_fan_in_is_a_counterexample():
    """c2 = c0 = 2, a 3x3 kernel first, L = 4: only c2 · c1 = 26 of 36 dimensions are reached.

    Yet Σ c_l = n + L and all c_l >= c0. The rows of W' lie in the row space of C_1, of dimension
    c1 = 13 of 18, whatever the scales.
    """
    narrow = balanced_widths(least_total_width(36, 4) + 1, 2, 4)
    assert sum(narrow) == 36 + 4
    assert min(narrow) >= 2
    assert generic_rank(draw_deep(2, 9, narrow, 0)) == 2 * narrow[0] == 26
    wide = balanced_widths(least_total_width(36, 4) + 1, 2, 4, fan_in=18)
    assert sum(wide) == sum(narrow)
    assert generic_rank(draw_deep(2, 9, wide, 0)) == 36


@pytest.mark.parametrize(
    ("widths", "rank"), [((12, 13, 13, 2), 27), ((13, 13, 12, 2), 25), ((18, 10, 10, 2), 21)]
)
def test_kernel_in_the_last_layer_is_a_counterexample(widths, rank):
    """c2 = c0 = 2, a 3x3 kernel last, L = 4, Σ c_l = n + L: the Jacobian's rank is below n = 36.

    There is one last scale per output, not per tap.
    """
    taps, outputs = 9, widths[-1]
    assert sum(widths) == 36 + 4
    weights = draw_deep(2, 1, (*widths[:-1], outputs * taps), 0)
    scales = [torch.rand(width, dtype=DOUBLE) + 0.5 for width in widths]

    def target(*scales):
        return compose_deep(weights, (*scales[:-1], scales[-1].repeat_interleave(taps))).flatten()

    jacobian = torch.cat(torch.autograd.functional.jacobian(target, tuple(scales)), 1)
    assert torch.linalg.matrix_rank(jacobian) == rank


def test_last_hidden_layer_narrower_than_the_output_is_a_counterexample():
    """Linear layers of widths (20, 3, 10), c0 = 3: 18 of 30 dimensions, although Σ c_l = n + L."""
    assert sum((20, 3, 10)) == 30 + 3
    assert generic_rank(draw_deep(3, 1, (20, 3, 10), 0)) == 18
    assert generic_rank(draw_deep(3, 1, (12, 11, 10), 0)) == 30


def test_rank_n_does_not_reach_every_target():
    """L = 3 layers of width 2, n + L - 1 in all: (s + 1)(s + 4)/(s + 2)² is at most 9/8."""
    middle = torch.tensor([[1.0, 1], [1, 2]], dtype=DOUBLE)
    assert generic_rank([torch.eye(2, dtype=DOUBLE), middle, middle]) == 4
    scales = gaussian(1000, 2, seed=0)
    reached = middle @ torch.diag_embed(scales) @ middle
    ratios = reached.diagonal(dim1=1, dim2=2).prod(1) / (reached[:, 0, 1] * reached[:, 1, 0])
    assert 1.12 < ratios.max() <= 9 / 8


def test_narrow_layer_inside_the_chain_is_a_counterexample():
    """A kernel first and outer layers wide enough; what follows the second has 2 x 2 entries."""
    widths = (18, 2, 18, 2)
    assert sum(widths) == 36 + 4
    assert generic_rank(draw_deep(2, 9, widths, 0)) == 2 * 2 + 18 - 1 == 21


def test_rank_n_is_not_enough_at_the_theorems_width():
    """Widths (4, 12, 4), n + L + 1 in all: a solution would be a zero divisor of the quaternions.

    h_i^T X h_i = 0 for all i and sums X of the features h_i h_j^T, i != j. The products
    h_i[g] h_i[k] depend on the class g xor k alone, so the sums of X = diag(1/γ3) W diag(1/γ1) over
    classes vanish. With W the signs of quaternion units they are the components of a product.
    """
    h = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=DOUBLE)
    signs = torch.tensor(
        [[1, 1, 1, 1], [1, -1, 1, -1], [1, -1, -1, 1], [1, 1, -1, -1]], dtype=DOUBLE
    )
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    left, right = torch.stack([h[i] for i, _ in pairs], 1), torch.stack([h[j] for _, j in pairs])
    assert 4 + len(pairs) + 4 == 16 + 3 + 1
    assert generic_rank([torch.eye(4, dtype=DOUBLE), right, left]) == 16
    units = torch.arange(4)
    classes = F.one_hot(units[:, None] ^ units, 4).to(DOUBLE)  # (g, k, class)
    assert not torch.einsum("gkc,gf,fk->cf", classes, left, right).any()
    p, q = gaussian(100, 4, seed=0), gaussian(100, 4, seed=1)
    products = torch.einsum("gkc,gk,ng,nk->nc", classes, signs, p, q)
    torch.testing.assert_close(products.norm(dim=1), p.norm(dim=1) * q.norm(dim=1))


@pytest.mark.parametrize("seed", range(20))
def test_eigenvalues_solve_what_the_search_misses(seed):
    """2x2 outputs and inputs, a 3x3 kernel first, widths (18, 10, 10, 2): the study's draws.

    With W A^-1 = Y, X = D4 D D3 C D2 has X B_j γ1_j = Y_j for every feature j, so that
    (X_1 - Y_1j/Y_2j X_2) B_j = 0: 18 equations for the 20 entries of X. For an X that solves them
    and r = X_1/X_2, an eigenvalue δ of δ C^T diag(D_1) γ3 = diag(r) C^T diag(D_2) γ3 is the ratio
    of the last two scales, and the others follow by division.
    """
    generator = torch.Generator().manual_seed(10_000 + seed)
    target = torch.randn(2, 18, generator=generator, dtype=DOUBLE)
    weights = first, second, third, last = draw_deep(2, 9, (18, 10, 10, 2), seed)
    y = target @ torch.linalg.inv(first)
    equations = torch.cat([second, -(y[0] / y[1]) * second]).T
    plane = torch.linalg.svd(equations).Vh[-2:]
    errors = []
    for angle in torch.linspace(0, torch.pi, 41, dtype=DOUBLE)[:-1]:
        x = (torch.stack([angle.cos(), angle.sin()]) @ plane).reshape(2, 10)
        pencil = torch.linalg.solve(third.T * last[0], (x[0] / x[1])[:, None] * third.T * last[1])
        values, vectors = torch.linalg.eig(pencil)
        for index in torch.nonzero(values.imag == 0)[:, 0]:
            inner = vectors[:, index].real
            scales = [y[1] / (x[1] @ second), x[1] / (third.T @ (last[1] * inner)), inner]
            scales.append(torch.stack([values[index].real, torch.ones((), dtype=DOUBLE)]))
            errors.append((compose_deep(weights, scales) - target).norm() / target.norm())
    assert min(errors) < 1e-11


def test_two_layers_are_theorem_2_2():
    """The linear system of Lemma 2.1 has the same solution, up to a factor between layers."""
    outputs, inputs = 3, 4
    widths = balanced_widths(least_total_width(12, 2), outputs, 2)
    first, second = draw_deep(inputs, 1, widths, 6)
    target = gaussian(outputs, inputs, seed=8)
    system: System = linear_system(
        KhatriRao.of(first, second[:, :, None, None], DOUBLE, torch.device("cpu")), target
    )
    linear = system.scales(torch.linalg.solve(system.operator.dense(), system.rhs))
    solution = solve_deep(target, [first, second], starts=32, max_iterations=2000)
    assert solution.relative_error < 1e-9
    ratio = solution.scales[0] / linear.inner
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio), rtol=1e-5, atol=0)
    torch.testing.assert_close(solution.scales[1] * ratio[0], linear.outer, rtol=1e-5, atol=1e-9)


def by_scipy(target, weights, start):
    """MINPACK's Levenberg-Marquardt from one start: scales and relative error.

    It needs at least as many residuals as unknowns, so zeros are appended.
    """
    widths = [len(weight) for weight in weights]
    more = max(0, sum(widths) - target.numel())

    def split(x):
        return torch.as_tensor(x).split(widths)

    minimum = least_squares(
        lambda x: F.pad(
            ((compose_deep(weights, split(x)) - target) / target.norm()).flatten(), (0, more)
        ).numpy(),
        start.numpy(),
        lambda x: F.pad(deep_jacobian(weights, split(x)) / target.norm(), (0, 0, 0, more)).numpy(),
        method="lm",
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    return torch.as_tensor(minimum.x), float(torch.as_tensor(minimum.fun).norm())


@pytest.mark.parametrize(
    ("shape", "layers"), [((4, 4, 1), 3), ((4, 4, 1), 4), ((4, 3, 9), 3), ((3, 2, 9), 4)]
)
def test_target_is_reached_with_a_few_extra_scales_as_by_scipy(shape, layers):
    outputs, inputs, taps = shape
    target = gaussian(outputs, inputs * taps, seed=5)
    total = least_total_width(target.numel(), layers) + 8
    weights = draw_deep(inputs, taps, balanced_widths(total, outputs, layers, inputs * taps), 4)
    theirs = (by_scipy(target, weights, x)[1] for x in draw_starts(target, weights, 8, 0))
    assert any(error < 1e-9 for error in theirs)
    solution = solve_deep(target, weights)
    again = (compose_deep(weights, solution.scales) - target).norm() / target.norm()
    assert solution.relative_error == pytest.approx(float(again), abs=1e-12)
    assert again < 1e-9


def test_levenberg_marquardt_reaches_scipys_minimum_without_a_solution():
    """Too few scales: the best of the same starts has the same error as MINPACK's."""
    target = gaussian(4, 4, seed=6)
    weights = draw_deep(4, 1, balanced_widths(least_total_width(16, 3) - 4, 4, 3), 1)
    theirs = min(by_scipy(target, weights, x)[1] for x in draw_starts(target, weights, 16, 0))
    ours = solve_deep(target, weights, starts=16, max_iterations=1000)
    assert ours.relative_error > 0.01
    assert ours.relative_error == pytest.approx(theirs, rel=1e-6)
    again, error = by_scipy(target, weights, torch.cat(ours.scales))
    assert error == pytest.approx(ours.relative_error, rel=1e-9)  # no further gain
