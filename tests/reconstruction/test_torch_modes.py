"""Global torch settings do not reach our computation; a model's code keeps their device.

The meta device, which holds no numbers, stands for a GPU: tensors created there by mistake show.
"""

import contextlib
import copy

import numpy as np
import pytest
import torch
from networks import difference
from random_layer import random_layer
from torch import nn

import bnrecon
from bnrecon import construction, partition
from bnrecon.data import DataSpec, load
from bnrecon.data.batches import EpochPosition
from bnrecon.features import LayerShape
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.reconstruction import gather
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.torch_modes import CALLERS_DEVICE, CPU
from bnrecon.solvers import pruning
from bnrecon.solvers.register import SOLVERS
from bnrecon.targets.initialization import initialize_from_data

DEVICES = []  # the default device of each run of a model's own code


class Watching(nn.Sequential):
    """Records the default device of each of its runs."""

    def forward(self, x):
        DEVICES.append(torch.get_default_device().type)
        return super().forward(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Watching(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.Flatten(),
        nn.Linear(96, 2),
    ).eval()


@pytest.fixture
def images():
    return torch.randn(5, 3, 6, 6)


@pytest.fixture
def elsewhere(model, images):
    """Another default device once model and images exist."""
    before = torch.get_default_device()
    torch.set_default_device("meta")
    yield
    torch.set_default_device(before)


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "closed_form"])
def test_every_solver(model, images, elsewhere, solver):
    rebuilt = bnrecon.reconstruct(model, solver=solver, images=images)
    assert {parameter.device for parameter in rebuilt.network.parameters()} == {CPU}
    assert max(layer.relative_error for layer in rebuilt.layers) < 1e-2


@pytest.mark.parametrize("features", DISTRIBUTIONS)
def test_every_distribution(model, images, elsewhere, features, tmp_path):
    rebuilt = bnrecon.reconstruct(model, features, images=images)
    assert rebuilt.difference.largest < 1e-4 * rebuilt.difference.size
    path = rebuilt.save(tmp_path / "source.safetensors")
    loaded = bnrecon.collapse(bnrecon.load_source(path, model))
    assert difference(loaded, model, images) < 1e-4
    assert rebuilt.save(tmp_path / "full.safetensors", full=True).exists()


def test_model_code_sees_the_callers_default_device(model, images, elsewhere):
    class Loader:
        def __iter__(self):
            DEVICES.append(torch.get_default_device().type)
            yield images[:2]
            DEVICES.append(torch.get_default_device().type)
            yield images[2:]

    DEVICES.clear()
    bnrecon.reconstruct(model, images=Loader())
    assert len(DEVICES) > 4
    assert set(DEVICES) == {"meta"}


@pytest.mark.parametrize("storage", ["regenerate", "disk"])
@pytest.mark.parametrize("features", ["sign", "he_normal"])
def test_features_outside_memory(model, images, elsewhere, features, storage):
    rebuilt = bnrecon.reconstruct(model, bnrecon.FeatureSpec(features, storage=storage))
    assert difference(rebuilt.network, model, images) < 1e-4


