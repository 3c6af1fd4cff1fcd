"""Training normalizations alone, by one convolution instead of two (Burkholz 2024, Sect. 3.2)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.config import composition
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.errors import UserError
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.normalization_vgg import normalization_vgg
from bnrecon.targets.register import build

SHAPES = [LayerShape(4, 3, (3, 3)), LayerShape(3, 5), LayerShape(2, 2, (5, 3))]


class Plain(nn.Module):
    """The pair from PyTorch's own modules: Conv2d, BatchNorm2d, Conv2d with zero padding."""

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
def test_values_gradients_and_running_statistics_are_the_uncollapsed_pairs(shape, features):
    pair, plain = pair_and_plain(shape, features)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):  # the running statistics after several batches
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
def test_collapsed_or_not_is_the_same_function(inner):
    pair = CollapsedPair(SHAPES[0], 120, "he_normal", inner, 0, 0).double()
    x = torch.randn(3, 3, 5, 5, dtype=torch.float64)
    got = pair(x)
    pair.collapsed = False
    torch.testing.assert_close(pair(x), got, rtol=1e-12, atol=1e-12)


def test_a_plain_bias_would_be_wrong_at_borders_and_only_there():
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


def test_only_normalizations_train_and_the_frozen_weights_come_back_from_the_seed():
    options = {
        "width": 4,
        "groups": [1, 1],
        "activation": "relu",
        "features": "he_normal",
        "excess": 5,
        "inner": "batchnorm",
    }

    def make(seed):
        torch.manual_seed(seed)
        return build("vgg_normalization", (3, 8, 8), 10, **options)

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


def test_the_network_learns(tmp_path):
    """Two classes, from chance to nearly all right: gradients reach every normalization."""
    torch.manual_seed(0)
    network = build(
        "vgg_normalization",
        (1, 8, 8),
        2,
        width=4,
        groups=[1, 1],
        activation="relu",
        features="he_normal",
        excess=5,
        inner="batchnorm",
    )
    x = torch.randn(64, 1, 8, 8)
    y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert (network(x).argmax(1) == y).float().mean() > 0.9
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in network.parameters())


def test_mistakes_are_named():
    with pytest.raises(UserError, match=r"^inner=batch: "):
        build(
            "vgg_normalization",
            (1, 8, 8),
            2,
            width=4,
            groups=[1],
            activation="relu",
            features="he_normal",
            excess=0,
            inner="batch",
        )
    with pytest.raises(UserError, match=r"target\.excess=-1"):
        composition.compose(["target=vgg18_normalization", "target.excess=-1"])
    assert composition.compose(["target=vgg18_normalization"]).target.excess == 100


@pytest.mark.parametrize("features", ["id_cond", "ortho_cond"])
def test_a_pair_of_orthogonal_features_can_start_from_any_weight(features):
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
    built = pair(impulses).flip(2, 3).transpose(0, 1)  # the kernel, read off its impulse responses
    kept = built != 0
    assert int(kept.sum()) == shape.equations // 5
    assert torch.allclose(
        built[kept], weight[kept] * (shape.equations / (shape.equations // 5)) ** 0.5, atol=1e-5
    )


def test_no_features_are_the_same_network_with_weights():
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
