"""Products of random signs in 8-bit integers, exact for pre-rounded vectors."""

import pytest
import torch
from random_layer import gaussian

from bnrecon.features import LayerShape, draw
from bnrecon.features.matrix import feature_operator
from bnrecon.operators import integers, signs
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64

pytestmark = pytest.mark.usefixtures("integer_products")
CPU = torch.device("cpu")
WIDTH = 77
SHAPES = [
    LayerShape(6, 4, (3, 3)),
    LayerShape(5, 3),
    LayerShape(1, 7, (2,)),
    LayerShape(3, 2, (1, 2, 2)),
    LayerShape(14, 3),
]


def operator_of(shape, name="sign", storage="regenerate"):
    features = draw(name, shape, WIDTH, 3, 1, storage=storage)
    return feature_operator(features, torch.float64, CPU)


def rounded(vectors):
    levels, steps = integers.round_to_levels(vectors.reshape(len(vectors), -1))
    return (levels * steps).reshape(vectors.shape)


WAYS = [("sign", "memory"), ("er_sign", "memory"), ("sign", "regenerate")]


@pytest.mark.parametrize("bits", ["expanded", "held", "drawn in each product"])
@pytest.mark.parametrize("many", [(), (1,), (3,)])
@pytest.mark.parametrize("tile", [1, 16, 10**6])
@pytest.mark.parametrize(("name", "storage"), WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_rounded_vectors_match_the_dense_matrix(
    shape, name, storage, tile, many, bits, monkeypatch
):
    monkeypatch.setattr(integers, "TILE_ROWS", tile)
    monkeypatch.setattr(integers, "TILE_BYTES", 0)
    if bits == "drawn in each product":
        monkeypatch.setattr(signs, "HELD_BYTES", 0)
    monkeypatch.setattr(integers, "EXPANDED_BYTES", 10**9 if bits == "expanded" else 0)
    exact = operator_of(shape, name, storage=storage)
    operator = integers.IntegerProducts(exact)
    dense = exact.dense()
    x, y = rounded(gaussian(WIDTH, *many)), rounded(gaussian(shape.equations, *many, seed=1))
    assert torch.allclose(operator.matvec(x), dense @ x, rtol=1e-13, atol=1e-13)
    assert torch.allclose(operator.rmatvec(y), dense.T @ y, rtol=1e-13, atol=1e-13)


def test_signs_of_a_user_are_recognized_by_value():
    """From any source and with zeros; a single different number is detected."""
    draw_signs = torch.Generator().manual_seed(0)
    tables = [torch.randint(-1, 2, (5000, side), generator=draw_signs) * 0.3 for side in (6, 2)]
    matrix = KhatriRao(*(table.double() for table in tables))
    x = rounded(gaussian(5000))
    assert torch.allclose(integers.IntegerProducts(matrix).matvec(x), matrix.matvec(x), rtol=1e-12)
    assert integers.find_signs(KhatriRao(*tables)) is not None
    tables[0][4999, 5] = 0.2
    assert integers.find_signs(KhatriRao(*tables)) is None
    assert integers.find_signs(KhatriRao(torch.zeros(9, 3), torch.ones(9, 2))) is None
    assert integers.find_signs(KhatriRao(torch.ones(0, 3), torch.ones(0, 2))) is None


def test_each_vector_has_its_own_rounding_levels():
    vectors = torch.stack([gaussian(1000), 1e-9 * gaussian(1000, seed=1)], 1)
    levels, steps = integers.round_to_levels(vectors)
    assert levels.abs().amax(0).tolist() == [127, 127]
    assert ((levels * steps - vectors).abs() <= 0.5000001 * steps).all()


def test_vectors_too_small_for_a_step_are_zero():
    """1/127 of the smallest float64 is 0, which no number is divided by."""
    vectors = torch.tensor([[0.0, 5e-324, -5e-324], [0.0, 0.0, 5e-324]], dtype=torch.float64)
    levels, steps = integers.round_to_levels(vectors)
    assert torch.equal(levels, torch.zeros(2, 3, dtype=torch.int8))
    assert not steps.any()


def test_sums_that_may_overflow_32_bits_use_64(monkeypatch):
    """Possible from 2^31 / 127 features or equations on; a lower limit stands in."""
    exact, x, y = operator_of(SHAPES[0]), gaussian(WIDTH), gaussian(SHAPES[0].equations)
    whole = integers.IntegerProducts(exact)
    expected = whole.matvec(x), whole.rmatvec(y)
    kinds, zeros, summed = [], torch.zeros, torch.Tensor.sum

    def zeros_seen(*sizes, dtype, **options):
        kinds.append(dtype)
        return zeros(*sizes, dtype=dtype, **options)

    def sum_seen(tensor, dim, dtype):
        kinds.append(dtype)
        return summed(tensor, dim, dtype=dtype)

    monkeypatch.setattr(torch, "zeros", zeros_seen)
    monkeypatch.setattr(torch.Tensor, "sum", sum_seen)
    whole.matvec(x), whole.rmatvec(y)
    assert set(kinds) == {torch.int32}  # once per block; the number of blocks depends on threads
    kinds.clear()
    monkeypatch.setattr(integers, "SUM_LIMIT", 127)
    assert torch.equal(whole.matvec(x), expected[0])
    assert torch.equal(whole.rmatvec(y), expected[1])
    assert set(kinds) == {torch.int64}


@pytest.mark.parametrize("size", [1.0, 1e-300, 9e-322])
def test_tiny_vectors_keep_their_signs(size):
    vector = size * torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    levels, _ = integers.round_to_levels(vector[:, None])
    assert torch.equal(levels[:, 0].sign().double(), vector.sign())
    assert levels.abs().max() <= 127


@pytest.mark.parametrize("precision", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize("stored", [torch.float32, torch.float64])
@pytest.mark.parametrize("sides", [(90, 8), (8, 90), (30, 30), (1, 5)])
def test_integer_gradients_are_off_by_a_hundredth_and_images_exact(
    sides, stored, precision, monkeypatch
):
    """The longer rows and y are rounded to 255 levels, with 1% error of a normal number each."""
    monkeypatch.setattr(integers, "TILE_ROWS", 16)
    monkeypatch.setattr(integers, "TILE_BYTES", 0)
    second, first = (gaussian(WIDTH, side, seed=i).to(stored) for i, side in enumerate(sides))
    second[3] = first[5] = 0
    exact = KhatriRao(second, first, FLOAT64)
    operator = integers.IntegerGradients(exact, precision.with_integer_gradients())
    x, y = gaussian(WIDTH).float(), gaussian(exact.shape[0]).float()
    assert torch.equal(operator.matvec(x), exact.to(precision).matvec(x))
    near, gradient = operator.rmatvec(y).double(), exact.rmatvec(y.double())
    assert near[3] == near[5] == 0
    assert 1e-4 < (near - gradient).norm() / gradient.norm() < 0.02


def test_sums_beyond_32_bits_are_not_attempted():
    """The limit is 127^2 times the longer row."""
    assert integers.IntegerGradients.suit(KhatriRao(torch.zeros(1, 133_144), torch.zeros(1, 1)))
    assert not integers.IntegerGradients.suit(KhatriRao(torch.zeros(1, 1), torch.zeros(1, 133_145)))
