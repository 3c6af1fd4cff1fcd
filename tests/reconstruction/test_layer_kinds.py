"""Every layer type, rebuilt from every distribution, against PyTorch in float64."""

import pytest
import torch
from layer_cases import CASES, DIMS, KERNEL, label, make
from networks import Composed, difference, recorded
from torch import nn

import bnrecon
from bnrecon.features import DISTRIBUTIONS
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import plan_layers, reconstruct
from bnrecon.reconstruction.collapse import layer_errors
from bnrecon.reconstruction.kernels import LAYERS
from bnrecon.reconstruction.source_file import source_layers


def assert_loaded_again(rebuilt, kind, name, bias, x, folder):
    """Loading works into a layer of other weights."""
    other, _ = make(kind, name, bias, seed=1)
    loaded = bnrecon.load_source(rebuilt.save(folder / "source.safetensors"), other)
    assert difference(loaded, rebuilt.network, x) < 1e-13


def test_every_layer_type_is_tested():
    assert set(DIMS) == set(LAYERS)


@pytest.mark.parametrize(
    ("kind", "name", "bias", "features"),  # each case with every third, each type with all
    [
        (*case, features)
        for number, case in enumerate(CASES)
        for position, features in enumerate(sorted(DISTRIBUTIONS))
        if (number + position) % 3 == 0 or case[0] is nn.Linear
    ],
    ids=label,
)
def test_layer_of_any_type_is_rebuilt_from_any_features(kind, name, bias, features, tmp_path):
    model, x = make(kind, name, bias)
    # Nine half-empty features may leave a tap of a kernel of three unreached.
    sparse = features in ("er_sign", "sparse_he_normal")
    oversampling = 5 if sparse and name == "depthwise" and DIMS[kind] == 1 else None
    rebuilt = reconstruct(model, features, oversampling, images=x)
    (report,) = rebuilt.layers
    assert report.converged
    assert report.relative_error < 1e-10
    assert report.groups == getattr(model, "groups", 1)
    assert report.groups * report.equations == model.weight.numel()
    assert difference(rebuilt.network, model, x) < 1e-9
    assert difference(bnrecon.collapse(rebuilt.network), model, x) < 1e-9
    assert rebuilt.network.frozen_digest() == report.digest
    assert_loaded_again(rebuilt, kind, name, bias, x, tmp_path)


SPECS = [
    FeatureSpec(width="minimum"),
    FeatureSpec("id_cond", width="minimum"),
    FeatureSpec(skip="inner"),
    FeatureSpec(skip="outer", width="minimum"),
    FeatureSpec(activation="relu"),
    FeatureSpec("id_cond", activation="leaky_relu"),
    FeatureSpec(activation="relu", skip="outer"),
]


@pytest.mark.parametrize(
    ("kind", "name", "bias", "spec"),  # each case with every other spec
    [
        (*case, spec)
        for number, case in enumerate(CASES)
        for position, spec in enumerate(SPECS)
        if (number + position) % 2
    ],
    ids=lambda value: (
        f"{value.name} {value.width} {value.skip} {value.activation}"
        if isinstance(value, FeatureSpec)
        else label(value)
    ),
)
def test_widths_skips_and_activations_work_with_any_type(kind, name, bias, spec, tmp_path):
    model, x = make(kind, name, bias)
    rebuilt = reconstruct(model, spec, images=x, solver=bnrecon.SolverSpec(tolerance=1e-9))
    assert rebuilt.layers[0].relative_error < 1e-8
    assert difference(rebuilt.network, model, x) < 1e-7
    assert difference(bnrecon.collapse(rebuilt.network), model, x) < 1e-7
    assert_loaded_again(rebuilt, kind, name, bias, x, tmp_path)


