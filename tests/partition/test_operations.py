"""Every operation and call style that a partition supports is exact; others are refused."""

import warnings
from types import MethodType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from planes import plane
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from bnrecon.partition import partition, slice_of
from bnrecon.partition.convolution import conv2d
from bnrecon.partition.tracing import OPERATIONS
from bnrecon.runtime.errors import RunError, UserError

ROW, SIGNAL, IMAGE = (12,), (2, 6), (3, 2, 2)  # shapes of twelve values
torch.manual_seed(0)
WEIGHT = torch.randn(4, 12, dtype=torch.float64)
EXAMPLES = {
    "linear": (ROW, lambda f, x: f(x, WEIGHT)),
    "conv1d": (SIGNAL, lambda f, x: f(x, WEIGHT.view(8, 2, 3), padding=1)),
    "conv2d": (IMAGE, lambda f, x: f(x, WEIGHT.view(4, 3, 2, 2))),
    "batch_norm": (IMAGE, lambda f, x: f(x, WEIGHT[0, :3], WEIGHT[1, :3].abs())),
    "pad": (IMAGE, lambda f, x: f(x, (1, 0, 2, 1), "constant", 0.7)),
    "avg_pool1d": (SIGNAL, lambda f, x: f(x, 2)),
    "avg_pool2d": (IMAGE, lambda f, x: f(x, 2, ceil_mode=True)),
    "adaptive_avg_pool1d": (SIGNAL, lambda f, x: f(x, 4)),
    "adaptive_avg_pool2d": (IMAGE, lambda f, x: f(x, 1)),
    "neg": (ROW, lambda f, x: f(x)),
    "truediv": (ROW, lambda f, x: f(x, 3)),
    "clone": (ROW, lambda f, x: f(x)),
    "mean": (IMAGE, lambda f, x: f(x, (2, 3))),
    "contiguous": (ROW, lambda f, x: f(x)),
    "flatten": (IMAGE, lambda f, x: f(x, 1)),
    "view": (ROW, lambda f, x: f(x, x.size(0), 3, x.size(1) // 3)),
    "reshape": (ROW, lambda f, x: f(x, (-1, x.shape[1:].numel() // 6, 6))),
    "add": (ROW, lambda f, x: f(f(x, WEIGHT[0]), x)),
    "sub": (ROW, lambda f, x: f(f(x, 0.3), -x)),
    "cat": (IMAGE, lambda f, x: f([x, -x, x], -3)),
    "mul": (ROW, lambda f, x: f(f(x, 2.0), WEIGHT[0]) + torch.mul(x, other=0.5)),
    "relu": (ROW, lambda f, x: f(x)),
    "leaky_relu": (ROW, lambda f, x: f(x) + F.leaky_relu(x, 0.3)),
    "prelu": (IMAGE, lambda f, x: f(x, WEIGHT[0, :3]) + f(x, WEIGHT[0, :1])),
    "abs": (ROW, lambda f, x: f(x)),
    "clamp": (ROW, lambda f, x: f(f(x, -0.2), max=0.3) + f(x, WEIGHT[0], WEIGHT[0] + 1)),
    "hardtanh": (ROW, lambda f, x: f(x, -0.2, 0.3)),
    "relu6": (ROW, lambda f, x: f(9 * x)),
    "max_pool1d": (SIGNAL, lambda f, x: torch.cat([f(x, 2), f(x, 3, 2, 1, 2)], -1)),
    "max_pool2d": (IMAGE, lambda f, x: f(x, 2) + f(x, 2, 1, 1)),
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "feature_alpha_dropout"),
        (ROW, lambda f, x: f(x, 0.5, False)),
    ),
    "dropout1d": (SIGNAL, lambda f, x: f(x, 0.5, False)),
    "dropout2d": (IMAGE, lambda f, x: f(x, 0.5, False)),
    "dropout3d": (IMAGE, lambda f, x: f(x, 0.5, False)),
}
MODULES = [
    *((ROW, m) for m in (nn.Linear(12, 3), nn.BatchNorm1d(12), nn.Identity(), nn.Dropout())),
    *((ROW, m) for m in (nn.ReLU(True), nn.LeakyReLU(0.2), nn.PReLU(), nn.PReLU(12))),
    *((ROW, m) for m in (nn.ReLU6(True), nn.Hardtanh(-0.1, 0.2), nn.AlphaDropout())),
    *((SIGNAL, m) for m in (nn.Conv1d(2, 3, 2), nn.BatchNorm1d(2), nn.AvgPool1d(2))),
    *((SIGNAL, m) for m in (nn.AdaptiveAvgPool1d(2), nn.MaxPool1d(2), nn.MaxPool1d(3, 1, 1))),
    *(
        (SIGNAL, m)
        for m in (nn.Dropout1d(), nn.Conv1d(2, 2, 3, padding=2, padding_mode="circular"))
    ),
    *((IMAGE, m) for m in (nn.Conv2d(3, 2, 2, padding="same"), nn.BatchNorm2d(3), nn.PReLU(3))),
    *((IMAGE, m) for m in (nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.MaxPool2d(2, 1, 1))),
    *((IMAGE, m) for m in (nn.Conv2d(3, 2, 2, (1,), [1]), nn.MaxPool2d((2,), [1], [1]))),
    *((IMAGE, m) for m in (nn.ZeroPad2d(1), nn.ConstantPad2d(1, 0.5), nn.ReflectionPad2d(1))),
    *((IMAGE, m) for m in (nn.Flatten(), nn.Dropout2d(), nn.FeatureAlphaDropout())),
]
CONSTANT_SLOPE = {"identity", "affine", "flatten", "reshape", "sum", "product"}


class Calls(nn.Module):
    """A layer of twelve units in a shape, and an operation on it."""

    def __init__(self, shape, operation):
        super().__init__()
        self.first, self.shape, self.operation = nn.Linear(2, 12), shape, operation

    def forward(self, x):
        x = self.first(x)
        return self.operation(x.view(x.size(0), *self.shape))


def exact(network):
    """The partition, checked against the network at a random point of every region."""
    network.double().eval()
    parts = partition(network, plane())
    corners, maps = parts.regions.polygons.vertices, parts.regions.maps
    shares = np.random.default_rng(0).dirichlet(np.ones(corners.shape[1]), len(corners))
    points = np.einsum("rv,rvi->ri", shares, corners)
    with torch.no_grad():
        expected = network(plane().inputs(points)).flatten(1).numpy()
    computed = maps[..., 0] + np.einsum("roi,ri->ro", maps[..., 1:], points)
    assert computed == pytest.approx(expected, abs=1e-12)
    assert parts.regions.areas().sum() == pytest.approx(4.0)
    return parts


def method(name):
    return lambda x, *arguments, **named: getattr(x, name)(*arguments, **named)


def name_of(target):
    return getattr(target, "__name__", target)


@pytest.mark.parametrize("target", OPERATIONS, ids=name_of)
def test_affine_maps_match_the_network_for_every_operation(target):
    shape, example = EXAMPLES[name_of(target)]

    function = target if callable(target) else method(target)
    parts = exact(Calls(shape, lambda x: example(function, x)))
    assert (len(parts.regions) == 1) == (OPERATIONS[target] in CONSTANT_SLOPE)


@pytest.mark.parametrize(("shape", "module"), MODULES, ids=str)
def test_affine_maps_match_the_network_for_every_module(shape, module):
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        nn.init.uniform_(module.running_mean)
        nn.init.uniform_(module.running_var, 0.5, 2.0)
    parts = exact(Calls(shape, module))
    assert {layer.name for layer in parts.layers} <= {"operation"}


def mlp(*middle):
    return nn.Sequential(nn.Linear(2, 20), nn.ReLU(), *middle, nn.Linear(20, 3))


def clip(module, inputs, output):
    return output.clamp(-0.2, 0.3)


class Clipped(nn.Linear):
    def forward(self, input):
        return clip(self, (input,), nn.Linear.forward(self, input))


class Rectified(nn.BatchNorm1d):
    def forward(self, input):
        return super().forward(input).relu()


class Called(nn.Linear):
    def __call__(self, input):
        return super().__call__(input).abs()


def with_hook(module):
    module.register_forward_hook(clip)
    return module


def with_forward(module):
    module.forward = MethodType(Clipped.forward, module)
    return module


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (mlp(Clipped(20, 20)), 3),
        (mlp(Rectified(20)), 2),
        (mlp(Called(20, 20)), 2),
        (mlp(with_hook(nn.Linear(20, 20))), 3),
        (with_hook(mlp()), 3),
        (with_forward(nn.Linear(2, 2)), 2),
    ],
    ids=["subclass", "norm", "call", "hook", "hook of the network", "forward"],
)
def test_computations_besides_layers_are_part_of_the_partition(network, count):
    assert len(exact(network).layers) == count


def test_global_hooks_and_forwards_are_part_of_the_partition(monkeypatch):
    handle = nn.modules.module.register_module_forward_hook(clip)
    try:
        assert len(exact(mlp()).layers) == 1 + 2 * 4
    finally:
        handle.remove()
    linear = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: linear(self, x).abs())
    assert len(exact(mlp()).layers) == 1 + 2


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: prune.l1_unstructured(layer, "weight", 0.4),
        weight_norm,
        spectral_norm,
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        lambda layer: layer.register_forward_hook(
            lambda module, inputs, output: (output.detach().mean(), None)[1]
        ),
    ],
    ids=["pruned", "weight_norm", "spectral_norm", "weight", "spectral", "reads"],
)
def test_hooks_that_compute_a_weight_or_nothing_are_accepted(change):
    network = mlp()
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        change(network[2])
    network(torch.zeros(1, 2))
    assert len(exact(network).layers) == 1


