"""The operator against its dense form and against PyTorch's own convolutions."""

import pytest
import torch
import torch.nn.functional as F

from bnrecon.construction.two_layer import Scales, TargetLayer, composed_weight, feature_operator, two_layer_system
from bnrecon.features import LayerShape, draw
from bnrecon.khatri_rao import KhatriRao, Pivoted

CPU = torch.device("cpu")
SHAPES = [
    LayerShape(4, 3, (3, 3)),
    LayerShape(5, 2, (1, 4)),
    LayerShape(7, 6),
    LayerShape(1, 5, (2, 2)),
    LayerShape(3, 1, (5, 5)),
]


def vectors(operator, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows, columns = operator.shape
    return (torch.randn(size, dtype=torch.float64, generator=generator) for size in (columns, rows))


def operators():
    for number, shape in enumerate(SHAPES):
        features = draw("he_normal", shape, shape.equations + number, seed=number, layer=0)
        matrix = feature_operator(features, torch.float64, CPU)
        weight = torch.randn(
            shape.outputs, shape.equations // shape.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        if number == 2:
            weight[3] = 0  # an output that is switched off
        yield pytest.param(matrix, id=f"khatri-rao-{number}")
        yield pytest.param(Pivoted(matrix, weight), id=f"pivoted-{number}")
        yield pytest.param(
            feature_operator(draw("id_cond", shape, shape.equations, 0, 0), torch.float64, CPU), id=f"identity-{number}"
        )


@pytest.mark.parametrize("operator", list(operators()))
def test_products_agree_with_the_dense_form(operator):
    dense = operator.dense()
    assert dense.shape == operator.shape
    x, y = vectors(operator)
    assert torch.allclose(operator.matvec(x), dense @ x, rtol=1e-12, atol=1e-12)
    assert torch.allclose(operator.rmatvec(y), dense.T @ y, rtol=1e-12, atol=1e-12)
    if not isinstance(operator, Pivoted):
        assert torch.allclose(operator.column_norms(), dense.norm(dim=0))


@pytest.mark.parametrize("operator", list(operators()))
def test_the_transpose_is_the_adjoint(operator):
    x, y = vectors(operator, seed=3)
    assert torch.allclose(operator.matvec(x) @ y, x @ operator.rmatvec(y), rtol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 7, 4096])
def test_two_convolutions_in_a_row_are_the_composed_weight(shape, block):
    """What M x means: PyTorch runs A, the scales and B one after the other, independently of the operator."""
    features = draw("he_uniform", shape, 23, seed=5, layer=1)
    operator = KhatriRao(feature_operator(features, torch.float64, CPU).transposed, features.first.double(), block)
    generator = torch.Generator().manual_seed(2)
    inner = torch.randn(23, dtype=torch.float64, generator=generator)
    outer = torch.randn(shape.outputs, dtype=torch.float64, generator=generator)
    image = torch.randn(2, shape.inputs, 9, 8, dtype=torch.float64, generator=generator)
    first, second = (w.double() for w in features.weights())
    hidden = F.conv2d(image, first[:, :, None, None]) * inner[:, None, None]
    expected = F.conv2d(hidden, second) * outer[:, None, None]
    assert torch.allclose(
        F.conv2d(image, composed_weight(operator, Scales(inner, outer), shape)), expected, rtol=1e-10, atol=1e-12
    )


def test_a_dead_output_and_a_single_weight_pass_the_elimination():
    weight = torch.zeros(3, 4, 1, 1, dtype=torch.float64)
    weight[0, 2] = 1.5
    target = TargetLayer("t", weight, torch.zeros(3))
    shape = target.shape
    system = two_layer_system(target, draw("he_normal", shape, shape.minimum_width, 0, 0), CPU, orthogonal=False)
    x = torch.linalg.solve(system.operator.dense(), system.rhs)
    scales = system.scales(x)
    assert torch.allclose(composed_weight(system.matrix, scales, shape), weight, atol=1e-10)


def test_mismatched_factors_are_refused():
    with pytest.raises(ValueError, match="matrices of c1 rows"):
        KhatriRao(torch.zeros(3, 2), torch.zeros(4, 2))
