"""Networks that use weights other than by calling layers: refused, or kept with a note."""

import copy
import pickle

import pytest
import torch
from networks import Composed, chain, difference, images, randomize
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import bnrecon
from bnrecon.reconstruction.refusal import RefusedLayers
from bnrecon.reconstruction.usage import find_usage


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_kept_module_with_gradient_history_is_copied():
    model = nn.Sequential(weight_norm(nn.Conv2d(2, 4, 3)), nn.Conv2d(4, 3, 3)).eval()
    model[0].register_forward_hook(lambda *_: None)  # refused and therefore kept
    rebuilt = bnrecon.reconstruct(model, unsupported="keep")
    assert [layer.name for layer in rebuilt.layers] == ["1"]
    assert torch.allclose(copy.deepcopy(rebuilt.network)(images()), model(images()), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "computed",
    [
        weight_norm,
        spectral_norm,
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        lambda layer: prune.random_unstructured(layer, "weight", 0.3),
        lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
        lambda layer: parametrize.register_parametrization(layer, "bias", Doubled()),
    ],
    ids=[
        "weight_norm",
        "spectral_norm",
        "new weight_norm",
        "new spectral_norm",
        "orthogonal",
        "pruned",
        "weight",
        "bias",
    ],
)
@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
def test_computed_weights_are_rebuilt(computed, calibration):
    """Before any forward pass, a hook has not yet computed the layer's weight."""
    torch.manual_seed(0)
    model = chain(computed).eval()
    # A loaded state would change these without the hook.
    for name in ("weight_g", "weight_orig"):
        if hasattr(model[0], name):
            with torch.no_grad():
                getattr(model[0], name).mul_(3)
    rebuilt = bnrecon.reconstruct(model, images=calibration)
    assert not [note for note in rebuilt.notes if not note.startswith(("outputs were", "folded: "))]
    copy.deepcopy(rebuilt.network)
    assert difference(rebuilt.network, model, images()) < 1e-5


class Tied(nn.Module):
    """Two layers share a weight; a third shares an embedding's."""

    def __init__(self):
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.second(self.first(self.words(x.argmax(1))).relu()))


@pytest.mark.parametrize("calibration", [None, torch.randn(8, 7)], ids=["trace", "run"])
def test_layers_sharing_a_weight_are_rebuilt(calibration):
    torch.manual_seed(0)
    model, x = Tied().eval(), torch.randn(5, 7)
    rebuilt = bnrecon.reconstruct(model, images=calibration)
    assert [layer.name for layer in rebuilt.layers] == ["first", "second", "head"]
    assert torch.allclose(rebuilt.network(x), model(x), atol=1e-5)
    kept = bnrecon.reconstruct(model, images=calibration, unsupported="keep")
    assert not any("is left as it is" in note for note in kept.notes)


def test_all_layers_sharing_a_weight_read_elsewhere_are_refused():
    def apply_by_a_function(self, x):
        return self.called(F.linear(x, self.read.weight, self.read.bias))

    parts = {"read": nn.Linear(6, 4), "called": nn.Linear(4, 3), "other": nn.Linear(6, 4)}
    model = Composed(apply_by_a_function, **parts)
    model.other.weight = model.read.weight
    with pytest.raises(RefusedLayers) as caught:
        bnrecon.reconstruct(model.eval(), images=torch.randn(8, 6))
    assert set(caught.value.refused) == {"read", "other"}
    copy = pickle.loads(pickle.dumps(caught.value))  # as in a process pool
    assert (str(copy), copy.refused) == (str(caught.value), caught.value.refused)


@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
def test_compiled_model_is_rebuilt_from_its_inner_module(calibration, tmp_path):
    model = randomize(chain(), (2, 6, 6))
    compiled = torch.compile(model, backend="eager")
    rebuilt = bnrecon.reconstruct(compiled, images=calibration)
    assert [layer.name for layer in rebuilt.layers] == ["0", "3"]
    assert (
        "the model is compiled, the source network is not: torch.compile it again" in rebuilt.notes
    )
    assert torch.allclose(rebuilt.network(images()), model(images()), atol=1e-5)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), compiled)
    assert torch.equal(loaded(images()), rebuilt.network(images()))


@pytest.mark.parametrize("part", ["whole", "layer"])
def test_model_compiled_in_place_or_in_part_is_rebuilt(part):
    model = randomize(chain(), (2, 6, 6))
    plain = bnrecon.reconstruct(model, images=images()).network
    (model if part == "whole" else model[3]).compile(backend="eager")
    rebuilt = bnrecon.reconstruct(model, images=images())
    assert [layer.name for layer in rebuilt.layers] == ["0", "3"]
    for index in (0, 3):
        assert torch.equal(
            rebuilt.network[index].first_norm.running_var, plain[index].first_norm.running_var
        )
    assert rebuilt.difference.largest < 1e-5 * rebuilt.difference.size


