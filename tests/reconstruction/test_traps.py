"""Models whose code does more than call its layers, and layers of unequal sizes."""

import copy
import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from networks import Composed, difference, randomize
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import bnrecon
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import plan_layers
from bnrecon.runtime.errors import RunError, UserError


def images():
    return torch.randn(16, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class ReadsEpsilon(Body):
    """Normalizes by itself and never calls its BatchNorm."""

    def forward(self, x):
        y, bn = self.conv(x), self.bn
        y = (y - bn.running_mean.view(1, -1, 1, 1)) / (bn.running_var + bn.eps).sqrt().view(
            1, -1, 1, 1
        )
        return torch.relu(y)


def switching(channels):
    """Chooses one of two normalizations at run time; the second has these channels."""

    def forward(self, x):
        x = self.conv(x)
        return torch.relu(self.norms[1](x[:, :channels]) if self.second else self.norms[0](x))

    norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(channels)])
    return Composed(forward, conv=nn.Conv2d(3, 4, 3), norms=norms, second=False)


SWITCHING = {"widths": lambda: switching(2), "domains": lambda: switching(4)}


def randomized(kind):
    torch.manual_seed(0)
    return randomize(kind(), (3, 6, 6))


@pytest.mark.parametrize("kind", [Body, ReadsEpsilon, SWITCHING["domains"]])
def test_source_is_verified_only_with_images(kind):
    model = randomized(kind)
    rebuilt = bnrecon.reconstruct(model, images=images())
    assert rebuilt.verified
    assert difference(rebuilt.network, model, images()) < 1e-4
    rebuilt = bnrecon.reconstruct(model)
    assert rebuilt.verified is None
    assert rebuilt.notes[0].startswith("outputs were not compared")


@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
@pytest.mark.parametrize("kind", SWITCHING.values(), ids=SWITCHING)
def test_normalization_chosen_at_run_time_is_kept(kind, calibration):
    model = randomized(kind)
    model.norms[1].running_mean.fill_(3.0)
    rebuilt = bnrecon.reconstruct(model, images=calibration).network
    model.second = rebuilt.second = True
    assert difference(rebuilt, model, images()) < 1e-4


def test_fold_false_folds_nothing():
    model = randomized(Body)
    kept = bnrecon.reconstruct(model, images=images(), fold=False).network
    assert isinstance(kept.bn, nn.BatchNorm2d)
    for end in (1, 2):
        one, other = (nn.Sequential(net.conv, net.bn)[:end] for net in (kept, model))
        assert difference(one, other, images()) < 1e-4
    folded = bnrecon.reconstruct(model, images=images())
    assert [note for note in folded.notes if "bn into conv" in note]


def test_replaced_forwards_and_global_hooks_are_refused(monkeypatch):
    model = randomized(Body)
    plain = nn.Conv2d.forward
    with monkeypatch.context() as patch:
        patch.setattr(nn.Conv2d, "forward", functools.wraps(plain)(lambda self, x: plain(self, x)))
        with pytest.raises(UserError, match=r"torch\.nn\.Conv2d\.forward is replaced"):
            plan_layers(model)
    assert plan_layers(model).layers
    handle = register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(UserError, match="forward hooks are registered for all modules"):
            plan_layers(model)
    finally:
        handle.remove()
    model.conv._conv_forward = functools.partial(model.conv._conv_forward)
    with pytest.raises(UserError, match="conv: Conv2d computes something of its own"):
        plan_layers(model)


# PyTorch's settings at a call count, not the constructor's arguments.


def change_affine(model):
    model.bn = nn.BatchNorm2d(4, affine=False).eval()
    model.bn.weight = nn.Parameter(torch.tensor([0.5, 2.0, 3.0, -1.0]))
    model.bn.bias = nn.Parameter(torch.ones(4))


def change_weight(model):
    model.bn.weight = None


def change_numbers(model):
    model.conv.padding, model.conv.stride, model.conv.dilation = 1, 2, 1


def change_padding(model):
    model.conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular").eval()
    model.conv.padding = (2, 2)


