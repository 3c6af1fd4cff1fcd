"""Selected columns of every operator type, against those of its dense form."""

import pytest
import torch

from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.columns import Selected, select_columns
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import FLOAT32

CPU = torch.device("cpu")
SHAPE = LayerShape(3, 4, (2, 1))
INDEX = torch.tensor([7, 0, 23, 5])


def whole(name):
    storage = "regenerate" if name == "sign" else "memory"
    features = draw(name, SHAPE, SHAPE.equations, seed=0, layer=0, storage=storage)
    return feature_operator(features, torch.float64, CPU)


@pytest.mark.parametrize("name", ["he_normal", "sign", "id_cond", "ortho_cond"])
def test_selected_columns_match_the_dense_matrix(name):
    part, wanted = select_columns(whole(name), INDEX), whole(name).dense()[:, INDEX]
    x, y = torch.randn(4, 2).double(), torch.randn(SHAPE.equations, 2).double()
    assert part.shape == wanted.shape
    assert isinstance(part, KhatriRao if name == "he_normal" else Selected)
    torch.testing.assert_close(part.dense(), wanted)
    torch.testing.assert_close(part.columns(slice(1, 3)), wanted.T[1:3])
    torch.testing.assert_close(part.leading(2).dense(), wanted[:, :2])
    for vectors in (x, x[:, 0]):
        torch.testing.assert_close(part.matvec(vectors), wanted @ vectors)
    for vectors in (y, y[:, 0]):
        torch.testing.assert_close(part.rmatvec(vectors), wanted.T @ vectors)
    torch.testing.assert_close(part.column_norms(), wanted.norm(dim=0))
    low = part.to(FLOAT32)
    assert low.dtype is torch.float32
    torch.testing.assert_close(low.matvec(x.float()), (wanted @ x).float(), rtol=1e-4, atol=1e-5)
