"""Training only normalizations, by one convolution instead of two (Burkholz 2024, Sect. 3.2)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.config import composition
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.shapes import LayerShape
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.normalization_vgg import normalization_vgg

SHAPES = [
    LayerShape(4, 3, (3, 3)),
    LayerShape(3, 5),
    LayerShape(2, 2, (5, 3)),
    LayerShape(3, 2, (2, 4)),
]


SMALL = ((3, 8, 8), 10, 4, [1, 1], "relu")


class Plain(nn.Module):
    """The pair as PyTorch modules: Conv2d, BatchNorm2d, Conv2d with zero padding."""

    def __init__(self, pair):
        super().__init__()
        width, shape = len(pair.gamma), pair.shape
        self.first = nn.Conv2d(shape.inputs, width, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(
            width,
            shape.outputs,
            shape.kernel,
            padding=(shape.kernel[0] // 2, shape.kernel[1] // 2),
            bias=False,
        )
        self.double()
        with torch.no_grad():
            self.first.weight.copy_(pair.first[:, :, None, None])
            self.second.weight.copy_(pair.second)
            self.norm.weight.copy_(pair.gamma)
            self.norm.bias.copy_(pair.beta)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


def pair_and_plain(shape, features="he_normal"):
    kind = DISTRIBUTIONS[features]
    width = shape.equations - 4 if kind.at_most_n else shape.equations + (0 if kind.widths else 7)
    pair = CollapsedPair(shape, width, features, "batchnorm", seed=1, number=2).double()
    with torch.no_grad():
        pair.gamma.copy_(torch.randn(width, generator=torch.Generator().manual_seed(0)))
        pair.beta.copy_(torch.randn(width, generator=torch.Generator().manual_seed(1)))
    return pair, Plain(pair)


@pytest.mark.parametrize("features", sorted(set(DISTRIBUTIONS) - {"cauchy"}))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_gradients_and_running_statistics_match_the_plain_pair(shape, features):
    pair, plain = pair_and_plain(shape, features)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):  # running statistics after several batches
        x = 2 * torch.randn(5, shape.inputs, 6, 7, generator=generator, dtype=torch.float64) + 1
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, wanted = pair(ours), plain(theirs)
        assert (got - wanted).abs().max() < 1e-12 * wanted.abs().max()
    weights = torch.randn(got.shape, generator=generator, dtype=torch.float64)
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    for mine, other in (
        (ours.grad, theirs.grad),
        (pair.gamma.grad, plain.norm.weight.grad),
        (pair.beta.grad, plain.norm.bias.grad),
    ):
        assert (mine - other).abs().max() < 1e-12 * max(1.0, float(other.abs().max()))
    assert pair.first.grad is None
    assert pair.second.grad is None
    pair.eval(), plain.eval()
    assert (pair(x) - plain(x)).abs().max() < 1e-12 * plain(x).abs().max()


@pytest.mark.parametrize("inner", ["batchnorm", "scale"])
def test_collapsed_pair_is_the_same_function(inner):
    pair = CollapsedPair(SHAPES[0], 120, "he_normal", inner, 0, 0).double()
    x = torch.randn(3, 3, 5, 5, dtype=torch.float64)
    got = pair(x)
    pair.collapsed = False
    torch.testing.assert_close(pair(x), got, rtol=1e-12, atol=1e-12)


def test_pair_under_autocast_is_as_accurate_as_its_convolution():
    """For inputs far from 0, whose mean the shift has to subtract again."""
    pair, _ = pair_and_plain(LayerShape(4, 3, (3, 3)))
    pair = pair.float()
    x = torch.randn(8, 3, 9, 9, generator=torch.Generator().manual_seed(2)) + 5
    wanted = pair(x)
    scale, _ = pair._scale_and_shift(x)
    exact = F.conv2d(x, pair.weight(scale), padding=1)
    with torch.autocast("cpu", torch.bfloat16):
        got, low = pair(x), F.conv2d(x, pair.weight(scale), padding=1)
    assert got.dtype == torch.bfloat16
    assert (got - wanted).norm() < 2 * (low - exact).norm()


def test_single_pixel_has_no_statistics():
    pair, plain = pair_and_plain(LayerShape(3, 5))
    x = torch.randn(1, 5, 1, 1, dtype=torch.float64)
    for network in (pair, plain):
        with pytest.raises(ValueError, match=r"two pixels|more than 1 value"):
            network(x)
    assert pair.running_covariance.isfinite().all()


def test_plain_bias_is_wrong_only_at_borders():
    pair, plain = pair_and_plain(SHAPES[0])
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    wanted = plain(x)
    scale, shift = pair._scale_and_shift(x)
    taps = pair.second.permute(0, 2, 3, 1).flatten(0, 2)
    kernel = ((taps * scale) @ pair.first).reshape(4, 3, 3, 3).permute(0, 3, 1, 2)
    biased = F.conv2d(x, kernel, (taps @ shift).reshape(4, -1).sum(1), padding=1)
    difference = (biased - wanted).abs()
    assert difference[:, :, 1:-1, 1:-1].max() < 1e-11
    assert difference.max() > 0.1


def test_only_normalizations_train_and_the_seed_restores_frozen_weights():
    def make(seed):
        torch.manual_seed(seed)
        return normalization_vgg(*SMALL, "he_normal", 5, "batchnorm")

    network, again, other = make(3), make(3), make(4)
    pairs = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, CollapsedPair)
    }
    assert len(pairs) == 3
    assert all(
        torch.equal(pair.first, dict(again.named_modules())[name].first)
        for name, pair in pairs.items()
    )
    assert not any(
        torch.equal(pair.second, dict(other.named_modules())[name].second)
        for name, pair in pairs.items()
    )
    counted = sum(p.numel() for p in network.parameters())
    widths = [4 * 3 * 9 + 5, 4 * 4 * 9 + 5, 10 * 4 + 5]
    assert counted == sum(2 * width for width in widths) + 2 * (4 + 4 + 10)
    assert not any("first" in name or "second" in name for name in network.state_dict())


@pytest.mark.parametrize("features", ["id_cond", "ortho_cond"])
def test_orthogonal_features_can_start_from_any_weight(features):
    shape = LayerShape(4, 3, (3, 3))
    weight = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    pair = CollapsedPair(shape, shape.equations, features, "scale", seed=0, number=0).start_from(
        weight
    )
    x = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(pair(x), F.conv2d(x, weight, padding=1), atol=1e-4)


def test_sparse_features_start_from_a_masked_weight_of_the_same_variance():
    shape = LayerShape(16, 16, (3, 3))
    weight = torch.randn(16, 16, 3, 3, generator=torch.Generator().manual_seed(0))
    pair = CollapsedPair(
        shape, shape.equations // 5, "sparse_id_cond", "scale", seed=0, number=0
    ).start_from(weight)
    impulses = torch.eye(16).reshape(16, 16, 1, 1) * F.pad(torch.ones(1, 1, 1, 1), (1, 1, 1, 1))
    built = pair(impulses).flip(2, 3).transpose(0, 1)  # the kernel, from its impulse responses
    kept = built != 0
    assert int(kept.sum()) == shape.equations // 5
    assert torch.allclose(
        built[kept], weight[kept] * (shape.equations / (shape.equations // 5)) ** 0.5, atol=1e-5
    )


def test_layers_of_one_shape_have_different_features():
    network = normalization_vgg((4, 8, 8), 10, 4, [3], "relu", "he_normal", 5, "scale")
    first, *others = [module for module in network.modules() if isinstance(module, CollapsedPair)]
    assert first.first.shape == others[0].first.shape
    assert not torch.equal(first.first, others[0].first)


def test_features_none_is_the_same_network_with_weights():
    options = ((3, 16, 16), 10, 4, [1, 2], "relu")
    pairs = normalization_vgg(*options, "he_normal", 10, "scale")
    weights = normalization_vgg(*options, "none", 10, "scale")
    assert [name for name, _ in pairs.named_modules()] == [
        name for name, _ in weights.named_modules()
    ]
    kinds = [type(module) for module in weights.modules()]
    assert nn.Linear not in kinds
    assert kinds.count(nn.Conv2d) == 4
    assert weights(torch.randn(2, 3, 16, 16)).shape == (2, 10)


def normalized_loss(output, upstream):
    """A function of only the direction of a layer's weight, as eps is 0."""
    centred = output - output.mean((0, 2, 3), keepdim=True)
    return (centred / centred.square().mean((0, 2, 3), keepdim=True).sqrt() * upstream).mean()


