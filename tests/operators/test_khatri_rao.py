"""Operators against their dense forms and against PyTorch's convolutions."""

import pytest
import torch
import torch.nn.functional as F
from random_layer import gaussian

from bnrecon.construction.kernel_composition import embed, kernel_composition_system
from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer, composed_weight
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.base import CHUNK_BYTES
from bnrecon.operators.columns import inverse_norms
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.structured import Kronecker
from bnrecon.operators.system import Scales
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64

CPU = torch.device("cpu")
SHAPES = [
    LayerShape(4, 3, (3, 3)),
    LayerShape(5, 2, (1, 4)),
    LayerShape(7, 6),
    LayerShape(1, 5, (2, 2)),
    LayerShape(3, 1, (5, 5)),
]


def operators():
    for number, shape in enumerate(SHAPES):
        features = draw("he_normal", shape, shape.equations + number, seed=number, layer=0)
        matrix = feature_operator(features, torch.float64, CPU)
        weight = gaussian(shape.outputs, shape.equations // shape.outputs, seed=1)
        if number == 2:
            weight[3] = 0  # a dead output
        yield pytest.param(matrix, id=f"khatri-rao-{number}")
        yield pytest.param(Eliminated(matrix, weight), id=f"pivoted-{number}")
        beside_skip = Eliminated(matrix, weight, skip=gaussian(*weight.shape, seed=2))
        yield pytest.param(beside_skip, id=f"pivoted-skip-{number}")
        for name, width in (
            ("id_cond", "equations"),
            ("id_cond", "minimum_width"),
            ("ortho_cond", "equations"),
        ):
            pattern = feature_operator(
                draw(name, shape, getattr(shape, width), 0, 0), torch.float64, CPU
            )
            yield pytest.param(pattern, id=f"{name}-{width}-{number}")
    yield pytest.param(Kronecker(gaussian(4, 4), gaussian(3, 3, seed=1)), id="kronecker")


@pytest.mark.parametrize("operator", list(operators()))
def test_products_match_the_dense_form_in_float64_and_float32(operator):
    dense = operator.dense()
    rows, columns = operator.shape
    assert dense.shape == operator.shape
    assert dense.T.is_contiguous()  # column-major, for LAPACK
    for many in ((), (1,), (4,)):
        x, y = gaussian(columns, *many), gaussian(rows, *many, seed=1)
        assert torch.allclose(operator.matvec(x), dense @ x, rtol=1e-12, atol=1e-12)
        assert torch.allclose(operator.rmatvec(y), dense.T @ y, rtol=1e-12, atol=1e-12)
    assert torch.allclose(operator.columns(slice(1, 3)), dense.T[1:3])
    if not isinstance(operator, Eliminated):
        assert torch.allclose(operator.column_norms(), dense.norm(dim=0))
    x, y = gaussian(columns, seed=2), gaussian(rows, seed=3)
    expected = operator.matvec(x)
    assert torch.allclose(expected @ y, x @ operator.rmatvec(y), rtol=1e-11)
    rounded = operator.to(FLOAT32)
    assert rounded.dtype == rounded.dense().dtype == torch.float32
    assert (rounded.matvec(x.float()).double() - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("seed", range(20))
def test_m_x_is_two_convolutions_with_larger_kernels(seed):
    """Burkholz 2024, Eq. 2: the composed kernel is the pair's function of a padded image."""
    generator, largest = torch.Generator().manual_seed(seed), (5, 5, 30, 3, 3, 3, 3)
    c2, c0, c1, k1h, k1w, k2h, k2w = (
        int(torch.randint(1, top + 1, (1,), generator=generator)) for top in largest
    )
    first, second, x = (
        gaussian(c1, c0, k1h, k1w),
        gaussian(c2, c1, k2h, k2w, seed=1),
        gaussian(c1, seed=2),
    )
    matrix = kernel_composition_system(gaussian(c2, c0, 1, 1), first, second, CPU).matrix
    height, width = k1h + k2h - 1, k1w + k2w - 1
    composed = matrix.matvec(x).reshape(c2, height, width, c0).permute(0, 3, 1, 2)
    image = gaussian(2, c0, 8, 9, seed=3)
    expected = F.conv2d(F.conv2d(image, first) * x[:, None, None], second)
    assert torch.allclose(F.conv2d(image, composed), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk_bytes", [1, 500, 2**25])
def test_two_convolutions_in_sequence_are_the_composed_weight(shape, chunk_bytes, monkeypatch):
    """PyTorch applies A, the scales and B in sequence, independently of the operator."""
    features = draw("he_uniform", shape, 23, seed=5, layer=1)
    monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk_bytes)
    operator = KhatriRao.of(*features.weights(), torch.float64, CPU)
    inner, outer = gaussian(23, seed=2), gaussian(shape.outputs, seed=3)
    image = gaussian(2, shape.inputs, 9, 8, seed=4)
    first, second = (w.double() for w in features.weights())
    hidden = F.conv2d(image, first[:, :, None, None]) * inner[:, None, None]
    expected = F.conv2d(hidden, second) * outer[:, None, None]
    composed = composed_weight(operator, Scales(inner, outer), features)
    assert torch.allclose(F.conv2d(image, composed), expected, rtol=1e-10, atol=1e-12)
    weight = gaussian(*composed.shape, seed=5)
    assert torch.allclose(
        operator.rmatvec(weight.permute(0, 2, 3, 1).reshape(-1)),
        torch.einsum("oluv,ocuv,lc->l", second, weight, first),
    )


@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("chunk_bytes", [4000, 50_000])
def test_temporaries_stay_below_the_bound(chunk_bytes, many, monkeypatch):
    monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk_bytes)
    operator = KhatriRao(gaussian(300, 12), gaussian(300, 6))
    largest, multiply = 0, torch.Tensor.__mul__

    def watched(a, b):
        nonlocal largest
        product = multiply(a, b)
        largest = max(largest, product.numel() * product.element_size())
        return product

    monkeypatch.setattr(torch.Tensor, "__mul__", watched)
    operator.matvec(gaussian(300, many))
    assert 0 < largest <= chunk_bytes


def test_leading_part_has_the_first_columns():
    matrix, weights = KhatriRao(gaussian(20, 12), gaussian(20, 6, seed=1)), gaussian(2, 4, 18)
    for operator in (matrix, Eliminated(matrix, weights[0], skip=weights[1])):
        count = operator.shape[1] // 2
        assert torch.equal(operator.leading(count).dense(), operator.dense()[:, :count])


def test_bf16_products_are_within_its_rounding():
    operator = KhatriRao(gaussian(400, 24), gaussian(400, 8, seed=1))
    rounded = operator.to(BFLOAT16)
    for exact, product, vector in (
        (operator.matvec, rounded.matvec, gaussian(400, 2)),
        (operator.rmatvec, rounded.rmatvec, gaussian(192, 2)),
    ):
        expected, actual = exact(vector), product(vector.float())
        assert actual.dtype == torch.float32
        assert 1e-5 < (actual.double() - expected).norm() / expected.norm() < 1e-2


def test_elimination_handles_a_dead_output_and_a_single_weight():
    weight = torch.zeros(3, 4, 1, 1, dtype=torch.float64)
    weight[0, 2] = 1.5
    target = TargetLayer("t", weight, torch.zeros(3))
    shape = target.shape
    features = draw("he_normal", shape, shape.minimum_width, 0, 0)
    system = layer_system(target, features, CPU, orthogonal=False)
    x = torch.linalg.solve(system.operator.dense(), system.rhs)
    scales = system.scales(x)
    assert torch.allclose(composed_weight(system.matrix, scales, features), weight, atol=1e-10)


@pytest.mark.parametrize("excess", [0, 3])
@pytest.mark.parametrize(
    ("k1", "k2", "kt"), [(1, 3, 3), (3, 3, 5), (2, 2, 3), (3, 3, 3), (3, 1, 1)]
)
def test_target_is_rebuilt_in_the_composed_kernel(k1, k2, kt, excess):
    """With n = c2 c0 |dim(k2, k1)|, n - c2 + 1 features suffice, also where Δk > 0."""
    c2, c0, side = 3, 2, k1 + k2 - 1
    n = c2 * c0 * side**2
    width = n - c2 + 1 + excess
    first, second = gaussian(width, c0, k1, k1), gaussian(c2, width, k2, k2, seed=1)
    target = gaussian(c2, c0, kt, kt, seed=2)
    system = kernel_composition_system(target, first, second, CPU)
    scales = system.scales(torch.linalg.pinv(system.operator.dense()) @ system.rhs)
    image = gaussian(1, c0, 12, 12, seed=3)
    reached = (
        F.conv2d(F.conv2d(image, first) * scales.inner[:, None, None], second)
        * scales.outer[:, None, None]
    )
    expected = F.conv2d(image, embed(target, (side, side)))
    assert torch.allclose(reached, expected, rtol=1e-6, atol=1e-6)


def test_embedded_target_is_centred():
    weight = gaussian(2, 3, 3, 1)
    wide = embed(weight, (5, 4))
    assert torch.equal(wide[:, :, 1:4, 1:2], weight)
    assert wide.abs().sum() == weight.abs().sum()
    with pytest.raises(UserError, match="cannot hold a target kernel of 3x1"):
        embed(weight, (2, 4))


def test_mismatched_factors_are_refused():
    with pytest.raises(ValueError, match="matrices of c1 rows"):
        KhatriRao(torch.zeros(3, 2), torch.zeros(4, 2))


def test_factors_are_rounded_to_lower_precision_but_never_widened():
    """Half of float64's memory; products widen one block at a time."""
    matrix = KhatriRao(torch.randn(9, 4), torch.randn(9, 3))
    widened, rounded = matrix.to(FLOAT64), matrix.to(BFLOAT16)
    assert (widened.first.dtype, widened.dtype) == (torch.float32, torch.float64)
    assert rounded.first.dtype == rounded.transposed.dtype == torch.bfloat16


def test_columns_of_zero_or_subnormal_norm_stay_finite():
    norms = torch.tensor([0.0, 1e-310, 0.25, 2.0], dtype=torch.float64)
    assert inverse_norms(norms).tolist() == [0, 1 / torch.finfo(torch.float64).tiny, 4, 0.5]
