"""Frozen layers and normalizations of Giannou et al. 2023: distributions, and printed proofs."""

import pytest
import torch
from random_layer import gaussian

from bnrecon.construction.random_linear import (
    khatri_rao,
    random_linear,
    random_norm,
    set_affine,
    solve_scales,
)
from bnrecon.features.portable_random import Stream

STREAM = Stream(seed=0, layer=0)


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_entries_are_uniform_with_variance_1_over_the_inputs_or_zero(density):
    weight = random_linear(50, 400, STREAM, "first", density).weight
    kept = weight[weight != 0]
    assert len(kept) / weight.numel() == pytest.approx(density, rel=0.05)
    assert 50 * float(kept.var()) == pytest.approx(1, rel=0.05)
    assert float(kept.abs().max()) == pytest.approx((3 / 50) ** 0.5, rel=1e-2)


def test_statistics_are_uniform_on_their_intervals():
    norm = random_norm(4000, STREAM, "first")
    for values, low, high in ((norm.running_mean, -1, 1), (norm.running_var, 0.5, 1.5)):
        assert low <= float(values.min()) < low + 0.01
        assert high - 0.01 < float(values.max()) <= high
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=0.05)
    assert norm.running_mean.dtype == torch.float64


def test_block_of_zeros_cuts_off_all_earlier_layers():
    """Theorem 2 in print: only zero scales give a block of zeros, and W* is not reached."""
    v, w = gaussian(2, 2, 2)
    last_block = torch.zeros(2, 1).double()
    assert solve_scales(v, w[:, :1], last_block).abs().max() == 0
    # By hand: a block that vanishes needs V diag(W A) γ = 0, a regular system of k d = 2 scales.
    a = gaussian(2, 1, seed=1)
    assert torch.linalg.svdvals(v * (w @ a).T).min() > 0.01
    # Then no input passes the layer: its output V (0 * ... + β) is the same for all x. Two targets
    # that should vary: of a last layer, and of one whose ReLU is open for all ‖x‖ <= 1.
    inside = torch.nn.functional.normalize(torch.randn(100, 2, dtype=torch.float64), dim=1)
    assert (inside @ torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double().T).std(0).max() > 0.1
    before_relu = inside @ torch.tensor([[0.5, 0.0], [0.5, 0.0]]).double().T + 1
    assert before_relu.min() > 0
    assert before_relu.relu().std(0).min() > 0.1


def test_null_space_of_a_product_moves():
    """Equation 55 in print: P and P Q have the same null space for a regular Q."""
    p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    null_of_p, null_of_pq = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert (p @ null_of_p == 0).all()
    assert (p @ q @ null_of_pq == 0).all()
    assert (p @ q @ null_of_p != 0).all()


def test_cramers_rule_of_lemma_8_substitutes_a_column():
    """γ_1 det D = det(D with w* as its first column); the text says row."""
    v, w, target = gaussian(2, 4), gaussian(4, 2, seed=1), gaussian(2, 2, seed=2)
    system = khatri_rao(v, w)
    by_column, by_row = system.clone(), system.clone()
    by_column[:, 0] = by_row[0] = target.reshape(-1)
    scale = solve_scales(v, w, target)
    wanted = scale[0] * torch.linalg.det(system)
    torch.testing.assert_close(torch.linalg.det(by_column), wanted)
    assert (torch.linalg.det(by_row) - wanted).abs() > 1e-3


def test_normalizations_divide_by_the_root_of_the_variance():
    """Equation 3 has (ε I + Σ)^-1, without the root."""
    norm = random_norm(3, Stream(0, 0), "first")
    y, variance = torch.randn(5, 3, dtype=torch.float64), norm.running_var + norm.eps
    centred = y - norm.running_mean
    torch.testing.assert_close(norm(y), centred / variance.sqrt())
    assert (norm(y) - centred / variance).abs().max() > 1e-3


def test_statistics_of_units_go_into_gamma_not_before_v():
    """Lemma 7 moves 1/s out of V Γ as a number, but each unit has its own."""
    v, y = torch.randn(2, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    scale, deviation = torch.randn(2, 3, dtype=torch.float64).abs() + 0.5
    norm = random_norm(3, Stream(0, 0), "first")
    norm.running_mean.zero_()
    norm.running_var.copy_(deviation**2 - norm.eps)
    set_affine(norm, scale, torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(norm.weight, scale * deviation)  # Proposition 1: Γ / s = Γ'
    wanted = (y * scale) @ v.T
    torch.testing.assert_close(norm(y) @ v.T, wanted)
    for number in deviation:
        assert ((y * norm.weight) @ v.T / number - wanted).abs().max() > 1e-3


def test_product_may_have_full_rank_although_the_spaces_meet():
    """Remark 4 in print: Fact 1's condition would be necessary."""
    a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.eye(3)[:, :2]
    assert torch.linalg.matrix_rank(a @ b) == 1
    assert (a @ b[:, 1] == 0).all()


def test_relu_between_the_factors_changes_the_function():
    """Corollary 1 in print: the next layer's input is B* x, not its ReLU."""
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [0.0]])
    x, shift = torch.tensor([-1.0, 0.0]), torch.tensor([2.0, 0.0])
    assert torch.relu(second @ first @ x + shift).tolist() == [1, 0]
    assert torch.relu(second @ torch.relu(first @ x) + shift).tolist() == [2, 0]


def test_chain_of_identities_has_nonzero_scales():
    """The point where the determinants of Theorem 2 are not zero (erratum 19)."""
    out, lifts, wanted = gaussian(4, 8), gaussian(2, 8, 2, seed=1), gaussian(2, 4, 2, seed=2)
    products = [solve_scales(out, lift, block) for lift, block in zip(lifts, wanted, strict=True)]
    scales = [products[0] / products[1], products[1]]
    assert min(scale.abs().min() for scale in scales) > 0
    after = out * scales[1]
    assert torch.allclose(after @ lifts[1], wanted[1])
    assert torch.linalg.det(khatri_rao(after, lifts[0])) != 0
    assert torch.allclose((after * scales[0]) @ lifts[0], wanted[0])
