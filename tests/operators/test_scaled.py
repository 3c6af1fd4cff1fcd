"""A matrix whose columns are scaled, against its dense form."""

import torch

from bnrecon.operators.columns import Scaled, inverse_norms
from bnrecon.operators.khatri_rao import KhatriRao


def test_products_are_those_of_the_matrix_with_columns_of_norm_1():
    torch.manual_seed(0)
    matrix = KhatriRao(torch.randn(9, 4).double(), torch.randn(9, 3).double())
    scaled = Scaled(matrix, inverse_norms(matrix.column_norms()))
    dense = torch.nn.functional.normalize(matrix.dense(), dim=0)
    x, y = torch.randn(9).double(), torch.randn(12).double()
    torch.testing.assert_close(scaled.matvec(x), dense @ x)
    torch.testing.assert_close(scaled.rmatvec(y), dense.T @ y)


def test_columns_of_zeros_and_of_subnormal_norm_stay_finite():
    norms = torch.tensor([0.0, 1e-310, 2.0], dtype=torch.float64)
    found = inverse_norms(norms)
    assert found.isfinite().all()
    assert found[0] == 0
    assert found[2] == 0.5