@pytest.mark.parametrize("calibration", [None, images()], ids=["trace", "run"])
def test_source_of_a_source_is_refused(calibration):
    source = bnrecon.reconstruct(randomize(chain(), (2, 6, 6))).network
    with pytest.raises(
        RefusedLayers, match="0: it is a source layer already; 3: it is a source layer already"
    ):
        bnrecon.reconstruct(source, images=calibration)
    longer = nn.Sequential(source, nn.Linear(12, 4)).eval()
    kept = bnrecon.reconstruct(longer, images=calibration, unsupported="keep")
    assert [layer.name for layer in kept.layers] == ["1"]
    assert torch.allclose(kept.network(images()), longer(images()), atol=1e-5)
    with pytest.raises(RefusedLayers, match="the model: it is a source layer already"):
        bnrecon.reconstruct(source[0])


def scale_by_constants(self, x):
    conv, line = self.conv, self.line
    x = x * conv.in_channels * conv.kernel_size[0] / conv.out_channels
    x = conv((x + conv.stride[1] - conv.groups).to(conv.weight.dtype))
    x = x * (conv.padding[0] + conv.dilation[1]) + len(conv.padding_mode)
    return line(x.flatten(1)) / line.in_features * line.out_features


def test_source_layer_has_the_constants_of_the_replaced_layer(tmp_path):
    parts = {"conv": nn.Conv2d(2, 4, 3, stride=2, padding=1), "line": nn.Linear(36, 3)}
    model = randomize(Composed(scale_by_constants, **parts), (2, 6, 6))
    rebuilt = bnrecon.reconstruct(model, images=images())
    assert rebuilt.difference.largest < 1e-5 * rebuilt.difference.size
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    for network in (loaded, bnrecon.collapse(loaded)):
        assert torch.allclose(network(images()), model(images()), atol=1e-4)


def test_source_layer_weight_is_the_effective_weight():
    model = randomize(nn.Sequential(nn.Conv2d(2, 4, 3, bias=False)), (2, 6, 6))
    network = bnrecon.reconstruct(model).network
    assert torch.allclose(network[0].weight, model[0].weight, atol=1e-6)
    with torch.no_grad():
        network[0].second_norm.weight.mul_(2)
        network[0].second_norm.bias.add_(1)
    assert torch.allclose(network[0].weight, 2 * model[0].weight, atol=1e-5)
    assert torch.allclose(network[0].bias, torch.ones(4), atol=1e-5)
    network[0].second_norm.weight.data.mul_(2)  # as moving averages of weights do
    assert torch.allclose(network[0].weight, 4 * model[0].weight, atol=1e-5)
    network[0].second_norm.running_var.data = network[0].second_norm.running_var.data * 4
    assert torch.allclose(network[0].weight, 2 * model[0].weight, atol=1e-4)


def test_layer_applied_to_a_constant_is_rebuilt():
    """Swin V2 computes the bias of a relative position this way."""
    parts = {"bias": nn.Linear(2, 4), "layer": nn.Linear(4, 6)}
    table = nn.Buffer(torch.randn(6, 2))
    model = Composed(lambda self, x: self.layer(x) @ self.bias(self.table), **parts, table=table)
    for calibration in (None, torch.randn(8, 4)):
        rebuilt = bnrecon.reconstruct(model.eval(), images=calibration)
        assert [layer.name for layer in rebuilt.layers] == ["bias", "layer"]
    assert rebuilt.difference.largest < 1e-5 * rebuilt.difference.size


def biased(of_layer=False):
    """Attention whose scores get a bias by position, from a table or a layer's weight."""

    def attend(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        bias = self.square.weight if of_layer else self.table[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    table = nn.Parameter(torch.randn(5, 5))
    return Composed(attend, qkv=nn.Linear(4, 12), square=nn.Linear(5, 5), table=table).eval()


@pytest.mark.parametrize("with_images", [False, True], ids=["trace", "run"])
def test_attention_bias_is_no_weight(with_images):
    x = torch.randn(3, 5, 4)
    model = biased()
    rebuilt = bnrecon.reconstruct(model, images=x if with_images else None)
    assert torch.allclose(rebuilt.network(x), model(x), atol=1e-5)
    assert "square" in find_usage(biased(of_layer=True), x if with_images else None).outside


def test_batch_of_a_normalization_without_running_statistics_is_accepted():
    """Of one image it has one value per channel, which PyTorch refuses."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    model = nn.Sequential(nn.Linear(3, 4), norm).eval()
    assert bnrecon.reconstruct(model, images=torch.rand(5, 3)).verified
