"""What `reconstruct` is given: every argument that cannot be is named, and numbers that overflow or tell nothing are no success."""

import numpy as np
import pytest
import torch
from conftest import enliven
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bnrecon
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.runtime.errors import RunError, UserError


def small():
    torch.manual_seed(0)
    return enliven(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten()), (2, 6, 6))


def some(count=8, channels=2):
    return torch.randn(count, channels, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"seed": -1}, "seed=-1: must be a whole number"),
        ({"seed": None}, "seed=None: must be a whole number"),
        ({"seed": "x"}, "seed='x': must be a whole number"),
        ({"seed": 2**63}, "must be a whole number from 0 to 2\\^63 - 1"),
        ({"oversampling": float("nan")}, "oversampling=nan: oversampling must be a number above 0"),
        ({"oversampling": "much"}, "oversampling=much: oversampling must be a number"),
        ({"excess": 1.5}, "excess=1.5: excess must be a whole number"),
        ({"width": "x"}, "width=x: width must be a number of features above 0, 'minimum' or 'maximum'"),
        ({"excess": 3, "oversampling": 2}, "oversampling=2, excess=3: give one of"),
        ({"unsupported": "ignore"}, "unsupported='ignore': Allowed: keep, raise"),
        ({"tolerance": "small"}, "tolerance=small: must be above 0"),
        ({"max_iterations": 0}, "max_iterations=0: must be a whole number above 0"),
        ({"images": torch.zeros(0, 2, 6, 6)}, "images: there is no image in it"),
        ({"images": []}, "images: there is no image in it"),
        ({"images": some(channels=3)}, r"images of shape \(8, 3, 6, 6\): the model does not take them"),
        ({"images": some().to(torch.uint8)}, "images are uint8, the model is float32"),
        ({"images": some().double()}, "images are float64, the model is float32"),
        ({"images": np.zeros((4, 2, 6, 6), np.float32)}, "images=numpy.ndarray: give a tensor"),
        ({"images": [np.zeros((4, 2, 6, 6), np.float32)]}, "images: a batch is numpy.ndarray"),
        ({"images": 5}, "images=int: give a tensor"),
    ],
)
def test_an_argument_that_cannot_be_is_named(arguments, named):
    with pytest.raises(UserError, match=named):
        bnrecon.reconstruct(small(), **arguments)


def test_what_is_no_module_or_holds_no_numbers_is_named():
    with pytest.raises(UserError, match=r"model is function; it must be a torch\.nn\.Module"):
        bnrecon.reconstruct(lambda x: x)
    with pytest.raises(UserError, match="model: some of its tensors are on the meta device"):
        bnrecon.reconstruct(nn.Linear(3, 2, device="meta").eval())


def test_a_data_loader_of_images_and_labels_gives_the_statistics_of_its_images():
    model, x = small(), some(12)
    whole = bnrecon.reconstruct(model, images=x)
    loader = DataLoader(TensorDataset(x, torch.arange(12)), batch_size=5)
    batches = bnrecon.reconstruct(model, images=loader)
    assert torch.allclose(whole.network[0].first_norm.running_var, batches.network[0].first_norm.running_var, rtol=1e-5)
    assert batches.difference.images == 5
    assert batches.difference.largest < 1e-4 * batches.difference.size


def test_outputs_that_are_far_off_though_every_layer_is_rebuilt_are_a_failure():
    """Here a part of the network asks what kind of layer it has."""

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) * (1 if isinstance(self.layer, nn.Linear) else 5)

    with pytest.raises(RunError, match="every layer is rebuilt, and yet outputs differ"):
        bnrecon.reconstruct(Asks().eval(), images=torch.randn(5, 4))


@pytest.mark.parametrize("size", [0.0, 1e-30])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_images_that_tell_no_range_are_refused_where_the_range_matters(size, activation):
    with pytest.raises(UserError, match=r"layer 0: on the images its inputs are at most .* which tells no range"):
        bnrecon.reconstruct(small(), activation=activation, images=size * some())
    assert bnrecon.reconstruct(small(), images=size * some()).layers[0].converged


