"""M by tiles of rows, from signs, drawn numbers and files: same numbers, same products."""

import numpy as np
import pytest
import torch
from random_layer import gaussian

from bnrecon.features import LayerShape, draw
from bnrecon.features.matrix import feature_operator
from bnrecon.operators import generated, signs
from bnrecon.operators import rows as rows_module
from bnrecon.operators.base import CHUNK_BYTES
from bnrecon.operators.generated import Generated
from bnrecon.operators.rows import HeldRows, TableRows
from bnrecon.operators.signs import ExpandedSigns, SignMatrix, expand
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64

CPU = torch.device("cpu")
SHAPES = [
    LayerShape(6, 4, (3, 3)),
    LayerShape(5, 3),
    LayerShape(1, 7, (2,)),
    LayerShape(3, 2, (1, 2, 2)),
]


def operators(shape, width=77, name="sign", storage="regenerate"):
    stored, tiled = (
        feature_operator(draw(name, shape, width, 3, 1, storage=way), torch.float64, CPU)
        for way in ("memory", storage)
    )
    assert isinstance(tiled, Generated)
    return stored, tiled


def set_tiles(monkeypatch, rows):
    """Let a tile have so many rows; ``None`` keeps the usual number."""
    if rows is not None:
        monkeypatch.setattr(generated, "TILE_ROWS", rows)
        monkeypatch.setattr(generated, "TILE_BYTES", 0)


@pytest.fixture(params=["held", "drawn in each product"])
def held(request, monkeypatch):
    if request.param != "held":
        monkeypatch.setattr(signs, "HELD_BYTES", 0)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("many", [(), (1,), (3,)])
