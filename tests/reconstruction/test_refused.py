"""Models that use weights other than by calling layers: refused by name, the rest kept."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bnrecon
from bnrecon.reconstruction.refusal import RefusedLayers

X = torch.randn(8, 6, 5, generator=torch.Generator().manual_seed(1))
READ = "its weight is read outside of the layer"
HOOKS = "its forward hooks would be lost with it"


class Pair(nn.Module):
    """Two convolutions, called as a subclass does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 6, 1), nn.Conv1d(6, 3, 1)

    def forward(self, x):
        return self.second(self.first(x))


class ByFunction(Pair):
    """Applies its first layer by a function, and only reads the second one's dtype."""

    def forward(self, x):
        y = F.conv1d(x.to(self.second.weight.dtype), self.first.weight, self.first.bias)
        return self.second(y)


class ByFunctionToo(Pair):
    """Calls its layer, and applies the layer's weight once more."""

    def forward(self, x):
        return self.second(self.first(x) + F.conv_transpose1d(x, self.first.weight))


class ByFunctionByDefault(Pair):
    """Reads the weight only when called without options."""

    def forward(self, x, scale=None):
        y = F.conv1d(x, self.first.weight) if scale is None else self.first(x) * scale
        return self.second(y)


class ByClosure(Pair):
    """Bypasses any copy of the model."""

    def __init__(self):
        super().__init__()
        self.body = lambda x: self.first(x)

    def forward(self, x):
        return self.second(self.body(x))


class ByWeakReference(Pair):
    def __init__(self):
        super().__init__()
        self.owner = weakref.ref(self.first)

    def forward(self, x):
        return self.second(self.owner()(x))


class Clamps(Pair):
    def forward(self, x):
        self.first.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class ChangesStride(Pair):
    def forward(self, x):
        self.first.stride = (2,)
        return super().forward(x)


class BareWeights(Pair):
    """A masked weight, and a linear layer like Conv1D of transformers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Identity()
        self.masked_weight = nn.Parameter(torch.randn(6, 6, 1))
        self.transposed, self.bias = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.zeros(5))
        self.register_buffer("mask", torch.ones(6, 1, 1))

    def forward(self, x):
        y = self.second(F.conv1d(x, self.masked_weight * self.mask))
        return torch.addmm(self.bias, y.flatten(0, 1), self.transposed)


class Recurrent(Pair):
    """Has a layer that no source can replace."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRU(5, 5, batch_first=True)

    def forward(self, x):
        return self.second(self.first(x)[0])


class Centred(nn.Conv1d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Standardised(nn.Conv1d):
    def forward(self, x):
        return F.conv1d(x, self.weight - self.weight.mean(), self.bias)


class Doubling(nn.Conv1d):
    def __call__(self, x):
        return 2 * super().__call__(x)


def pair_with(layer):
    pair = Pair()
    pair.first = layer
    return pair


def replaced():
    layer = nn.Conv1d(6, 6, 1)
    layer.forward = lambda x: 3 * x
    return layer


def hooked(register):
    pair = Pair()
    getattr(pair.first, register)(lambda _module, inputs, *output: 2 * (output or inputs)[0])
    return pair


MODELS = {
    "function": (ByFunction, {"first": f"{READ}, by conv1d"}),
    "function too": (ByFunctionToo, {"first": f"{READ}, by conv_transpose1d"}),
    "function at first": (ByFunctionByDefault, {"first": f"{READ}, by conv1d"}),
    "closure": (ByClosure, {"first": READ}),
    "weak reference": (ByWeakReference, {"first": READ}),
    "clamp": (Clamps, {"first": f"{READ}, by clamp_"}),
    "setting": (ChangesStride, {"first": "the network's forward changes its settings"}),
    "recurrent": (Recurrent, {"first": "GRU is neither a convolution nor a linear layer"}),
    "weights of no layer": (
        BareWeights,
        {
            "masked_weight": "used by a call of conv1d, not by a module",
            "transposed": "used by a call of addmm, not by a module",
        },
    ),
    **{
        kind.__name__: (
            lambda kind=kind: pair_with(kind(6, 6, 1)),
            {"first": f"{kind.__name__} computes something of its own"},
        )
        for kind in (Centred, Standardised, Doubling)
    },
    "replaced": (lambda: pair_with(replaced()), {"first": "Conv1d computes something of its"}),
    "hook": (lambda: hooked("register_forward_hook"), {"first": HOOKS}),
    "hook before": (lambda: hooked("register_forward_pre_hook"), {"first": HOOKS}),
}


# A trace follows the model's own layers, a run those of a copy; only the trace sees a clamp.
SEEN_BY = {"closure": ("run",), "weak reference": ("run",), "clamp": ("trace",)}


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in MODELS for way in SEEN_BY.get(name, ("trace", "run"))]
)
def test_weights_not_used_by_a_call_are_named_and_kept(name, way):
    (make, reasons), images = MODELS[name], X if way == "run" else None
    torch.manual_seed(0)
    model = make().eval()
    with pytest.raises(RefusedLayers) as caught:
        bnrecon.reconstruct(model, images=images)
    assert set(caught.value.refused) == set(reasons)
    for part, reason in reasons.items():
        assert caught.value.refused[part].startswith(reason)
    kept = bnrecon.reconstruct(model, unsupported="keep", images=images)
    assert [layer.name for layer in kept.layers] == ["second"]
    assert all(any(reason in note for note in kept.notes) for reason in reasons.values())
    torch.testing.assert_close(kept.network(X), model(X), rtol=1e-4, atol=1e-4)