@pytest.mark.parametrize("where", ["weight", "images"])
def test_numbers_that_overflow_are_a_failure_and_not_converged(where):
    model, x = small(), some()
    if where == "weight":
        with torch.no_grad():
            model[0].weight.mul_(1e37)
            model[1].running_var.fill_(1e-3)
    else:
        x = 1e30 * x
    with pytest.raises((RunError, UserError), match=r"overflows float32|not finite"):
        bnrecon.reconstruct(model, images=x)


def test_a_source_in_double_precision_is_loaded_again(tmp_path):
    model, x = small().double(), some().double()
    for activation in ("identity", "relu", "tanh"):
        rebuilt = bnrecon.reconstruct(model, images=x, activation=activation)
        path = rebuilt.save(tmp_path / "source.safetensors")
        loaded = bnrecon.load_source(path, small().double())
        assert float((loaded(x) - rebuilt.network(x)).detach().abs().max()) < 1e-12
        assert loaded(x).dtype == torch.float64
    large = small().double()
    with torch.no_grad():
        large[0].weight.mul_(1e30)
    rebuilt = bnrecon.reconstruct(large, images=x)  # what float32 cannot hold, statistics included
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "large.safetensors"), large)
    assert float((loaded(x) - large(x)).detach().abs().max()) < 1e-8 * float(large(x).detach().abs().max())


def test_all_that_is_no_normalization_is_frozen_and_said(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.LayerNorm(6), nn.Bilinear(3, 3, 2), nn.Linear(6, 3))
    model[3].forward = lambda x: x
    rebuilt = bnrecon.reconstruct(model.eval(), unsupported="keep")
    trainable = {name for name, value in rebuilt.network.named_parameters() if value.requires_grad}
    assert trainable == {f"{n}.{norm}.{part}" for n in (0, 4) for norm in ("first_norm", "second_norm") for part in ("weight", "bias")} | {
        "2.weight", "2.bias",
    }  # fmt: skip
    assert any(
        "frozen with the convolutions, being no normalization: 1.weight, 3.weight, 3.bias" in note for note in rebuilt.notes
    )
    assert model[1].weight.requires_grad
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    assert {name for name, value in loaded.named_parameters() if value.requires_grad} == trainable


def test_at_minimum_width_rounding_to_float32_belongs_to_the_judgement():
    torch.manual_seed(3)
    model, found = enliven(nn.Sequential(nn.Conv2d(8, 12, 3)), (8, 5, 5)), []
    for seed in (0, 1, 27, 37):
        layer = bnrecon.reconstruct(model, width="minimum", seed=seed).layers[0]
        assert layer.converged == (layer.relative_error <= 1e-10 and layer.assembled_error <= 1e3 * 2.0**-23)
        found.append(layer)
    rounded = [layer for layer in found if layer.relative_error <= 1e-10 and not layer.converged]
    assert rounded
    assert all("rounding to float32 leaves" in layer.diagnosis for layer in rounded)


def test_as_many_layers_are_kept_in_memory_as_fit_together(monkeypatch):
    model = nn.Sequential(*(nn.Linear(width, width) for width in (24, 8, 24, 8))).eval()
    monkeypatch.setattr("bnrecon.reconstruction.planning.available_memory", lambda device: 900_000)
    with pytest.raises(UserError, match="the network's 4 layers need"):
        plan_layers(model, "he_normal")
    plan = plan_layers(model, "he_normal", unsupported="keep")
    assert [layer.found.name for layer in plan.layers] == ["0", "1", "3"]
    assert any(note.startswith("2 is left as it is: with the other layers it does not fit") for note in plan.notes)


def test_where_memory_suffices_for_no_layer_that_is_said(monkeypatch):
    monkeypatch.setattr("bnrecon.reconstruction.planning.available_memory", lambda device: 1000)
    with pytest.raises(UserError, match=r"none of the network's 2 layers can be rebuilt \(0: its 162 features take"):
        plan_layers(small(), "he_normal", unsupported="keep", width=162)
