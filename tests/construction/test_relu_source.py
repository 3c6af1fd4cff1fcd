"""Theorem 1 and Corollary 1 on ReLU networks, against an independent evaluation."""

import itertools

import pytest
import torch
from networks import relu_target
from random_layer import gaussian
from torch import nn
from torch.nn.utils import prune

from bnrecon.construction import relu_source
from bnrecon.construction.random_linear import khatri_rao, solve_scales
from bnrecon.construction.relu_source import (
    RebuiltNetwork,
    check_error,
    functional_error,
    relu_network,
)
from bnrecon.construction.skip_source import skip_chain
from bnrecon.runtime.errors import RunError, UserError

SHAPES = {
    "square": [6, 6, 6],
    "widths that differ": [3, 7, 2, 5],
    "one layer": [4, 3],
    "eight layers": [5] * 9,
}
KINDS = {"plain": (False, False), "normalized": (True, False), "ReLU at the end": (True, True)}


def in_the_ball(inputs, radius):
    x = torch.randn(256, inputs, generator=torch.Generator().manual_seed(9)).double()
    return x * radius / x.norm(dim=1, keepdim=True) * torch.rand(256, 1).double().sqrt()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("build", [relu_network, skip_chain])
def test_random_network_becomes_the_target_by_its_normalizations(build, shape, kind):
    sizes = SHAPES[shape]
    target = relu_target(sizes, *KINDS[kind])
    options = {"block": 2} if build is skip_chain else {}
    rebuilt = build(target, radius=2.0, seed=3, **options)
    x = in_the_ball(sizes[0], 2.0)
    with torch.no_grad():
        wanted = target(x)
        difference = (rebuilt.network(x) - wanted).abs().max() / wanted.abs().max()
    assert difference < 1e-8
    assert rebuilt.functional_error < 1e-8


@pytest.mark.parametrize("build", [relu_network, skip_chain])
def test_only_normalizations_are_trainable_and_their_statistics_are_random(build):
    network = build(relu_target([4, 4, 4])).network
    norms = {name for name, m in network.named_modules() if isinstance(m, nn.BatchNorm1d)}
    trainable = {name for name, p in network.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[0] for name in trainable} == norms
    for name, module in network.named_modules():
        if name in norms:
            assert module.running_mean.abs().min() > 0
            assert (module.running_var != 1).all()


@pytest.mark.parametrize("build", [relu_network, skip_chain])
def test_no_two_frozen_layers_have_the_same_weights(build):
    network = build(relu_target([4, 4, 4])).network
    weights = [module.weight for module in network.modules() if isinstance(module, nn.Linear)]
    pairs = [(a, b) for a, b in itertools.combinations(weights, 2) if a.shape == b.shape]
    assert pairs
    assert not any(torch.equal(a, b) for a, b in pairs)


def test_source_has_twice_the_depth_and_the_square_of_the_width():
    network = relu_network(relu_target([5, 5, 5, 5])).network
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(5, 25), (25, 5)] * 3
    assert sum(isinstance(m, nn.ReLU) for m in network.modules()) == 5


def test_radius_of_later_layers_has_to_be_propagated():
    """Theorem 1 is proven for ||x|| <= 1; the second layer's inputs are longer."""
    target, x = relu_target([4, 4, 4]), in_the_ball(4, 1.0)
    with torch.no_grad():
        target[0].weight *= 6
        hidden, wanted = target[:2](x), target(x)
        assert hidden.norm(dim=1).max() > 2
        second = relu_network(target[2:], radius=1.0).network
        assert (second(hidden) - wanted).abs().max() > 0.1
        rebuilt = relu_network(target, radius=1.0)
        torch.testing.assert_close(rebuilt.network(x), wanted)
        reach = torch.linalg.matrix_norm(target[0].weight, 2) + target[0].bias.norm()
    assert rebuilt.layers[1].radius >= float(reach)


def test_dense_sources_have_2_d_times_the_targets_weights():
    """Sect. 1 promises a factor of the order of √d, which holds for sparse ones."""
    target = relu_target([5, 5, 5, 5])
    frozen = [m.weight for m in relu_network(target).network if isinstance(m, nn.Linear)]
    trained = [m.weight for m in target if isinstance(m, nn.Linear)]
    assert sum(map(torch.numel, frozen)) == 2 * 5 * sum(map(torch.numel, trained))


