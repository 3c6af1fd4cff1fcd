"""Small networks that tests rebuild or train, and a stop request for their training."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets.register import build


def randomize(network, shape, seed=0):
    """Randomize a network's running statistics and normalizations."""
    torch.manual_seed(seed)
    network.train()
    for _ in range(3):
        network(torch.randn(16, *shape))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias)
    return network.eval()


def outputs(network, shape, seed=5):
    with torch.no_grad():
        return network(torch.randn(6, *shape, generator=torch.Generator().manual_seed(seed)))


def difference(network, model, x):
    """The largest difference of two networks' outputs, relative to the largest output."""
    with torch.no_grad():
        ours, theirs = network(x), model(x)
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def recorded(network, kinds, x):
    """Modules of these classes in running order, with their input and output in one pass."""
    seen = {}

    def note(module, inputs, output):
        if isinstance(module, kinds):  # the next module may work in place
            seen[module] = inputs[0], output.clone()

    with torch.no_grad(), register_module_forward_hook(note):
        network(x)
    return seen


def same_state(network, other):
    """Whether two networks hold the same numbers, on any devices."""
    wanted = other.state_dict()
    return all(torch.equal(held.cpu(), wanted[name]) for name, held in network.state_dict().items())


def chain(first=lambda layer: layer):
    """Two convolutions of images of two channels and 6 x 6 pixels; ``first`` may change one."""
    return nn.Sequential(
        first(nn.Conv2d(2, 4, 3)), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten()
    )


def images(count=8, channels=2, side=6):
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1))


class Composed(nn.Module):
    """Parts and a function of them and an input."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


class NormAct(nn.BatchNorm2d):
    """BatchNorm, dropout and ReLU in one module, like timm's BatchNormAct2d."""

    def __init__(self, channels, dropout=0.0):
        super().__init__(channels)
        self.drop, self.act = nn.Dropout(dropout), nn.ReLU()

    def forward(self, x):
        running = (None, None) if self.training else (self.running_mean, self.running_var)
        x = F.batch_norm(x, *running, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(self.drop(x))


def relu_target(sizes, normalized=False, relu_at_end=False, seed=0):
    """A fully connected ReLU network with random statistics, in float64."""
    torch.manual_seed(seed)
    modules = []
    for inputs, outputs in itertools.pairwise(sizes):
        modules.append(nn.Linear(inputs, outputs, bias=not normalized))
        if normalized:
            modules.append(nn.BatchNorm1d(outputs))
        modules.append(nn.ReLU())
    network = nn.Sequential(*(modules if relu_at_end else modules[:-1]))
    return randomize(network, sizes[:1], seed).double()


class StopAfter(StopRequest):
    """Requests a stop after this many checks."""

    def __init__(self, steps):
        super().__init__()
        self.looks = steps

    @property
    def reason(self):
        self.looks -= 1
        return None if self.looks > 0 else "a test wants it"


def small_vgg(seed=0):
    """A VGG of two convolutions for the digits."""
    torch.manual_seed(seed)
    return build("vgg", (1, 8, 8), 10, width=4, groups=[1, 1], activation="relu")


class Residual(nn.Module):
    """A user's CNN: strides, dilation, paddings, optional bias, an addition, an unfolded norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 5, (2, 3), padding=(1, 2), stride=(2, 1), bias=True)
        self.inner = nn.Conv2d(5, 5, 3, padding=2, dilation=2, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.mirror = nn.Conv2d(5, 4, 3, padding=1, padding_mode="reflect", bias=True)
        self.alone = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 4 * 4, 6)
        self.head_norm = nn.BatchNorm1d(6)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.tanh(x + self.norm(self.inner(x)))
        x = self.alone(torch.sigmoid(self.mirror(x)))
        return self.head_norm(self.head(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)))


NETWORKS = {
    "residual": (Residual, (2, 9, 8)),
    "vgg": (
        lambda: build("vgg", (3, 8, 8), 10, width=4, groups=[1, 1], activation="leaky_relu"),
        (3, 8, 8),
    ),
    "mlp": (lambda: build("mlp", (1, 4, 4), 5, width=6, depth=2, activation="tanh"), (1, 4, 4)),
    "even kernel, same padding": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 4, padding="same"), nn.ReLU(), nn.Conv2d(3, 2, 1, stride=2)
        ),
        (1, 7, 7),
    ),
    "bare layer": (lambda: nn.Linear(7, 3), (7,)),
}
