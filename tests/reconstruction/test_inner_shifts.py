"""Without an activation the second normalization absorbs the shifts of the first."""

import pytest
import torch
import torch.nn.functional as F
from networks import Residual, outputs, randomize
from torch import nn

import bnrecon
from bnrecon import reconstruct
from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import source_layer
from bnrecon.reconstruction.affine_map import AffineMap
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime import files
from bnrecon.studies.burkholz2024 import cost
from bnrecon.targets.models import vgg

LAYERS = {
    "zeros": nn.Conv2d(3, 4, 3, padding=1),
    "reflection": nn.Conv2d(3, 4, (3, 2), padding=1, padding_mode="reflect", stride=(2, 1)),
    "circular": nn.Conv2d(3, 4, 3, padding=2, dilation=2, padding_mode="circular"),
    "same": nn.Conv2d(3, 4, (2, 3), padding="same"),
    "no padding": nn.Conv2d(3, 4, 1, stride=2),
}


def random_maps(widths):
    """Affine maps with shifts and running statistics, one for each number of channels."""
    generator = torch.Generator().manual_seed(1)

    def normal(width):
        return torch.randn(width, generator=generator, dtype=torch.float64)

    return [AffineMap(normal(w), normal(w), normal(w), normal(w).square() + 0.5) for w in widths]


def by_definition(layer, first, second, x):
    """Apply the two convolutions and affine maps one after the other."""
    a, b = (weight.double() for weight in layer.features.weights())
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    padded = F.pad(x, layer.geometry.pads, mode)
    hidden = torch.einsum("oc,nchw->nohw", a, padded)
    hidden = first.scale[:, None, None] * hidden + first.shift[:, None, None]
    out = F.conv2d(hidden, b, stride=layer.stride, dilation=layer.dilation)
    skip = layer.features.skip
    beside = 0.0
    if skip != "none":
        centre = torch.zeros(*layer.skip.shape[:2], *layer.features.shape.kernel).double()
        centre[:, :, layer.features.shape.kernel[0] // 2, layer.features.shape.kernel[1] // 2] = (
            layer.skip.detach()[:, :, 0, 0]
        )
        beside = F.conv2d(padded, centre, stride=layer.stride, dilation=layer.dilation)
    inside, outside = (beside, 0.0) if skip == "outer" else (0.0, beside)
    return (
        second.scale[:, None, None] * (out + inside) + second.shift[:, None, None] + outside
    ).detach()


@pytest.mark.parametrize("skip", ["none", "inner", "outer"])
@pytest.mark.parametrize("kind", LAYERS)
def test_first_shift_reaches_every_output_pixel_equally(kind, skip):
    module = LAYERS[kind].double()
    shape = LayerShape(4, 3, tuple(module.weight.shape[2:]))
    layer = SourceLayer(draw("he_normal", shape, 20, 0, 0, False, skip), module)
    maps = random_maps((20, 4))
    layer.set_maps(*maps)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(layer(x), by_definition(layer, *maps, x), atol=1e-10)
    assert not layer.first_norm.bias.any()


@pytest.mark.parametrize("linear", [False, True])
def test_implicit_and_linear_layers_have_no_first_shift(linear, monkeypatch):
    shape = (6,) if linear else (2, 5, 5)
    model = randomize(nn.Linear(6, 5) if linear else nn.Conv2d(2, 3, 3, padding=1), shape)
    for limit in (source_layer.IMPLICIT_FROM, -1):
        monkeypatch.setattr(source_layer, "IMPLICIT_FROM", limit)
        network = reconstruct(model, "id_cond", images=torch.randn(9, *shape) + 1).network
        assert network.implicit == (limit < 0)
        assert not network.first_norm.bias.any()
        assert network.first_norm.running_mean.abs().max() > 0.3
        assert torch.allclose(outputs(network, shape), outputs(model, shape), atol=1e-5)


@pytest.mark.parametrize("activation", ["identity", "relu", "leaky_relu", "tanh", "sigmoid"])
def test_first_shifts_are_trainable_only_with_an_activation(activation):
    model = randomize(Residual(), (2, 9, 8))
    images = torch.randn(32, 2, 9, 8) + 0.5
    network = reconstruct(model, FeatureSpec(activation=activation), images=images).network
    for layer in source_layers(network).values():
        assert layer.first_norm.bias.requires_grad == (activation != "identity")
        assert bool(layer.first_norm.bias.any()) == (activation != "identity")
        assert layer.second_norm.bias.requires_grad
        assert layer.first_norm.running_mean.abs().max() > 1e-3


def test_file_with_first_shifts_gives_the_same_function(tmp_path):
    """Older files and networks with shifts set by hand have first shifts."""
    shape = (2, 9, 8)
    model = randomize(Residual(), shape)
    rebuilt = reconstruct(model, images=torch.randn(32, *shape))
    tensors, about = files.read_tensors(rebuilt.save(tmp_path / "source.safetensors"))
    changed = {name: value.clone() for name, value in tensors.items()}
    for name, layer in source_layers(rebuilt.network).items():
        shift = torch.randn(layer.features.width, dtype=torch.float64)
        changed[f"{name}|first.beta"] = shift
        layer.first_norm.bias.data.copy_(shift)
    wanted = outputs(rebuilt.network, shape)
    files.write_tensors(tmp_path / "old.safetensors", changed, about)
    by_hand = rebuilt.save(tmp_path / "by_hand.safetensors")
    assert (wanted - outputs(model, shape)).abs().max() > 0.1 * wanted.abs().max()
    for path in (tmp_path / "old.safetensors", by_hand):
        loaded = bnrecon.load_source(path, model)
        assert (outputs(loaded, shape) - wanted).abs().max() < 1e-4 * wanted.abs().max()
        collapsed = outputs(bnrecon.collapse(loaded), shape)
        assert (collapsed - wanted).abs().max() < 1e-4 * wanted.abs().max()
        assert not any(layer.first_norm.bias.any() for layer in source_layers(loaded).values())


def test_trainable_parameters_match_the_cost_table():
    """Burkholz 2024, Sect. 3.2: c1 first scales, c2 second scales, c2 second shifts a layer."""
    target = vgg(cost.IMAGE, 10, 2, [2, 3, 4, 4, 4], "relu").eval()
    counted = cost.count(2).set_index("network")["trainable"]
    for name, options in cost.WIDTHS.items():
        network = reconstruct(target, FeatureSpec("he_normal", **options)).network
        trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
        assert trainable == counted[f"source, c1 = {name}"]
    assert cost.count(64)["trainable"][1] == 593_308