@pytest.mark.parametrize(
    ("size", "rank", "dtype", "most"), [(6, 2, torch.float64, 1e-10), (32, 4, torch.float32, 1e-5)]
)
def test_low_rank_layers_need_a_width_of_rank_times_their_size(size, rank, dtype, most):
    """The rank of a product in float32 is also that of its factors."""
    target = relu_target([size] * 3).to(dtype)
    with torch.no_grad():
        for number in (0, 2):
            a, b = gaussian(2, size, rank, seed=number).to(dtype)
            target[number].weight.copy_(a @ b.T)
    rebuilt = relu_network(target, rank=rank)
    assert [layer.width for layer in rebuilt.layers] == [rank * size] * 4
    assert rebuilt.functional_error < most
    with pytest.raises(UserError, match=f"rank={rank - 1}: layer 0 has rank {rank}"):
        relu_network(target, rank=rank - 1)


def test_too_few_scales_give_the_best_approximation_and_a_note():
    """The residual is orthogonal to the range of the scales; the report states its size."""
    v, w, weight = gaussian(4, 9), gaussian(9, 4, seed=1), gaussian(4, 4, seed=2)
    matrix = khatri_rao(v, w)
    scale = solve_scales(v, w, weight)
    residual = matrix @ scale - weight.reshape(-1)
    assert (matrix.T @ residual).norm() < 1e-10
    rebuilt = relu_network(relu_target([4, 4]), width=9)
    assert 0.01 < rebuilt.layers[0].relative_error < 1
    assert rebuilt.functional_error > 0.1
    assert len(rebuilt.notes) == 1


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Skipping(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def with_nan():
    layer = nn.Linear(3, 3)
    layer.weight.data[0, 0] = torch.nan
    return layer


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 3), "model is Linear; it must be an nn.Sequential"),
        (nn.Sequential(nn.Linear(3, 3), nn.Tanh()), "layer 1 is Tanh"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "layer 1: there is no ReLU"),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).train()), "call model.eval"),
        (nn.Sequential(Doubled(3, 3)), "layer 0: Doubled has a forward pass of its own"),
        (Skipping(nn.Linear(3, 3)), "model: Skipping has a forward pass of its own"),
        (nn.Sequential(nn.Linear(3, 3, device="meta")), "holds no numbers"),
        (nn.Sequential(with_nan()), "layer 0: its weight or bias is not finite"),
        (
            nn.Sequential(prune.random_unstructured(nn.Linear(3, 3), "weight", 2)),
            "layer 0: Linear has forward hooks, such as a pruning",
        ),
    ],
)
@pytest.mark.parametrize("build", [relu_network, skip_chain])
def test_unsupported_models_are_named(build, model, message):
    with pytest.raises(UserError, match=message):
        build(model)


def test_options_out_of_range_are_named():
    target = relu_target([3, 3])
    for build, name, wrong in (
        (relu_network, "width", (0, 2.5)),
        (relu_network, "density", (0.0, "half")),
        (relu_network, "rank", (0, True)),
        (relu_network, "seed", (-1, "0")),
        (relu_network, "radius", (0.0, None)),
        (skip_chain, "block", (0, 4, 1.5)),
        (skip_chain, "refinements", (-1, None)),
    ):
        for value in wrong:
            with pytest.raises(UserError, match=f"^{name}="):
                build(target, **{name: value})


def test_scales_are_never_worse_than_least_squares():
    """Sparse systems may be singular although LU meets no zero pivot."""
    for seed in range(40):
        try:
            rebuilt = relu_network(relu_target([3, 3]), density=0.6, seed=seed)
        except RunError as error:
            rebuilt = error.reconstruction
        assert rebuilt.layers[0].relative_error <= 1 + 1e-9, seed
    v, w, weight = gaussian(3, 9), gaussian(9, 3, seed=1), gaussian(3, 3, seed=2)
    v[:, 1], w[1] = v[:, 0], w[0]  # two equal columns of the system
    matrix, wanted = khatri_rao(v, w), weight.reshape(-1, 1)
    best = matrix @ torch.linalg.pinv(matrix) @ wanted - wanted
    residual = matrix @ solve_scales(v, w, weight)[:, None] - wanted
    assert residual.norm() <= best.norm() * (1 + 1e-9)


