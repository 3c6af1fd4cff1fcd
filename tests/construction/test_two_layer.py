"""Elimination of second scales, and the error of a weight."""

import pytest
import torch

from bnrecon.construction.two_layer import channel_errors, linear_system, relative_error
from bnrecon.operators.khatri_rao import KhatriRao


@pytest.mark.parametrize(("width", "rows"), [(7, 12), (8, 12), (9, 9), (11, 9), (12, 12), (18, 12)])
def test_second_scales_are_eliminated_from_n_minus_c2_plus_1_to_n(width, rows):
    """N = 12 equations, c2 = 4 outputs: from 9 features on (Burkholz 2024, Theorem 2.2)."""
    torch.manual_seed(0)
    matrix = KhatriRao(torch.randn(width, 4).double(), torch.randn(width, 3).double())
    system = linear_system(matrix, torch.randn(4, 3).double())
    assert system.operator.shape == (rows, width)
    assert len(system.rhs) == rows


def test_pivots_are_the_largest_entries_and_the_largest_is_fixed():
    torch.manual_seed(0)
    matrix = KhatriRao(torch.randn(10, 4).double(), torch.randn(10, 3).double())
    weight = torch.tensor([[1.0, 2, 3], [-9, 1, 1], [4, 0, 0], [0, 5, 0]], dtype=torch.float64)
    eliminated = linear_system(matrix, weight).operator
    assert eliminated.pivots.tolist() == [2, 0, 0, 1]
    assert eliminated.fixed == 1


def test_eliminated_matrix_is_not_marked_orthogonal():
    torch.manual_seed(0)
    matrix = KhatriRao(torch.randn(10, 4).double(), torch.randn(10, 3).double())
    assert not linear_system(matrix, torch.randn(4, 3).double(), orthogonal=True).orthogonal
    square = KhatriRao(torch.randn(12, 4).double(), torch.randn(12, 3).double())
    assert linear_system(square, torch.randn(4, 3).double(), orthogonal=True).orthogonal


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (4, 3), (108,)], ids=str)
def test_weight_in_another_order_than_the_matrix_is_refused(shape):
    matrix = KhatriRao(torch.randn(108, 36).double(), torch.randn(108, 3).double())
    with pytest.raises(ValueError, match="order of M's rows"):
        linear_system(matrix, torch.randn(shape).double())


def test_relative_error_is_absolute_for_a_zero_target():
    target = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert relative_error(target + torch.tensor([[0.0, 3.0], [4.0, 0.0]]), target) == 1
    assert relative_error(target, torch.zeros(2, 2)) == 5


def test_error_of_a_zero_output_is_relative_to_the_largest_output():
    target = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    off = torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.5, 0.0]])
    assert channel_errors(target + off, target).tolist() == pytest.approx([0.0, 0.4, 0.5])
    assert channel_errors(off, torch.zeros(3, 2)).tolist() == [0.0, 2.0, 0.5]