@pytest.mark.parametrize("rows", [None, 1, 16, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_match_the_dense_matrix(shape, rows, many, monkeypatch):
    monkeypatch.setattr(signs, "DRAWN_BYTES", 100)
    set_tiles(monkeypatch, rows)
    stored, operator = operators(shape)
    dense = stored.dense()
    assert torch.equal(operator.dense(), dense)
    x, y = gaussian(77, *many), gaussian(shape.equations, *many, seed=1)
    assert torch.allclose(operator.matvec(x), dense @ x, rtol=1e-12, atol=1e-14)
    assert torch.allclose(operator.rmatvec(y), dense.T @ y, rtol=1e-12, atol=1e-14)
    assert torch.allclose(operator.column_norms(), dense.norm(dim=0), rtol=1e-12)
    assert torch.equal(operator.columns(slice(30, 51)), dense.T[30:51])
    leading = operator.leading(33)
    assert torch.equal(leading.dense(), dense[:, :33])
    assert torch.allclose(leading.matvec(x[:33]), dense[:, :33] @ x[:33], atol=1e-13)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(("name", "storage"), [("sign", "regenerate"), ("he_uniform", "disk")])
def test_sections_and_nested_sections_have_their_rows(name, storage, held):
    for rows in (
        operators(SHAPES[0], 77, name, storage)[1].first,
        operators(SHAPES[0])[1].transposed,
    ):
        matrix = rows.hold(torch.float32, CPU) if held else rows
        whole = matrix.values(slice(None), torch.float32, CPU)
        part = matrix.section(slice(16, 70))
        assert part.rows == 54
        assert torch.equal(part.values(slice(None), torch.float32, CPU), whole[16:70])
        inner = part.section(slice(32, 40)).hold(torch.float32, CPU)
        assert torch.equal(inner.values(slice(None), torch.float32, CPU), whole[48:56])


@pytest.mark.parametrize(
    ("name", "storage"), [("he_normal", "regenerate"), ("he_uniform", "disk"), ("er_sign", "disk")]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_drawn_and_mapped_rows_match_the_dense_matrix(
    shape, name, storage, monkeypatch
):
    monkeypatch.setattr(rows_module, "TILE", 100)  # keeps nothing in float64
    stored, operator = operators(shape, 77, name, storage)
    assert isinstance(operator.transposed, TableRows) == (77 * operator.transposed.columns > 100)
    dense, x, y = stored.dense(), gaussian(77), gaussian(shape.equations, seed=1)
    assert torch.equal(operator.dense(), dense)
    assert torch.allclose(operator.column_norms(), dense.norm(dim=0), rtol=1e-12)
    assert torch.equal(operator.leading(33).dense(), dense[:, :33])
    for rows in (None, 1, 16, 40):
        set_tiles(monkeypatch, rows)
        assert torch.allclose(operator.matvec(x), dense @ x, rtol=1e-12, atol=1e-13)
        assert torch.allclose(operator.rmatvec(y), dense.T @ y, rtol=1e-12, atol=1e-13)
    for precision, most in ((FLOAT32, 1e-6), (BFLOAT16, 1e-2)):
        rounded = operator.to(precision)
        assert rounded.transposed.table.dtype == precision.factors
        product = rounded.matvec(x.to(precision.vectors)).double()
        assert (product - dense @ x).norm() < most * (dense @ x).norm()


def test_exact_rows_are_never_all_in_memory():
    """Each product reads every row once, by tiles; iterations read a rounded copy."""
    read = []

    def table(start, stop):
        read.append((stop - start) * 500)
        return torch.ones(5, stop - start, 100)

    second = TableRows(20_000, 500, table)
    first = HeldRows(torch.ones(20_000, 3, dtype=torch.float64))
    operator = Generated(second, first, CPU)
    operator.rmatvec(operator.matvec(torch.ones(20_000, dtype=torch.float64)))
    assert sum(read) == 2 * 20_000 * 500
    assert max(read) <= rows_module.TILE
    rounded = operator.to(BFLOAT16)
    read.clear()
    rounded.rmatvec(rounded.matvec(torch.ones(20_000)))
    assert read == []
    assert rounded.transposed.table.element_size() == 2


@pytest.mark.usefixtures("held")
def test_rounded_products_round_vectors_but_no_signs():
    shape = LayerShape(6, 4, (3, 3))
    stored, operator = operators(shape, 500)
    x, y = gaussian(500), gaussian(shape.equations)
    for precision, most in ((FLOAT32, 1e-6), (BFLOAT16, 1e-2)):
        rounded = operator.to(precision)
        assert rounded.precision is precision
        for exact, product, vector in (
            (stored.matvec, rounded.matvec, x),
            (stored.rmatvec, rounded.rmatvec, y),
        ):
            actual, expected = product(vector.to(precision.vectors)), exact(vector)
            assert actual.dtype == precision.vectors
            assert (actual.double() - expected).norm() / expected.norm() < most
    ones = torch.zeros(500)
    ones[17] = 1
    column = operator.to(BFLOAT16).matvec(ones)
    assert torch.equal(column, operator.matvec(ones.double()).float())


def test_rows_are_the_same_bits_in_any_order_and_size():
    factor = draw("sign", LayerShape(6, 4, (3, 3)), 1001, 0, 0).by_rows()[1]
    whole = factor.signs(slice(None), torch.float32)
    assert whole.shape == (1001, 54)
    assert set(whole.unique().tolist()) == {-1.0, 1.0}
    rng = np.random.default_rng(0)
    for start, stop in np.sort(rng.integers(0, 1002, (50, 2))):
        part = factor.signs(slice(int(start), int(stop)), torch.float64)
        assert torch.equal(part.float(), whole[start:stop])
    for rows in (1, 16, 100, 5000):
        tiles = [(part, tile.clone()) for part, tile in factor.tiles(rows, torch.bfloat16, CPU)]
        assert [part.start for part, _ in tiles[1:]] == [part.stop for part, _ in tiles[:-1]]
        assert torch.equal(torch.cat([tile for _, tile in tiles]).float(), whole)
    assert torch.equal(
        factor.hold(torch.float32, CPU).signs(slice(3, 900), torch.float32), whole[3:900]
    )


def test_each_bit_is_the_sign_of_one_entry_in_every_dtype():
    words = torch.from_numpy(np.arange(-(2**15), 2**15, dtype=np.int16)[None])
    bits = (words.int() >> torch.arange(16)[:, None]) & 1
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(expand(words, dtype), (1 - 2 * bits).to(dtype))


@pytest.mark.parametrize("rows", [None, 1, 16, 40])
@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_signs_kept_by_a_gpu_give_the_products_of_their_bits(shape, rows, monkeypatch):
    set_tiles(monkeypatch, rows)
    exact, asked = operators(shape)[1], []
    bits = exact.to(BFLOAT16)
    monkeypatch.setattr(
        generated, "has_room_for_signs", lambda count, _: asked.append(count) or True
    )
    kept = exact.to(BFLOAT16)
    assert asked == [77 * (exact.transposed.columns + exact.first.columns)]
    assert isinstance(bits.transposed, SignMatrix)
    assert isinstance(kept.transposed, ExpandedSigns)
    assert isinstance(kept.first, ExpandedSigns)
    x, y = gaussian(77).float(), gaussian(shape.equations, seed=1).float()
    for one, other in ((bits, kept), (bits.leading(50), kept.leading(50))):
        assert torch.equal(one.matvec(x[: one.shape[1]]), other.matvec(x[: one.shape[1]]))
        assert torch.equal(one.rmatvec(y), other.rmatvec(y))
    assert kept.to(BFLOAT16).transposed is kept.transposed  # not expanded twice
    assert kept.leading(50).transposed.table.data_ptr() == kept.transposed.table.data_ptr()
    assert isinstance(kept.to(FLOAT64).transposed, SignMatrix)
    assert torch.equal(kept.to(FLOAT64).dense(), exact.dense())


def test_gpu_keeps_bf16_signs_if_half_its_memory_minus_three_tiles_suffices(monkeypatch):
    gpu, numbers = torch.device("cuda"), 10**9
    least = 2 * (2 * numbers + 3 * CHUNK_BYTES["cuda"])
    for free, enough in ((least, True), (least - 2, False), (0, False)):
        monkeypatch.setattr(signs, "available_memory", lambda _, free=free: free)
        assert signs.has_room_for_signs(numbers, gpu) == enough


def test_no_factor_is_formed_inside_a_product(monkeypatch):
    """Every tile has the requested size, and few bits are drawn at once."""
    monkeypatch.setattr(signs, "HELD_BYTES", 0)
    monkeypatch.setattr(signs, "DRAWN_BYTES", 2**12)
    drawn = []

    def draw_bytes(start, stop):
        drawn.append(stop - start)
        return np.zeros(stop - start, dtype="u1")

    factors = [SignMatrix(10_000, columns, 1.0, draw_bytes) for columns in (50, 8)]
    set_tiles(monkeypatch, 160)
    operator = Generated(*factors, CPU, FLOAT32)
    operator.rmatvec(operator.matvec(torch.ones(10_000)))
    assert max(drawn) <= 2**12
    assert sum(drawn) == 2 * sum(factor.bytes for factor in factors)