@pytest.mark.parametrize("build", [relu_network, skip_chain])
def test_reused_module_counts_every_time(build):
    torch.manual_seed(0)
    linear, relu = nn.Linear(4, 4), nn.ReLU()
    target = nn.Sequential(linear, relu, nn.Linear(4, 4), relu, linear).eval()
    rebuilt = build(target)
    layers = rebuilt.layers if build is relu_network else rebuilt.segments
    assert list(dict.fromkeys(layer.name for layer in layers)) == ["0", "2", "4"]
    x = in_the_ball(4, 1.0)
    with torch.no_grad():
        assert torch.allclose(rebuilt.network(x), target.double()(x), atol=1e-7)


def test_functional_error_is_against_the_users_model(monkeypatch):
    """A patched class cannot be detected from a layer."""
    monkeypatch.setattr(nn.ReLU, "forward", lambda _module, x: 2 * x.relu())
    for build in (relu_network, skip_chain):
        with pytest.raises(RunError, match="off by") as raised:
            build(relu_target([3, 3, 3]))
        assert raised.value.reconstruction.functional_error > 0.1


@pytest.mark.parametrize(
    ("error", "limit", "notes", "is_raised"),
    [
        (1e-3, 0.1, 0, False),
        (1.1e-3, 0.1, 1, False),
        (0.1, 0.1, 1, False),
        (0.11, 0.1, 1, True),
        (float("nan"), 0.1, 1, True),
        (0.5, float("inf"), 1, False),
    ],
)
def test_outputs_off_by_a_thousandth_are_noted_and_by_a_tenth_raise(error, limit, notes, is_raised):
    rebuilt = RebuiltNetwork(nn.Sequential(), (), 1.0, error)
    try:
        checked = check_error(rebuilt, [0.0], "a larger block", limit)
    except RunError as failure:
        checked = failure.reconstruction
        assert is_raised
    else:
        assert not is_raised
    assert len(checked.notes) == notes


@pytest.mark.parametrize("build", [relu_network, skip_chain])
def test_normalization_has_the_scale_and_shift_it_computes_with(build):
    """Regardless of ``affine``: PyTorch reads only ``weight`` and ``bias``."""
    target = relu_target([4, 4, 4, 4], normalized=True)
    target[1] = nn.BatchNorm1d(4, affine=False).double()
    target[1].weight, target[1].bias = (nn.Parameter(torch.randn(4).double()) for _ in range(2))
    target[4].weight = None
    target[7].bias = None
    assert build(target.eval()).functional_error < 1e-9


@pytest.mark.parametrize(
    ("build", "options"), [(relu_network, {}), (relu_network, {"rank": 16}), (skip_chain, {})]
)
def test_system_beyond_memory_is_refused_before_any_work(build, options, monkeypatch):
    monkeypatch.setattr(relu_source, "available_memory", lambda _device: 1000)
    with pytest.raises(UserError, match=r"layer 0.* equations for .* scales need .* are available"):
        build(nn.Sequential(nn.Linear(16, 16)), **options)


def test_zero_target_is_rebuilt():
    target = relu_target([3, 3])
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    assert relu_network(target).functional_error < 1e-12
    assert skip_chain(target).functional_error < 1e-12


def test_functional_error_is_the_largest_in_the_whole_ball():
    """Against x1: larger by 1 outside half the radius, or everywhere except near 0."""

    class Off(nn.Module):
        def __init__(self, low, high):
            super().__init__()
            self.low, self.high = low, high

        def forward(self, x):
            size = x.norm(dim=1, keepdim=True)
            return x[:, :1] + ((self.low < size) & (size < self.high)).double()

    def error(low, high):
        return functional_error(Off(low, high), Off(9, 9), 2, 8.0, 0)

    assert error(7.99, 8.01) == pytest.approx(1 / 8, rel=0.01)  # on the sphere
    assert error(3.0, 5.0) == pytest.approx(1 / 8, rel=0.01)  # inside
    assert error(8.1, 9.0) == 0


def test_functions_are_compared_at_inputs_independent_of_the_weights():
    """Even if torch drew the target from the same seed."""
    seen = []

    class Seen(nn.Sequential):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    torch.manual_seed(3)
    weight = torch.randn(64, 64, dtype=torch.float64)
    target = Seen(nn.Linear(64, 64, bias=False)).double()
    target[0].weight.data.copy_(weight)
    assert functional_error(target, target, 64, 1.0, seed=3) == 0
    cosines = nn.functional.normalize(seen[0]) @ nn.functional.normalize(weight).T
    assert cosines.abs().max() < 0.8
    norms = seen[0].norm(dim=1)
    assert norms.max() <= 1 + 1e-12
    torch.testing.assert_close(norms[512:], torch.ones(512, dtype=torch.float64))
