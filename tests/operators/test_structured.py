"""Operators of a pattern, against their dense forms."""

import torch

from bnrecon.operators.structured import Kronecker


def test_a_kronecker_product_of_any_two_factors_is_the_dense_one():
    torch.manual_seed(0)
    u2, u1 = torch.randn(4, 4).double(), torch.randn(3, 3).double()
    matrix, dense = Kronecker(u2, u1), torch.kron(u2, u1)
    torch.testing.assert_close(matrix.dense(), dense)
    torch.testing.assert_close(matrix.column_norms(), dense.norm(dim=0))
    x, y = torch.randn(12).double(), torch.randn(12).double()
    torch.testing.assert_close(matrix.matvec(x), dense @ x)
    torch.testing.assert_close(matrix.rmatvec(y), dense.T @ y)