class Skip(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.first, self.second, self.inner = nn.Linear(2, 12), nn.Linear(12, 12), inner

    def forward(self, x):
        return self.inner(self.second, self.first(x))


@pytest.mark.parametrize(
    "inner",
    [
        lambda second, x: second(F.relu(x, inplace=True)) + x,
        lambda second, x: second(x) + F.leaky_relu(x, 0.2, inplace=True) + x,
        lambda second, x: second(x.relu_().mul_(2.0).sub_(second(x))) + x,
        lambda second, x: torch.add(x, second(x), out=x).abs_() + x,
        lambda second, x: second(F.dropout(x, training=False).clamp_(-0.1, 0.2)) - x,
        lambda second, x: second(x.view(-1, 12).relu_()),
        lambda second, x: (lambda rows: x.relu_().view(rows, -1))(x.size(0)),
    ],
    ids=["skip", "leaky", "chain", "out", "dropout", "view", "size"],
)
def test_in_place_changes_are_tracked(inner):
    exact(Skip(inner))


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda second, x: second(x.view(-1, 12).relu_()) + x, "relu_?: changes in place"),
        (lambda second, x: (second(x), x.data.clamp_(0), x)[2], "clamp_?: changes in place"),
        (lambda second, x: (F.hardtanh_(x, 0.0, 0.5), x)[1], "hardtanh_: not supported"),
        (lambda second, x: second(F.dropout(x)), "dropout: not supported"),
        (lambda second, x: F.linear(x, x), "linear: not supported"),
        (lambda second, x: x * x, "mul: not supported"),
    ],
)
def test_unsupported_uses_are_refused(inner, message):
    with pytest.raises(UserError, match=message):
        partition(Skip(inner).double(), plane())


