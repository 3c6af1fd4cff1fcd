"""More than two source layers for one target layer (Burkholz 2024, Thm 2.5)."""

import pytest
import torch
import torch.nn.functional as F

from bnrecon.construction.deep import (
    balanced_widths,
    compose_deep,
    deep_jacobian,
    draw_deep,
    generic_rank,
    least_total_width,
    solve_deep,
)
from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import System
from bnrecon.studies.burkholz2024 import deeper_sources

DOUBLE = torch.float64


def scales_for(widths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(width, generator=generator, dtype=DOUBLE) for width in widths]


def test_the_chain_composes_to_one_convolution():
    """Against PyTorch's own convolutions, one after another, borders included."""
    widths = (7, 6, 5, 4)
    weights, scales = draw_deep(3, 9, widths, 1), scales_for(widths)
    x = torch.randn(2, 3, 6, 7, dtype=DOUBLE)
    y = F.conv2d(x, weights[0].reshape(7, 3, 3, 3), padding=1) * scales[0][:, None, None]
    for weight, scale in zip(weights[1:], scales[1:], strict=True):
        y = F.conv2d(y, weight[:, :, None, None]) * scale[:, None, None]
    composed = compose_deep(weights, scales).reshape(4, 3, 3, 3)
    torch.testing.assert_close(F.conv2d(x, composed, padding=1), y)


@pytest.mark.parametrize("widths", [(9, 4), (7, 6, 4), (5, 6, 5, 4)])
def test_the_jacobian_is_the_derivative(widths):
    weights, scales = draw_deep(3, 1, widths, 2), scales_for(widths, 3)
    by_autograd = torch.autograd.functional.jacobian(
        lambda x: compose_deep(weights, x.split(list(widths))).flatten(), torch.cat(scales)
    )
    torch.testing.assert_close(deep_jacobian(weights, scales), by_autograd)
    several = [torch.stack([scale, 2 * scale]) for scale in scales]
    torch.testing.assert_close(deep_jacobian(weights, several)[0], by_autograd)


@pytest.mark.parametrize(
    ("shape", "layers"), [((4, 4, 1), 3), ((4, 4, 1), 4), ((4, 3, 9), 3), ((3, 2, 9), 4)]
)
def test_a_target_is_found_with_a_few_scales_beyond_the_count(shape, layers):
    outputs, inputs, taps = shape
    target = torch.randn(
        outputs, inputs * taps, generator=torch.Generator().manual_seed(5), dtype=DOUBLE
    )
    total = least_total_width(target.numel(), layers) + 8
    weights = draw_deep(inputs, taps, balanced_widths(total, outputs, layers, inputs * taps), 4)
    solution = solve_deep(target, weights)
    again = (compose_deep(weights, solution.scales) - target).norm() / target.norm()
    assert solution.relative_error == pytest.approx(float(again), abs=1e-12)
    assert again < 1e-9


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_the_count_of_scales_is_what_the_dimension_asks_for(layers):
    """N + L - 1 scales reach all n dimensions, one less reaches n - 1; the theorem asks for one more than needed, n + L."""
    outputs, inputs = 4, 4
    for beyond, rank in ((-1, 15), (0, 16), (1, 16)):
        widths = balanced_widths(least_total_width(16, layers) + beyond, outputs, layers)
        assert generic_rank(draw_deep(inputs, 1, widths, 0)) == rank


def test_a_first_layer_narrower_than_its_fan_in_is_a_counterexample_to_the_theorem():
    """c2 = c0 = 2, a 3x3 kernel first, L = 4: Σ c_l = n + L and all c_l >= c0, yet 26 of 36 dimensions are reached, c2 · c1.

    The rows of W' lie in the row space of C_1, of dimension c1 = 13 of 18, whatever the scales.
    """
    narrow = balanced_widths(least_total_width(36, 4) + 1, 2, 4)
    assert sum(narrow) == 36 + 4
    assert min(narrow) >= 2
    assert generic_rank(draw_deep(2, 9, narrow, 0)) == 2 * narrow[0] == 26
    wide = balanced_widths(least_total_width(36, 4) + 1, 2, 4, fan_in=18)
    assert sum(wide) == sum(narrow)
    assert generic_rank(draw_deep(2, 9, wide, 0)) == 36


def test_a_last_hidden_layer_narrower_than_the_output_is_a_counterexample_too():
    """c2 = 10, c0 = 3, linear layers, widths (20, 3, 10): Σ c_l = n + L, all c_l >= c0, and 18 of 30 dimensions are reached."""
    widths = deeper_sources.Setting(10, 3, 1, 3, narrow="last").widths(1)
    assert widths == (20, 3, 10)
    assert generic_rank(draw_deep(3, 1, widths, 0)) == 18
    assert generic_rank(draw_deep(3, 1, (12, 11, 10), 0)) == 30


def test_two_layers_are_theorem_2_2():
    """The same target by the linear system of Lemma 2.1: the two solutions agree up to a factor moved between the layers."""
    outputs, inputs = 3, 4
    widths = balanced_widths(least_total_width(12, 2), outputs, 2)
    first, second = draw_deep(inputs, 1, widths, 6)
    target = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(8), dtype=DOUBLE)
    system: System = linear_system(
        KhatriRao.of(first, second[:, :, None, None], DOUBLE, torch.device("cpu")), target
    )
    linear = system.scales(torch.linalg.solve(system.operator.dense(), system.rhs))
    found = solve_deep(target, [first, second], starts=32, max_iterations=2000)
    assert found.relative_error < 1e-9
    ratio = found.scales[0] / linear.inner
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.scales[1] * ratio[0], linear.outer, rtol=1e-5, atol=1e-9)


def test_the_study_counts_and_draws(tmp_path):
    settings = (
        deeper_sources.Setting(3, 3, 1, 3),
        deeper_sources.Setting(2, 2, 9, 4, narrow="first"),
    )
    frame = deeper_sources.success_rates(settings, draws=2, starts=2)
    text = deeper_sources.summary(frame)
    assert list(text["reachable dimensions at n + L"]) == ["9 of 9", "26 of 36"]
    assert text.loc[0, "n + L + 7"] == "2 of 2"
    assert text.loc[1, "n + L + 1"] == "0 of 2"
    with (tmp_path / "x.png").open("wb") as file:
        deeper_sources.draw(frame, file, "png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_a_zero_target_is_refused():
    with pytest.raises(ValueError, match="nothing to be solved for"):
        solve_deep(torch.zeros(3, 4, dtype=DOUBLE), draw_deep(4, 1, (6, 7, 3), 0))