def change_kernel(model):
    model.conv.weight = nn.Parameter(torch.randn(4, 3, 2, 2) / 3)


def change_channels(model):
    model.conv.weight, model.conv.bias = nn.Parameter(torch.randn(6, 3, 3, 3) / 5), None
    model.bn = nn.BatchNorm2d(6).eval()


@pytest.mark.parametrize(
    "change",
    [
        change_affine,
        change_weight,
        change_numbers,
        change_padding,
        change_kernel,
        change_channels,
    ],
)
@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
def test_settings_changed_after_construction_are_used(change, calibration):
    model = randomized(Body)
    change(model)
    rebuilt = bnrecon.reconstruct(model, images=calibration)
    assert isinstance(rebuilt.network.bn, nn.Identity)
    for network in (rebuilt.network, bnrecon.collapse(rebuilt.network)):
        assert difference(network, model, images()) < 1e-4


class Averages(Body):
    """Keeps a count and a moving average, like an observer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.average.mul_(0.9).add_(0.1 * x.mean())
        return super().forward(x)


class Keeps(Body):
    """Keeps an activation with its gradient history."""

    def forward(self, x):
        self.kept = [self.conv(x)]
        return self.act(self.bn(self.kept[0]))


def test_model_that_keeps_an_activation_is_rebuilt():
    model = randomized(Keeps)
    model(images())
    assert model.kept[0].grad_fn is not None
    for calibration in (None, images()):
        network = bnrecon.reconstruct(model, images=calibration).network
        assert difference(network, model, images()) < 1e-4


class Fails(Body):
    def forward(self, x):
        super().forward(x)
        raise ValueError("no")


def test_model_is_unchanged_and_not_hooked():
    model = randomized(Averages)
    before, calls = copy.deepcopy(model.state_dict()), model.calls
    rebuilt = bnrecon.reconstruct(model, images=images())
    assert model.calls == calls == rebuilt.network.calls
    for state in (model.state_dict(), before):
        assert torch.equal(state["average"], rebuilt.network.average)
    failing = Fails().eval()
    for _ in range(2):
        with pytest.raises(UserError, match="the model does not take them"):
            bnrecon.reconstruct(failing, images=images())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in failing.modules())


def test_weights_that_are_buffers_are_rebuilt():
    model = randomized(Body)
    for part in (model.conv, model.bn):
        for name in ("weight", "bias"):
            value = getattr(part, name).detach().clone()
            delattr(part, name)
            part.register_buffer(name, value)
    assert bnrecon.reconstruct(model, images=images()).verified


def test_threads_give_identical_results():
    model = randomized(Body)
    expected = bnrecon.reconstruct(model, images=images()).network.state_dict()
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(bnrecon.reconstruct, model, images=images()) for _ in range(8)]
    for call in calls:
        state = call.result().network.state_dict()
        assert all(torch.equal(state[name], value) for name, value in expected.items())


def unequal(ratio, dtype=torch.float32):
    """Rows of the first layer up to ``ratio`` apart, evened out by the second."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8), nn.Linear(8, 5)
    sizes = torch.logspace(0, float(torch.tensor(ratio).log10()), 8)
    with torch.no_grad():
        first.weight.mul_(sizes[:, None])
        first.bias.mul_(sizes)
        second.weight.div_(sizes)
    return nn.Sequential(first, nn.ReLU(), second).eval().to(dtype)


@pytest.mark.parametrize(
    "features", ["he_normal", "sign", "id_cond", "sparse_he_normal", "er_sign"]
)
@pytest.mark.parametrize("ratio", [1e6, 1e8, 1e24])
def test_every_output_is_rebuilt_relative_to_its_size(ratio, features):
    model = unequal(ratio)[0]
    with torch.no_grad():
        for rows in model.parameters():
            rows.div_(ratio**0.5)  # large and small ones
    (report,) = bnrecon.reconstruct(model, features).layers
    assert report.converged
    assert report.channel_error < 1e-5
    x = torch.randn(64, 6)
    ours, theirs = bnrecon.reconstruct(model, features).network(x), model(x)
    assert float(((ours - theirs).abs().amax(0) / theirs.abs().amax(0)).max()) < 1e-5