@pytest.mark.parametrize("size", [1, 3, 4, (2, 5)])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"stride": 2, "padding": (0, 1)},
        {"dilation": (1, 2), "padding": 2},
        {"padding": "same"},
        {"groups": 2, "padding": 1},
    ],
)
def test_convolution_of_few_positions_matches_pytorch(size, options):
    torch.manual_seed(0)
    x = torch.randn(3, 4, *(size if isinstance(size, tuple) else (size, size)), dtype=torch.float64)
    groups = options.get("groups", 1)
    kernel = (1, 2) if size == 1 else (2, 2)
    weight = torch.randn(6, 4 // groups, *kernel, dtype=torch.float64)
    for bias in (None, torch.randn(6, dtype=torch.float64)):
        expected = F.conv2d(x, weight, bias, **options)
        torch.testing.assert_close(conv2d(x, weight, bias, **options), expected)


def test_wrong_convolution_is_detected_by_comparison_with_the_network(monkeypatch):
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2), nn.Flatten())
    images = slice_of(torch.rand(3, 1, 4, 4))
    partition(nn.Sequential(*layers), images)
    for module in ("tracing", "convolution"):
        name = f"bnrecon.partition.{module}.conv2d"
        monkeypatch.setattr(name, lambda *values, **options: 1.1 * conv2d(*values, **options))
    with pytest.raises(RunError, match="differ from the network"):
        partition(nn.Sequential(*layers), images)
