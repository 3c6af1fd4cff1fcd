"""Feature distributions and specs: bit-reproducible, with the stated law."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from random_layer import ELSEWHERE
from scipy import stats
from scipy.special import ndtri

import bnrecon
from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features import pair, portable_random
from bnrecon.features.distributions import orthonormal_columns
from bnrecon.features.drawing import draw
from bnrecon.features.normal_quantile import normals
from bnrecon.features.portable_random import BLOCK, PIECE, Stream
from bnrecon.features.register import (
    DISTRIBUTIONS,
    choose_width,
    distribution,
    register_features,
)
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import ACTIVATIONS, FeatureSpec
from bnrecon.operators.structured import Kronecker
from bnrecon.reconstruction.groups import group_number
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import use_threads

SHAPE = LayerShape(6, 4, (3, 3))
# Drawn once by this code (numpy 2.4, x86-64 with AVX-512); any machine must draw the same bits.
GOLDEN = {
    "he_normal": "80700b9c5476925f",
    "he_uniform": "c204b7f99266747c",
    "sign": "51da281f31b4a37a",
    "sparse_he_normal": "88caaedda76c0f3b",
    "er_sign": "ef28fc37cfdf8f76",
    "sparse_id_cond": "8ebd941dbd837e3a",
    "id_cond": "identity 6x4x3x3",
}
# LAPACK's last bits differ by machine: the first two numbers of A and B.
GOLDEN_NUMBERS = {
    "orthogonal": [0.0671271, -0.0026585, 0.0002034, 0.0263172],
    "ortho_cond": [0.6390709, 0.6695253, 0.0017896, -0.1067339],
}
ALL = [*GOLDEN, *GOLDEN_NUMBERS]


def one(name, seed=0, layer=0, shape=SHAPE, **options):
    return draw(name, shape, choose_width(name, shape), seed, layer, **options)


def dense(features):
    first, second = (w.double() for w in features.weights())
    return torch.einsum("ilm,lc->imcl", second.flatten(2), first).reshape(
        features.shape.equations, -1
    )


@pytest.mark.parametrize("name", ALL)
def test_draw_depends_on_seed_and_layer(name):
    same = [
        torch.equal(a, b) for a, b in zip(one(name).weights(), one(name).weights(), strict=True)
    ]
    assert all(same)
    if name not in ("id_cond", "sparse_id_cond"):  # both are the whole identity at width n
        assert one(name).digest() != one(name, seed=1).digest()
        assert one(name).digest() != one(name, layer=1).digest()


@pytest.mark.parametrize("name", GOLDEN)
def test_draws_are_the_recorded_bits(name):
    assert one(name).digest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("skip", ["none", "inner"])
@pytest.mark.parametrize("name", ALL)
def test_default_dtype_does_not_change_draws(name, skip):
    shape = LayerShape(4, 4, (3, 3))
    expected = one(name, shape=shape, skip=skip).digest()
    torch.set_default_dtype(torch.float64)
    try:
        assert one(name, shape=shape, skip=skip).digest() == expected
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", GOLDEN_NUMBERS)
def test_draws_through_lapack_are_the_recorded_numbers(name):
    first, second = one(name).weights()
    drawn = [*first.flatten()[:2].tolist(), *second.flatten()[:2].tolist()]
    assert drawn == pytest.approx(GOLDEN_NUMBERS[name], abs=1e-5)


def test_any_bytes_of_a_stream_match_the_whole():
    stream, size = Stream(3, 2), 4 * BLOCK
    whole = stream.bits(2 * BLOCK + 100, "w").astype("<u4").view("u1")
    rng = np.random.default_rng(0)
    near = [(at, at + count) for at in (0, 31, 32, size - 1, size) for count in (0, 1, 8, 33)]
    for start, stop in [*near, (5, 2 * size + 9), *np.sort(rng.integers(0, len(whole), (50, 2)))]:
        assert np.array_equal(stream.raw(int(start), int(stop), "w"), whole[start:stop])


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_any_runs_of_numbers_match_the_whole_bit_for_bit(law):
    draw_numbers = getattr(Stream(3, 2), law)
    whole = draw_numbers((2 * BLOCK + 100,), "w", 0.3)
    rng = np.random.default_rng(0)
    for length in (0, 1, 7, 8, 300, 40_000, PIECE + 5):
        starts = [0, 7, BLOCK - 3, *rng.integers(0, len(whole) - length, 4).tolist()]
        runs = draw_numbers((len(starts), length), "w", 0.3, starts)
        wanted = torch.stack([whole[start : start + length] for start in starts])
        assert torch.equal(runs.view(torch.int32), wanted.view(torch.int32))


def test_as_many_threads_draw_as_torch_may_use(monkeypatch):
    asked = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count):
            asked.append(count)
            super().__init__(count)

    monkeypatch.setattr(portable_random, "ThreadPoolExecutor", Pool)
    before, numbers = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 6):  # more than FEW_THREADS make normal numbers in longer runs
            torch.set_num_threads(threads)
            drawn = Stream(0, 0).normal((7 * PIECE + 3,), "w")
            numbers.append((drawn.numpy(), Stream(0, 0).raw(5, 4 * 7 * BLOCK, "w")))
    finally:
        torch.set_num_threads(before)
    assert asked == [2, 2, 6, 6]
    for drawn in numbers[1:]:
        assert all(map(np.array_equal, drawn, numbers[0]))


def test_threads_do_not_change_orthogonal_features():
    normal, drawn = Stream(0, 0).normal((400, 400), "w"), []
    for threads in (1, 2):  # here LAPACK's own results differ
        with use_threads(threads):
            drawn.append(orthonormal_columns(normal))
    assert torch.equal(*drawn)


def test_large_seeds_have_sequences_of_their_own():
    grouped = Stream(5, group_number(2, 7)).normal((4,), "first")
    assert not torch.equal(Stream(5 + (2 << 32), 7).normal((4,), "first"), grouped)


def test_bits_are_unchanged_since_results_ship():
    bits = Stream(3, 2).bits(2 * BLOCK + 100, "w").astype("<u4")
    assert hashlib.sha256(bits.tobytes()).hexdigest()[:16] == "8ba1d698635a49cc"


@pytest.mark.parametrize(("name", "storage"), ELSEWHERE)
def test_features_drawn_or_read_by_parts_match_those_in_memory(name, storage, monkeypatch):
    monkeypatch.setattr(pair, "RUN_BYTES", {"cpu": 1})
    shape = LayerShape(5, 4, (3, 2))
    width = shape.equations if DISTRIBUTIONS[name].at_most_n else 173
    held, made = (draw(name, shape, width, 3, 2, storage=way) for way in ("memory", storage))
    assert made.digest() == held.digest()
    assert made.redrawn == held.redrawn
    whole = held.weights()
    assert all(map(torch.equal, made.weights(), whole))
    assert torch.equal(torch.cat([part for _, part in made.first_parts()]), whole[0])
    assert torch.equal(torch.cat([part for _, part in made.second_parts()], 1), whole[1])
    for start, stop in np.sort(np.random.default_rng(0).integers(0, width + 1, (20, 2))):
        part = slice(int(start), int(stop))
        first, second = made.part(part, torch.float64, torch.device("cpu"))
        assert torch.equal(first, whole[0][part].double())
        assert torch.equal(second, whole[1][:, part].double())


def test_normal_quantiles_agree_with_scipy():
    ends = [at + step for at in (0, 2**31 - 8, 2**32 - 16) for step in range(16)]
    bits = np.concatenate([np.linspace(0, 2**32 - 1, 20001), ends]).astype(np.uint32)
    normals(bits, 1.0, quantiles := np.empty(len(bits), np.float32))
    exact = ndtri((bits + 0.5) / 2**32)
    assert np.abs(quantiles / exact - 1).max() < 2e-7


def test_normals_and_uniforms_have_their_laws():
    stream = Stream(0, 0)
    assert stats.kstest(stream.normal((200_000,), "n").numpy(), "norm").pvalue > 1e-3
    assert stats.kstest((stream.uniform((200_000,), "u").numpy() + 1) / 2, "uniform").pvalue > 1e-3


def test_he_variances_are_two_over_fan_in():
    shape = LayerShape(32, 16, (3, 3))
    for name in ("he_normal", "he_uniform"):
        features = draw(name, shape, 4000, 0, 0)
        assert features.first.var() == pytest.approx(2 / 16, rel=0.02)
        assert features.second.var() == pytest.approx(2 / (4000 * 9), rel=0.02)


def test_orthogonal_weights_are_orthonormal_when_flattened():
    features = one("orthogonal")
    assert torch.allclose(features.first.T @ features.first, torch.eye(4), atol=1e-5)
    flat = features.second.flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(6), atol=1e-5)


@pytest.mark.parametrize("name", ["sparse_he_normal", "er_sign"])
def test_half_of_sparse_entries_are_zero_and_signs_are_balanced(name):
    features = draw(name, LayerShape(32, 64, (3, 3)), 2000, 0, 0)
    for weight, fan_in in ((features.first, 64), (features.second, 2000 * 9)):
        magnitude = (2 / fan_in) ** 0.5
        if name == "er_sign":
            assert torch.isin(weight, torch.tensor([-magnitude, 0, magnitude])).all()
        assert (weight == 0).float().mean() == pytest.approx(0.5, abs=0.01)
        assert (weight > 0).float().mean() == pytest.approx(0.25, abs=0.01)


def test_signs_have_he_variance_are_balanced_and_independent():
    features = draw("sign", LayerShape(32, 64, (3, 3)), 2000, 0, 0)
    for weight, fan_in in zip(features.weights(), (64, 2000 * 9), strict=True):
        signs = weight.transpose(0, 1).flatten(1) if weight.ndim == 4 else weight
        assert signs.abs().max() == signs.abs().min() == pytest.approx((2 / fan_in) ** 0.5)
        signs = signs.double().sign()
        assert abs(float(signs.mean())) < 4 / signs.numel() ** 0.5
        for products in (
            signs[1:] * signs[:-1],
            signs[16:] * signs[:-16],
            signs[:, 1:] * signs[:, :-1],
        ):
            assert abs(float(products.mean())) < 4 / products.numel() ** 0.5


def test_dead_sparse_features_are_redrawn_and_counted_unless_strict():
    rgb = LayerShape(8, 3, (3, 3))
    kept = draw("sparse_he_normal", rgb, 2000, 0, 0, strict=True)
    dead = int((kept.first == 0).all(1).sum())
    assert kept.redrawn == 0
    assert 180 < dead < 320  # 2000 / 8
    live = draw("sparse_he_normal", rgb, 2000, 0, 0)
    assert live.redrawn >= dead
    assert not (live.first == 0).all(1).any()
    untouched = ~(kept.first == 0).all(1)
    assert torch.equal(live.first[untouched], kept.first[untouched])


def test_strict_sparse_features_lack_rank_at_the_minimum_width():
    rgb = LayerShape(4, 3, (3, 3))
    strict, live = (
        draw("sparse_he_normal", rgb, rgb.minimum_width, 0, 0, strict=s) for s in (True, False)
    )
    assert torch.linalg.matrix_rank(dense(strict)) < rgb.minimum_width
    assert torch.linalg.matrix_rank(dense(live)) == rgb.minimum_width


def test_id_cond_is_the_identity_and_ortho_cond_is_orthogonal():
    assert torch.equal(dense(one("id_cond")), torch.eye(SHAPE.equations, dtype=torch.float64))
    matrix = dense(one("ortho_cond"))
    assert torch.allclose(
        matrix @ matrix.T, torch.eye(SHAPE.equations, dtype=torch.float64), atol=1e-5
    )


def test_sum_of_ortho_cond_has_a_factor_per_side():
    """M M^T has entries Σ_q u2_iq u2_i'q · Σ_d u1_dj u1_dj', for any U2 and U1."""
    generator = torch.Generator().manual_seed(2)
    u2, u1 = (torch.randn(side, side, generator=generator).double() for side in (4, 3))
    matrix = Kronecker(u2, u1).columns(slice(None)).T
    sums = torch.einsum("iq,kq,jd,ld->ijkl", u2, u2, u1, u1).reshape(12, 12)
    torch.testing.assert_close(matrix @ matrix.T, sums)
    pair = one("ortho_cond")
    for factor in pair.factors:
        eye = torch.eye(len(factor))
        torch.testing.assert_close(factor @ factor.T, eye.to(factor), atol=1e-5, rtol=0)


def test_id_cond_of_minimum_width_shares_one_feature():
    features = draw("id_cond", SHAPE, SHAPE.minimum_width, 0, 0)
    matrix = dense(features)
    assert matrix.shape == (216, 211)
    assert matrix.sum(0).tolist() == [6.0] + [1.0] * 210
    assert torch.equal(matrix.sum(1), torch.ones(216, dtype=torch.float64))
    # One weight of each output, c0 · 9 rows apart.
    assert matrix[:, 0].nonzero()[:, 0].tolist() == list(range(0, 216, 36))


def test_sparse_id_cond_is_a_random_part_of_the_identity():
    def matrix(seed, width=43):
        return dense(draw("sparse_id_cond", SHAPE, width, seed, 0))

    assert matrix(0).shape == (216, 43)
    assert torch.equal(matrix(0).T @ matrix(0), torch.eye(43, dtype=torch.float64))
    assert torch.equal(matrix(0).sum(0), torch.ones(43, dtype=torch.float64))
    assert not torch.equal(matrix(0), matrix(1))
    assert torch.equal(matrix(0, 216), torch.eye(216, dtype=torch.float64))
    share = torch.stack([matrix(seed).sum(1) for seed in range(200)]).mean(0)
    # All entries are equally likely.
    assert float((share - 43 / 216).abs().max()) < 5 * (0.2 * 0.8 / 200) ** 0.5


@pytest.mark.parametrize(
    ("name", "width"),
    [("id_cond", 100), ("id_cond", 217), ("ortho_cond", 211), ("sparse_id_cond", 217)],
)
def test_impossible_widths_of_a_distribution_are_refused(name, width):
    with pytest.raises(UserError, match=r"features for a layer of|has at most n"):
        draw(name, SHAPE, width, 0, 0)


def test_widths_are_resolved():
    assert choose_width("he_normal", SHAPE) == 324
    assert choose_width("id_cond", SHAPE) == 216
    assert choose_width("he_normal", SHAPE, oversampling=1.1) == 238
    assert choose_width("he_normal", SHAPE, oversampling=1.001) == 217  # never below c1 / n
    assert choose_width("he_normal", SHAPE, excess=-5) == 211
    assert choose_width("he_normal", SHAPE, width="minimum") == SHAPE.minimum_width == 211
    assert choose_width("he_normal", SHAPE, width="77") == 77


def test_every_registered_distribution_is_tested():
    assert {
        name for name, kind in DISTRIBUTIONS.items() if not kind.registered.user_defined
    } == set(ALL)
    with pytest.raises(UserError, match="did you mean 'he_normal'"):
        draw("henormal", SHAPE, 10, 0, 0)


def test_skip_between_different_channels_has_variance_2_over_inputs():
    skip = draw("he_normal", LayerShape(64, 50), 10, 0, 0, skip="inner").skip_weight
    assert skip.shape == (64, 50)
    assert float(skip.var()) == pytest.approx(2 / 50, rel=0.1)


def test_skip_connection_is_drawn_apart_from_the_features():
    drawn = draw("he_normal", LayerShape(8, 6), 48, 0, 0, skip="inner")
    assert not torch.isin(drawn.skip_weight, drawn.weights()[0]).any()


def test_every_activation_is_covered_by_a_theorem():
    assert set(ACTIVATIONS) == set(FIRST_ACTIVATIONS)
    inexact = {name for name in ACTIVATIONS if not FIRST_ACTIVATIONS[name].exact}
    for name in ACTIVATIONS:
        if name in inexact:
            with pytest.raises(UserError, match=f"skip=outer: not possible with activation={name}"):
                FeatureSpec(skip="outer", activation=name)
        else:
            assert FeatureSpec(skip="outer", activation=name).activation == name


def test_traits_of_a_users_distribution():
    """Each is asked for where the built-in distribution with this trait has it."""
    shape, asked = LayerShape(3, 2), []

    def identity(shape, width, stream):
        return pair.identity_weights(shape, torch.arange(width))

    def masked(shape, width, stream, strict):
        asked.append(strict)
        return identity(shape, width, stream)

    register_features("promised", orthogonal=True)(identity)
    register_features("few", at_most_n=True, portable=False)(identity)
    register_features("named", widths=("maximum",))(identity)
    register_features("masked", takes_strict=True)(masked)
    assert choose_width("promised", shape) == choose_width("few", shape) == 6
    assert not distribution("few").portable
    report = bnrecon.reconstruct(torch.nn.Linear(2, 3).eval(), "promised").layers[0]
    assert (report.solver, report.converged) == ("closed_form", True)
    for name, width, allowed in (("few", 7, "at most n = 6"), ("named", 5, "6 .width=maximum.")):
        with pytest.raises(UserError, match=allowed):
            draw(name, shape, width, 0, 0)
    draw("masked", shape, 6, 0, 0, strict=True)
    assert set(asked) == {True}
    assert choose_width("named", shape) == 6
    with pytest.raises(UserError, match=r"widths=most.*minimum"):
        register_features("wrong", widths=("most",))


@pytest.mark.parametrize(
    "values", [{"seed": -1}, {"seed": 0.5}, {"seed": 2**63}, {"width": 0}, {"width": -1}]
)
def test_impossible_seeds_and_widths_are_named(values):
    with pytest.raises(UserError, match="|".join(values)):
        draw("he_normal", LayerShape(2, 3), **({"width": 6, "seed": 0, "layer": 0} | values))


def test_unknown_skip_is_named():
    with pytest.raises(UserError, match=r"skip=.*outer"):
        draw("he_normal", LayerShape(2, 3), 6, 0, 0, skip="middle")


@pytest.mark.parametrize("name", ["sign", "sparse_he_normal", "er_sign"])
def test_default_width_of_small_layers_makes_full_rank_sure(name):
    """With 1.5 n features 12% or more of these are singular, of sign with n + 24 0.2%."""
    shape = LayerShape(2, 2)
    width = choose_width(name, shape)
    for seed in range(1000):
        a, b = draw(name, shape, width, seed, 0).weights()
        products = torch.einsum("lj,il->ijl", a, b.flatten(1))
        assert torch.linalg.matrix_rank(products.reshape(4, width)) == 4