def test_inputs_drowned_by_rounding_are_not_converged():
    """Weights that even out outputs 1e6 apart are rounded relative to the largest."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    rebuilt = bnrecon.reconstruct(unequal(1e6), images=x)
    assert [layer.converged for layer in rebuilt.layers] == [True, False]
    assert rebuilt.verified is False
    assert [note for note in rebuilt.notes if note.startswith("layer 2 did not converge")]
    assert bnrecon.reconstruct(unequal(1e6), "id_cond", images=x).verified
    assert bnrecon.reconstruct(unequal(1e6, torch.float64), images=x.double()).verified
    with pytest.raises(RunError, match="not converged: 2"):
        bnrecon.reconstruct(unequal(1e8), images=x)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_cropping_transposed_convolution_takes_an_activation(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, padding=2)).eval()
    rebuilt = bnrecon.reconstruct(model, FeatureSpec(activation=activation), images=images())
    assert difference(rebuilt.network, model, images()) < 0.1
    assert [note for note in rebuilt.notes if f"activation={activation} is linear for" in note]


def test_graph_module_is_rebuilt_in_eval_mode():
    feature_extraction = pytest.importorskip("torchvision.models.feature_extraction")
    model = feature_extraction.create_feature_extractor(randomized(Body), ["act"]).eval()
    for calibration in (None, images()):
        rebuilt = bnrecon.reconstruct(model, images=calibration)
        assert isinstance(rebuilt.network.bn, nn.Identity)
        one, other = (lambda x, net=net: net(x)["act"] for net in (rebuilt.network, model))
        assert difference(one, other, images()) < 1e-4


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_vmap_counts_no_values_outside_the_region(activation):
    model, x = randomized(Body), images()
    spec = bnrecon.FeatureSpec(activation=activation)
    network = bnrecon.reconstruct(model, spec, images=x).network
    assert torch.allclose(torch.vmap(lambda one: network(one[None])[0])(x), network(x), atol=1e-4)


def test_rebuilt_network_supports_vmap_and_per_image_gradients():
    for model in (randomized(Body), nn.Sequential(nn.Flatten(0), nn.Linear(108, 3)).eval()):
        network = bnrecon.reconstruct(model).network
        x = images()
        expected = torch.stack([network(one) for one in x])
        assert torch.allclose(torch.vmap(network)(x), expected, atol=1e-5)
        state = dict(network.named_parameters())

        def loss(state, one, network=network):
            return torch.func.functional_call(network, state, (one,)).square().sum()

        gradients = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, x)
        alone = torch.func.grad(loss)(state, x[3])
        for name, value in alone.items():
            assert torch.allclose(gradients[name][3], value, rtol=1e-3, atol=1e-4), name


def test_model_that_vmaps_over_its_layer_is_rebuilt():
    model = Composed(lambda self, x: torch.vmap(self.layer)(x), layer=nn.Conv2d(3, 4, 3)).eval()
    assert bnrecon.reconstruct(model, images=images()).verified


def test_random_outputs_are_noted_once_with_their_likely_cause():
    drops = Composed(lambda self, x: nn.functional.dropout(self.layer(x)), layer=nn.Linear(6, 4))
    rebuilt = bnrecon.reconstruct(drops.eval(), images=torch.randn(8, 6))
    assert rebuilt.verified is None
    (note,) = [note for note in rebuilt.notes if "not compared" in note]
    assert "F.dropout without training=self.training" in note


def test_layer_in_a_python_list_is_noted():
    network = Composed(lambda self, x: self.last(self.hidden[0](x)), last=nn.Linear(4, 2))
    network.hidden = [nn.Linear(6, 4)]
    notes = bnrecon.reconstruct(network.eval(), images=torch.randn(8, 6)).notes
    assert any("nn.ModuleList" in note for note in notes)