@pytest.mark.parametrize("start", [1.0, 0.05])
@pytest.mark.parametrize("inner", ["scale", "batchnorm"])
def test_scales_take_shorter_steps_than_weights(inner, start):
    """By three fan-in times the squared start: first-order decrease of the loss, over draws."""
    shape = LayerShape(6, 5)  # without borders
    decreases = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        pair = CollapsedPair(shape, 130, "he_normal", inner, seed, 0).double()
        pair.eps = 0
        x = torch.randn(40, 5, 3, 3, generator=generator, dtype=torch.float64)
        upstream = torch.randn(40, 6, 3, 3, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            pair.gamma.fill_(start)
            weight = pair.weight(pair._scale_and_shift(x)[0])
            weight = weight / weight.square().mean().sqrt() / (3 * 5) ** 0.5  # as PyTorch starts
        weight.requires_grad_()
        losses = normalized_loss(pair(x), upstream), normalized_loss(F.conv2d(x, weight), upstream)
        assert torch.allclose(*losses, atol=1e-10)
        for loss in losses:
            loss.backward()
        decreases.append([pair.gamma.grad.square().sum(), weight.grad.square().sum()])
    scales, weights = torch.tensor(decreases).sum(0)
    assert float(weights / scales) == pytest.approx(3 * 5 * start**2, rel=0.15)


def test_start_is_a_learning_rate_for_momentum_and_decay():
    shape, start, rate, decay = LayerShape(4, 3, (3, 3)), 0.1, 0.02, 0.3
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(6, 8, 3, 5, 5, generator=generator, dtype=torch.float64)
    upstream = torch.randn(8, 4, 5, 5, generator=generator, dtype=torch.float64)
    products = []
    for g, lr, weight_decay in ((start, rate, decay), (1, rate / start**2, decay * start**2)):
        pair = CollapsedPair(shape, 120, "he_normal", "scale", 0, 0).double()
        with torch.no_grad():
            pair.gamma.fill_(g)
        optimizer = torch.optim.SGD([pair.gamma], lr, 0.9, weight_decay=weight_decay)
        for step, x in enumerate(batches):
            optimizer.param_groups[0]["lr"] = lr * (step + 1)  # a warm-up
            optimizer.zero_grad()
            normalized_loss(pair(x), upstream).backward()
            optimizer.step()
        products.append(pair.gamma.detach() / g)
    assert (products[0] - 1).abs().max() > 0.01  # it has moved
    assert torch.allclose(*products, rtol=1e-9, atol=0)


def initial_weights(features, inner, **options):
    torch.manual_seed(0)
    network = normalization_vgg(*SMALL, features, 5, inner, **options)
    return [
        module.gamma if isinstance(module, CollapsedPair) else module.weight
        for module in network.modules()
        if isinstance(module, CollapsedPair | nn.Conv2d)
    ]


@pytest.mark.parametrize("inner", ["batchnorm", "scale"])
def test_weights_start_is_one_over_the_root_of_three_fan_in(inner):
    fans = (27, 36, 4)
    for usual, start, slower, fan_in in zip(
        initial_weights("he_normal", inner),
        initial_weights("he_normal", inner, start="weights"),
        initial_weights("he_normal", inner, start="weights", step=1 / 16),
        fans,
        strict=True,
    ):
        assert set(usual.tolist()) == {1.0}
        assert torch.allclose(start, torch.full_like(start, (3 * fan_in) ** -0.5))
        assert torch.allclose(slower, 4 * start)


@pytest.mark.parametrize("features", ["none", "ortho_cond"])
def test_weights_and_dense_features_start_as_in_pytorch_or_at_mean_square_one(features):
    options = {"oversampling": 1.0}
    usual = initial_weights(features, "scale", **options)
    same = initial_weights(features, "scale", start="weights", **options)
    slowed = initial_weights(features, "scale", start="ones", **options)
    for before, again, after, fan_in in zip(usual, same, slowed, (27, 36, 4), strict=True):
        assert torch.equal(before, again)
        assert torch.allclose(after, before * (3 * fan_in) ** 0.5)
        assert float(after.detach().square().mean()) == pytest.approx(1, rel=0.5)


def test_weight_targets_keep_their_names_and_the_file_names_the_start():
    line = ["target=vgg18_normalization"]
    assert composition.compose(line).target.start == "weights"
    assert composition.compose([*line, "target.features=none"]).target.start == "usual"
    assert composition.compose([*line, "target.start=usual"]).target.start == "usual"