@pytest.mark.parametrize("activation", ["identity", "relu"])
@pytest.mark.parametrize(("kind", "name", "bias"), CASES, ids=label)
def test_implicit_layers_match_stored_ones(kind, name, bias, activation, monkeypatch):
    model, x = make(kind, name, bias)
    monkeypatch.setattr("bnrecon.reconstruction.source_layer.IMPLICIT_FROM", -1)
    rebuilt = reconstruct(model, FeatureSpec("id_cond", activation=activation), images=x)
    assert rebuilt.layers[0].convolutions == "implicit"
    assert difference(rebuilt.network, model, x) < 1e-9


@pytest.mark.parametrize(("kind", "name", "bias"), CASES, ids=label)
def test_statistics_match_those_the_normalizations_collect(kind, name, bias):
    model, x = make(kind, name, bias)
    layer = reconstruct(model, images=x).network
    wanted = [norm.running_var.clone() for norm in (layer.first_norm, layer.second_norm)]
    mean = layer.first_norm.running_mean.clone()
    for norm in (layer.first_norm, layer.second_norm):
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        layer.train()(x)
    assert torch.allclose(layer.first_norm.running_var, wanted[0], rtol=1e-9)
    layer.first_norm.running_var.copy_(wanted[0])
    layer.first_norm.running_mean.copy_(mean)
    norm_input, _ = recorded(layer.eval(), type(layer.second_norm), x)[layer.second_norm]
    sides = [side for side in range(norm_input.ndim) if side != 1]
    assert torch.allclose(norm_input.var(sides), wanted[1], rtol=1e-7)


@pytest.mark.parametrize(("kind", "name", "bias"), CASES, ids=label)
def test_normalization_is_folded_into_any_layer_type(kind, name, bias):
    layer, x = make(kind, name, bias)
    dims = DIMS[kind]
    norm = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    outputs = layer(x).shape[1]
    model = nn.Sequential(layer, norm(outputs), nn.ReLU()).double()
    model.train()(x)
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    rebuilt = reconstruct(model.eval(), images=x)
    assert isinstance(rebuilt.network[1], nn.Identity)
    assert rebuilt.layers[0].relative_error < 1e-10
    assert difference(rebuilt.network, model, x) < 1e-9


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if DIMS[kind]], ids=label)
def test_single_image_passes_like_a_batch(kind):
    model, x = make(kind, "strided", True)
    network = reconstruct(model).network
    assert difference(network, model, x[0]) < 1e-9


@pytest.mark.parametrize("size", [11, 12])
def test_transposed_convolution_takes_output_size(size):
    torch.manual_seed(0)
    layer, sides = nn.ConvTranspose2d(2, 3, 3, stride=3, padding=1).double(), (size, size - 1)
    model = Composed(lambda self, x: self.layer(x, output_size=sides), layer=layer).eval()
    rebuilt = reconstruct(model, images=(x := torch.randn(4, 2, 4, 4).double()))
    assert difference(rebuilt.network, model, x) < 1e-9
    with pytest.raises(ValueError, match=r"output_size=\(20, 20\)"):
        rebuilt.network.layer(x, output_size=(20, 20))


@pytest.mark.parametrize("room", [1, 8000, 10**6])
def test_chunked_groups_and_features_match_unchunked(room, monkeypatch):
    model, x = make(nn.Conv2d, "grouped", True)
    network = reconstruct(model).network
    with torch.no_grad():
        whole = network(x)
        monkeypatch.setattr("bnrecon.reconstruction.source_layer.CHUNK_BYTES", room)
        assert len(list(network._blocks(x))) == (1 if room == 10**6 else 2)
        assert torch.allclose(network(x), whole, atol=1e-12)


def test_group_features_depend_only_on_seed_layer_and_group():
    model, _ = make(nn.Conv2d, "grouped", True)
    (grouped,) = plan_layers(model, seed=3).layers
    (plain,) = plan_layers(nn.Conv2d(2, 4, KERNEL[:2]).eval(), seed=3).layers
    assert grouped.draw(0).digest() == plain.draw().digest()
    assert grouped.draw(1).digest() != grouped.draw(0).digest()
    other = plan_layers(model, seed=4).layers[0]
    assert other.draw(1).digest() != grouped.draw(1).digest()