@pytest.mark.parametrize("solver", ["svd_lbfgs", "matrix_free"])
def test_autocast_rounds_nothing(model, images, solver):
    here = bnrecon.reconstruct(model, solver=solver, images=images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rebuilt = bnrecon.reconstruct(model, solver=solver, images=images)
        assert torch.is_autocast_enabled("cpu")
    assert rebuilt.difference == here.difference
    assert [layer.relative_error for layer in rebuilt.layers] == [
        layer.relative_error for layer in here.layers
    ]


def test_error_restores_both_settings(model, elsewhere):
    with pytest.raises(UserError):
        bnrecon.reconstruct(model, "no such features")
    assert torch.get_default_device().type == "meta"
    assert CALLERS_DEVICE.get() == CPU


def test_three_separate_calls(model, images, elsewhere):
    plan = bnrecon.plan_layers(model, "sign", images=images)
    moments = gather(plan.model, [layer.folded for layer in plan.layers], [images])
    solutions = {layer.name: bnrecon.solve_layer(layer) for layer in plan.layers}
    rebuilt = bnrecon.assemble(plan, solutions, moments)
    assert difference(rebuilt.network, model, images) < 1e-4


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS = {
    "device": lambda: torch.device("meta"),
    "dtype": lambda: default_dtype(torch.float16),
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
MODEL = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
NORMALIZED = nn.Sequential(MODEL[0], nn.BatchNorm1d(6))
POINTS = torch.tensor([[0.1, -0.4, 0.3, 0.2], [1.0, 0.5, -0.2, 0.0]])
PLANE = partition.slice_of(POINTS)
BALL = (MODEL, POINTS, 0.3)


def sum_of_parameters(network):
    values = [p.detach().double().sum() for p in (*network.parameters(), *network.buffers())]
    assert not any(p.is_inference() for p in network.parameters())
    return float(torch.stack(values).sum())


def set_statistics(inputs):
    return sum_of_parameters(partition.set_statistics(copy.deepcopy(NORMALIZED), inputs))


def first_batch():
    images, labels = next(load(DataSpec("digits")).train_batches(EpochPosition(32, 0, 0), CPU))
    return images.tolist(), labels.tolist()


CONSTRUCTIONS = {
    "relu_network": lambda: sum_of_parameters(construction.relu_network(MODEL).network),
    "rank": lambda: sum_of_parameters(construction.relu_network(MODEL, rank=4).network),
    "skip_chain": lambda: sum_of_parameters(construction.skip_chain(MODEL).network),
    "partition": lambda: partition.partition(MODEL, PLANE).regions.areas().tolist(),
    "forecast": lambda: partition.forecast(MODEL, PLANE),
    "slice of tensors": lambda: partition.slice_of(POINTS, seed=1).directions.tolist(),
    "slice of lists": lambda: partition.slice_of([[1.0, 2.0], [0.0, 1.0]]).directions.tolist(),
    "inputs": lambda: PLANE.inputs(np.eye(2)[::-1]).tolist(),
    "coordinates": lambda: PLANE.coordinates(POINTS).tolist(),
    "distances": lambda: [d.tolist() for d in partition.fold_distances(MODEL, POINTS, probes=5)],
    "local map": lambda: partition.count_by_local_map(*BALL).tolist(),
    "sampling": lambda: partition.count_by_sampling(*BALL, samples=20).tolist(),
    "random network": lambda: sum_of_parameters(partition.random_network(5, 2)),
    "statistics": lambda: set_statistics(POINTS),
    "batches": lambda: set_statistics([POINTS, POINTS[:1]]),
    "folded": lambda: sum_of_parameters(initialize_from_data(MODEL, POINTS, method="fold")),
    "frozen": lambda: sum_of_parameters(initialize_from_data(MODEL, POINTS)),
    "target": lambda: sum_of_parameters(bnrecon.load_target("cifar10-vgg18-1a99b1df98")),
    "augmented": first_batch,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_every_construction(name, setting):
    """The same numbers on the CPU; the network of ``set_statistics`` runs as its caller does."""
    if name in ("statistics", "batches") and setting in ("inference", "autocast"):
        pytest.skip("the network is the caller's")
    expected = CONSTRUCTIONS[name]()
    with SETTINGS[setting]():
        assert CONSTRUCTIONS[name]() == expected


def test_features_are_ranked_the_same_in_any_default_dtype(monkeypatch):
    monkeypatch.setattr(pruning, "PATH_STEPS", 3)
    system = random_layer("he_normal", LayerShape(3, 4), 18)[2]
    expected = pruning.least_l1(system.operator, system.rhs)
    with default_dtype(torch.float64):
        assert torch.equal(pruning.least_l1(system.operator, system.rhs), expected)
