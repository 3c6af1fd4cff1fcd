"""A normalization is folded only where a plain call of the network applies it to its layer."""

import builtins
import enum
import functools

import pytest
import torch
from networks import difference
from torch import fx, nn
from torch.nn.utils import parametrize

import bnrecon
from bnrecon.reconstruction.tracing import foldable, trace


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 2, 6, 6, dtype=torch.float64, generator=generator)


class Pair(nn.Module):
    """A convolution and a normalization, for subclasses to call."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)


class WithOption(Pair):
    def forward(self, x, raw=None):
        y = self.conv(x)
        return y if raw is None else self.bn(y)


class WithFlag(Pair):
    """By default both; the first argument has a default too."""

    def forward(self, x=None, normalize=True, *, twice=False):
        y = self.conv(x)
        y = self.bn(y) if normalize else y
        return self.conv(y) if twice else y


class TwiceByDefault(Pair):
    def forward(self, x, once=None):
        y = torch.relu(self.bn(self.conv(x)))
        return y if once is not None else self.conv(y)


class Reads(Pair):
    """Adds a number read from the normalization or the convolution."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))) + self.read(self)


class ChangesNorm(Pair):
    """Changes the normalization first."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        self.change(self.bn, x)
        return torch.relu(self.bn(self.conv(x)))


READS = {
    "bias": lambda pair: pair.conv.bias.view(1, -1, 1, 1),
    "shift": lambda pair: pair.bn.bias[:, None, None],
    "variance": lambda pair: pair.bn.running_var.sqrt().mean(),
    "penalty": lambda pair: sum(value.abs().sum() for value in pair.bn.parameters()),
}
SETS = {
    "epsilon": lambda bn, _: setattr(bn, "eps", 1.0),
    "mean": lambda bn, x: setattr(bn, "running_mean", torch.ones(2, dtype=x.dtype)),
    "mode": lambda bn, _: bn.train(),
}


class Mode(enum.Enum):
    PLAIN, NORMALIZED = 1, 2


class WithMode(Pair):
    def forward(self, x, mode=Mode.PLAIN, options=(), **more):
        y = self.conv(x)
        plain = mode is Mode.PLAIN and not options and more.get("mask") is None
        return torch.relu(y) if plain else self.bn(y)


class OverridesCall(WithOption):
    def __call__(self, x):
        return super().__call__(x, raw=True)


class ChangesOnce(Pair):
    """Changes its state once, which a trace would do a second time."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.seen, self.ready = [], False

    def forward(self, x):
        if not self.ready:
            self.mean.div_(2)
            self.ready = True
        self.seen.append(x)
        return torch.relu(self.bn(self.conv(x - self.mean)))


class InContainer(Pair):
    """A PyTorch container calls the layer once more, where a trace does not look."""

    def __init__(self):
        super().__init__()
        self.again = nn.DataParallel(self.conv)

    def forward(self, x):
        return self.bn(self.conv(x)) + self.again(x)


class ReadsMetadata(Pair):
    """Reads dtype and device of parameters, not their numbers."""

    def forward(self, x):
        if self.conv.bias is not None:
            x = x.to(self.conv.bias.dtype)
        (device,) = {value.device for value in self.parameters()}
        return torch.relu(self.bn(self.conv(x.to(device))))


class Shifted(nn.Module):
    def forward(self, value):
        return value + 1


class ReadsAComputedBias(Pair):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self.conv, "bias", Shifted())

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))) + self.conv.bias.view(1, -1, 1, 1)


class ChecksTheType(Pair):
    """Uses its BatchNorm for what is not a tensor."""

    def __init__(self, check):
        super().__init__()
        self.check = check

    def forward(self, x):
        y = self.conv(x)
        return torch.relu(y) if self.check(x) else self.bn(y)


CHECKS = {
    "isinstance": lambda x: isinstance(x, torch.Tensor),
    "one of several classes": lambda x: isinstance(x, (list, torch.Tensor)),
    "of all": lambda x: all(isinstance(value, torch.Tensor) for value in (x, x)),
    "is_tensor": torch.is_tensor,
    "no list": lambda x: not isinstance(x, (list, tuple, dict)),
}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x


class PassesASizeToTorch(Pair):
    def forward(self, x):
        y = self.bn(self.conv(x))
        return y + torch.arange(y.shape[-1])


class KeepsItsInput(Pair):
    def forward(self, x):
        self.last = x
        return self.bn(self.conv(x))