def test_grouped_layer_reports_one_row_with_its_largest_error():
    torch.manual_seed(0)
    model = nn.Conv2d(240, 240, 3, groups=240, padding=1).eval()
    x = torch.randn(2, 240, 7, 7)
    rebuilt = reconstruct(model, images=x)
    (report,) = rebuilt.layers
    assert (report.groups, report.width, report.shape) == (240, 14, (1, 1, 3, 3))
    assert report.converged
    assert "240 groups are solved together" in report.reason
    assert difference(rebuilt.network, model, x) < 1e-5
    with torch.no_grad():
        rebuilt.network.first_norm.weight[14 * 150] *= 1.5
    assert layer_errors(rebuilt.network, model.weight.double())[1] > 1e-2


def test_trained_grouped_source_is_saved(tmp_path):
    model, x = make(nn.ConvTranspose2d, "grouped", True)
    rebuilt = reconstruct(model, images=x)
    with torch.no_grad():
        rebuilt.network.second_norm.weight.mul_(1.5)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "tuned.safetensors"), model)
    assert difference(loaded, rebuilt.network, x) < 1e-12
    assert difference(bnrecon.collapse(rebuilt.network), rebuilt.network, x) < 1e-9
    assert torch.allclose(rebuilt.network.weight, 1.5 * model.weight, atol=1e-8)


def test_reused_layer_has_one_source_with_moments_of_both_uses():
    torch.manual_seed(0)
    layer, x = nn.Conv1d(3, 3, 3, padding=1).double(), torch.randn(8, 3, 9).double()
    model = Composed(lambda self, x: self.layer(torch.tanh(self.layer(x)) + 2), layer=layer).eval()
    rebuilt = reconstruct(model, images=x)
    assert [layer.name for layer in rebuilt.layers] == ["layer"]
    assert difference(rebuilt.network, model, x) < 1e-9
    with torch.no_grad():
        second = torch.tanh(model.layer(x)) + 2
    both = torch.cat([nn.functional.pad(part, (1, 1)) for part in (x, second)])
    mean = both.transpose(0, 1).flatten(1).mean(1)
    source = source_layers(rebuilt.network)["layer"]
    wanted = source.features.weights()[0].double() @ mean
    assert torch.allclose(source.first_norm.running_mean, wanted, atol=1e-9)


def test_module_under_two_names_is_replaced_at_both():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer).double().eval()
    rebuilt = reconstruct(model, images=(x := torch.randn(5, 4).double()))
    assert rebuilt.network[0] is rebuilt.network[2]
    assert difference(rebuilt.network, model, x) < 1e-9


class UNet(nn.Module):
    """Two levels, a skip concatenation, and a transposed convolution with ``output_size``."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up, self.norm = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.BatchNorm2d(4)
        self.joined, self.head = nn.Conv2d(8, 4, 3, padding=1, groups=2), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        fine = torch.relu(self.fine(x))
        coarse = torch.relu(self.coarse(nn.functional.max_pool2d(fine, 2)))
        up = torch.relu(self.norm(self.up(coarse, output_size=fine.shape[2:])))
        return self.head(torch.relu(self.joined(torch.cat([fine, up], 1))))


@pytest.mark.parametrize("skip", ["none", "inner", "outer"])
def test_encoder_decoder_with_concatenation_is_rebuilt(skip, tmp_path):
    torch.manual_seed(0)
    model, x = UNet().double(), torch.randn(4, 3, 9, 9).double()
    model.train()(x)
    rebuilt = reconstruct(model.eval(), FeatureSpec(skip=skip), images=x)
    assert len(rebuilt.layers) == 5
    assert isinstance(rebuilt.network.norm, nn.Identity)  # folded into the transposed convolution
    assert rebuilt.difference.largest < 1e-9
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    with torch.no_grad():
        assert torch.equal(loaded(x), rebuilt.network(x))
