"""Regenerated features: the same network as with stored ones, in less memory."""

import numpy as np
import pytest
import torch
from torch import nn

import bnrecon
from bnrecon.features import FeatureSpec, LayerShape, draw
from bnrecon.features.portable_random import Stream
from bnrecon.reconstruction import plan_layers, reconstruct
from bnrecon.reconstruction import planning as planning_module
from bnrecon.reconstruction import source_file as source_file_module
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.runtime.errors import RunError, UserError


def network(seed=0):
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 9, 5),
    ]
    return nn.Sequential(*layers).double().eval()


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 8, 8, dtype=torch.float64, generator=generator)


OPTIONS = [
    {},
    {"activation": "relu"},
    {"activation": "tanh"},
    {"skip": "inner"},
    {"skip": "outer", "activation": "relu"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_network_of_regenerated_features_is_the_one_of_stored_ones(options):
    """Products sum in another order, so that scales agree to rounding; the features are equal."""
    model, x = network(), images()
    stored, made = (
        reconstruct(model, FeatureSpec("sign", storage=storage, **options), images=x)
        for storage in ("memory", "regenerate")
    )
    assert [layer.digest for layer in stored.layers] == [layer.digest for layer in made.layers]
    assert {layer.convolutions for layer in made.layers} == {"regenerated"}
    assert all(layer.converged and layer.relative_error < 1e-10 for layer in made.layers)
    pairs = zip(
        source_layers(stored.network).values(), source_layers(made.network).values(), strict=True
    )
    for one, other in pairs:
        scales = [layer.present_maps()[0].scale for layer in (one, other)]
        # Of many solutions each is near the one of minimum norm, as near as float32 products are.
        assert (scales[0] - scales[1]).norm() < 1e-5 * scales[0].norm()
        assert other.frozen_digest() == one.frozen_digest()
        assert other.unheld == sum(w.numel() for pair in one.pairs for w in pair.weights())
    with torch.no_grad():
        difference = (stored.network(x) - made.network(x)).abs().max()
    assert difference < (1e-3 if options.get("activation") == "tanh" else 1e-8)


def test_where_the_solver_forms_the_matrix_scales_are_equal_to_the_last_digit():
    """Groups of a convolution are solved by one dense least-squares call."""
    layers = [nn.Conv2d(6, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 12, 3, groups=3)]
    model = nn.Sequential(*layers).double().eval()
    stored, made = (
        reconstruct(model, FeatureSpec("sign", storage=storage))
        for storage in ("memory", "regenerate")
    )
    for one, other in zip(
        source_layers(stored.network).values(), source_layers(made.network).values(), strict=True
    ):
        assert torch.equal(one.first_norm.weight, other.first_norm.weight)


@pytest.mark.parametrize("room", [1, 50_000])
def test_the_same_scales_compute_the_same_function_stored_and_regenerated(
    room, monkeypatch, tmp_path
):
    model, x = network(), images()
    path = reconstruct(model, FeatureSpec("sign", storage="memory"), images=x).save(
        tmp_path / "source.safetensors"
    )
    monkeypatch.setattr("bnrecon.reconstruction.source_layer.CHUNK_BYTES", room)
    stored, made = (
        bnrecon.load_source(path, network(seed=5), storage) for storage in ("memory", "regenerate")
    )
    assert not any(name.endswith("first.weight") for name in made.state_dict())
    with torch.no_grad():
        assert torch.allclose(made(x), stored(x), rtol=1e-12, atol=1e-12)
        collapsed = bnrecon.collapse(made)
        assert torch.allclose(collapsed(x), stored(x), rtol=1e-9, atol=1e-9)
        assert torch.allclose(collapsed[3].weight, bnrecon.collapse(stored)[3].weight, atol=1e-13)


def test_few_pixels_do_not_make_more_features_at_once_than_their_weights_allow(monkeypatch):
    layer = reconstruct(nn.Linear(16, 16).eval(), FeatureSpec("sign", storage="regenerate")).network
    monkeypatch.setattr("bnrecon.reconstruction.source_layer.CHUNK_BYTES", 4 * 16 * 32)
    ((_, parts),) = layer._blocks(torch.zeros(1, 16))
    assert {part.stop - part.start for part in parts} == {32}
    assert len(parts) == 384 / 32


def test_statistics_and_shifts_are_summed_over_parts(monkeypatch):
    monkeypatch.setattr("bnrecon.features.pair.RUN_BYTES", 1)
    shape = LayerShape(6, 4, (3, 3))
    stored, made = (draw("sign", shape, 100, 0, 0, regenerate=flag) for flag in (False, True))
    assert len(list(made.first_parts())) == len(list(made.second_parts())) == 7
    first = torch.cat([part for _, part in made.first_parts()])
    second = torch.cat([part for _, part in made.second_parts()], 1)
    assert all(map(torch.equal, (first, second), stored.weights()))
    model, x = network(), images()
    networks = [
        reconstruct(model, FeatureSpec("sign", storage=storage), images=x).network
        for storage in ("memory", "regenerate")
    ]
    for one, other in zip(*(source_layers(net).values() for net in networks), strict=True):
        assert torch.allclose(one.first_norm.running_var, other.first_norm.running_var, rtol=1e-12)
        assert torch.allclose(
            one.second_norm.running_mean, other.second_norm.running_mean, atol=1e-7
        )


def test_auto_keeps_features_in_memory_while_they_fit_and_regenerates_them_beyond(
    monkeypatch, tmp_path
):
    model = nn.Conv2d(16, 16, 3).eval()
    assert not plan_layers(model, "sign").regenerated
    size = plan_layers(model, FeatureSpec("sign", storage="memory")).memory
    monkeypatch.setattr(planning_module, "regenerated_work", lambda *_: 10**6)
    monkeypatch.setattr(planning_module, "available_memory", lambda _: size - 1)
    plan = plan_layers(model, "sign")
    assert plan.regenerated
    assert plan.memory < size
    rebuilt = reconstruct(model, "sign")
    assert rebuilt.layers[0].convolutions == "regenerated"
    path = rebuilt.save(tmp_path / "source.safetensors")
    assert not source_layers(bnrecon.load_source(path, model))[""].regenerated
    monkeypatch.setattr(source_file_module, "available_memory", lambda _: 10**6)
    assert source_layers(bnrecon.load_source(path, model))[""].regenerated


def test_a_width_that_does_not_fit_is_refused_with_what_does(monkeypatch):
    monkeypatch.setattr(planning_module, "available_memory", lambda _: 10**8)
    model = nn.Conv2d(64, 64, 3).eval()
    with pytest.raises(UserError, match=r"its 55296 features take .* features=sign need not be"):
        plan_layers(model, "he_normal")
    with pytest.raises(UserError, match=r"storage=auto regenerates features=sign"):
        plan_layers(model, FeatureSpec("sign", storage="memory"))


def test_features_that_cannot_be_made_part_by_part_are_refused():
    with pytest.raises(UserError, match=r"storage=regenerate: he_normal .* take features=sign"):
        plan_layers(nn.Linear(3, 4).eval(), FeatureSpec("he_normal", storage="regenerate"))
    with pytest.raises(UserError, match=r"storage=regenrate: did you mean 'regenerate'"):
        FeatureSpec("sign", storage="regenrate")


def test_a_layer_of_regenerated_features_has_no_training_mode():
    layer = reconstruct(nn.Linear(3, 4).eval(), FeatureSpec("sign", storage="regenerate")).network
    with pytest.raises(RuntimeError, match="storage=memory"):
        layer.train()(torch.zeros(2, 3))


def test_a_damaged_draw_is_noticed(tmp_path, monkeypatch):
    model = nn.Linear(6, 4).eval()
    rebuilt = reconstruct(model, FeatureSpec("sign", storage="regenerate"))
    path = rebuilt.save(tmp_path / "source.safetensors")
    monkeypatch.setattr(Stream, "raw", other_bits)
    with pytest.raises(RunError, match="draws other features"):
        bnrecon.load_source(path, model)


def other_bits(_stream, start, stop, _word):
    """Other bits than those of the seed."""
    return np.zeros(stop - start, dtype="u1")