class OwnGradient(Pair):
    def forward(self, x):
        return Twice.apply(self.bn(self.conv(x)))


class PlainSubclass(Pair):
    """Its layer is of a subclass that overrides nothing."""

    def __init__(self):
        super().__init__()
        self.conv = type("Conv", (nn.Conv2d,), {})(2, 2, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


def randomized(network):
    """The network in float64 with random normalizations."""
    generator = torch.Generator().manual_seed(2)
    for part in network.double().modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            for value in (part.weight, part.bias, part.running_mean, part.running_var):
                value.detach().uniform_(0.5, 2, generator=generator)
    return network.eval()


@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
@pytest.mark.parametrize(
    ("kind", "folded"),
    [
        (WithOption, False),
        (WithFlag, True),
        (TwiceByDefault, False),
        *((functools.partial(Reads, read), False) for read in READS.values()),
        *((functools.partial(ChangesNorm, change), False) for change in SETS.values()),
        *((functools.partial(ChecksTheType, check), False) for check in CHECKS.values()),
        (WithMode, False),
        (OverridesCall, True),
        (ChangesOnce, True),
        (InContainer, False),
        (ReadsMetadata, True),
        (ReadsAComputedBias, False),
        (PlainSubclass, True),
        (PassesASizeToTorch, True),
        (KeepsItsInput, True),
        (OwnGradient, True),
    ],
)
def test_folding_follows_a_plain_call(kind, folded, calibration):
    network = randomized(kind())
    rebuilt = bnrecon.reconstruct(network, images=calibration)
    assert difference(rebuilt.network, network, images()) < 1e-8
    assert isinstance(rebuilt.network.bn, nn.Identity) == folded
    assert all(layer.converged for layer in rebuilt.layers)


@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
@pytest.mark.parametrize(
    "asked", [lambda x: x.shape, lambda x: x.shape[-1], lambda x: x.chunk(2), lambda x: x.size(0)]
)
def test_what_is_no_tensor_is_not_taken_for_one(asked, calibration):
    network = randomized(ChecksTheType(lambda x: isinstance(asked(x), torch.Tensor)))
    rebuilt = bnrecon.reconstruct(network, images=calibration).network
    assert difference(rebuilt, network, images()) < 1e-8
    assert isinstance(rebuilt.bn, nn.Identity) == (calibration is not None)


class ScalesIfTrained(Pair):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        y = self.conv(x)
        return self.bn(torch.tanh(y * self.scale) if isinstance(self.scale, nn.Parameter) else y)


def test_refused_type_checks_leave_isinstance_as_it_was():
    before = builtins.isinstance
    with pytest.raises(fx.proxy.TraceError, match="whether a value is a tensor"):
        trace(randomized(ScalesIfTrained()))
    assert builtins.isinstance is before
    rebuilt = bnrecon.reconstruct(network := randomized(ScalesIfTrained())).network
    assert difference(rebuilt, network, images()) < 1e-8


def test_run_shows_a_path_that_a_trace_misses():
    network = randomized(ChecksTheType(lambda x: type(x) is torch.Tensor))
    assert foldable(trace(network), network) == {"conv": "bn"}
    rebuilt = bnrecon.reconstruct(network, images=images())
    assert isinstance(rebuilt.network.bn, nn.BatchNorm2d)
    assert difference(rebuilt.network, network, images()) < 1e-8


def test_batchnorm_after_a_linear_layer_of_sequences_is_not_folded():
    """BatchNorm1d takes dimension 1 of (N, 6, 4), a linear layer the last."""
    network = randomized(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    sequences = torch.randn(3, 6, 4, dtype=torch.float64)
    matrices = torch.randn(3, 4, dtype=torch.float64)
    kept = bnrecon.reconstruct(network, images=sequences).network
    assert difference(kept, network, sequences) < 1e-8
    assert isinstance(kept[1], nn.BatchNorm1d)
    assert isinstance(bnrecon.reconstruct(network, images=matrices).network[1], nn.Identity)


@pytest.mark.parametrize("change", ["hook", "method"])
def test_call_includes_wrappers_of_forward(change):
    network = randomized(WithOption())
    if change == "hook":
        network.register_forward_pre_hook(lambda _, args: (*args, True))
    else:
        network.forward = functools.partial(network.forward, raw=True)
    rebuilt = bnrecon.reconstruct(network)
    assert difference(rebuilt.network, network, images()) < 1e-8
    assert foldable(trace(network), network) == {"conv": "bn"}
