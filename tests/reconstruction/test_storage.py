"""Features outside memory: the same network as with stored ones, using less memory."""

import copy
import dataclasses
import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import storage_process
import torch
from processes import ENVIRONMENT
from random_layer import ELSEWHERE
from torch import nn

import bnrecon
from bnrecon.features import DISTRIBUTIONS, FeatureSpec, LayerShape, draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.portable_random import Stream
from bnrecon.operators.base import CHUNK_BYTES
from bnrecon.operators.generated import Generated
from bnrecon.reconstruction import plan_layers, planned_layer, reconstruct
from bnrecon.reconstruction import planning as planning_module
from bnrecon.reconstruction import source_file as source_file_module
from bnrecon.reconstruction import storage as storage_module
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.runtime import precision as precision_module
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.precision import BFLOAT16


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


@pytest.mark.parametrize(
    ("name", "storage", "options"),
    [
        *((*stored, {"activation": "relu"}) for stored in ELSEWHERE),
        *(("sign", "regenerate", options) for options in ({}, {"skip": "inner"})),
        ("sign", "regenerate", {"activation": "tanh"}),
        ("sign", "regenerate", {"skip": "outer", "activation": "relu"}),
    ],
)
def test_every_storage_gives_the_same_network(name, storage, options):
    """Products sum in another order, so scales agree to rounding; the features are equal."""
    if DISTRIBUTIONS[name].at_most_n:
        options = options | {"width": "maximum"}
    model, x = network(), images()
    stored, made = (
        reconstruct(model, FeatureSpec(name, storage=way, **options), images=x)
        for way in ("memory", storage)
    )
    assert [layer.digest for layer in stored.layers] == [layer.digest for layer in made.layers]
    assert all(layer.converged and layer.relative_error < 1e-10 for layer in made.layers)
    pairs = zip(
        source_layers(stored.network).values(), source_layers(made.network).values(), strict=True
    )
    for one, other in pairs:
        assert {pair.storage for pair in other.pairs} == {storage}
        scales = [layer.present_maps()[0].scale for layer in (one, other)]
        # Each solution is as close to the minimum-norm one as float32 products are.
        assert (scales[0] - scales[1]).norm() < 1e-5 * scales[0].norm()
        assert other.frozen_digest() == one.frozen_digest()
        assert other.offloaded == sum(w.numel() for pair in one.pairs for w in pair.weights())
        assert not any(name.endswith("first.weight") for name in other.state_dict())
    with torch.no_grad():
        difference = (stored.network(x) - made.network(x)).abs().max()
    assert difference < (1e-3 if options.get("activation") == "tanh" else 1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_regenerated_signs_compute_in_half_precision(dtype):
    network = bnrecon.reconstruct(
        nn.Linear(4, 3).eval(), bnrecon.FeatureSpec("sign", storage="regenerate")
    ).network
    x = torch.randn(8, 4)
    half = copy.deepcopy(network).to(dtype)(x.to(dtype))
    torch.testing.assert_close(half.float(), network(x), rtol=0.05, atol=0.05)


def test_scales_are_identical_where_the_solver_forms_the_matrix():
    """One dense least-squares call solves all groups of a convolution."""
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


@pytest.mark.parametrize(
    ("layer", "sides"),
    [
        (nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1, groups=2), (5, 5)),
        (nn.ConvTranspose1d(4, 6, 3, stride=2), (7,)),
        (nn.Conv1d(4, 6, 3, groups=2, padding=1), (7,)),
        (nn.Conv3d(2, 3, 2), (4, 4, 4)),
        (nn.Conv2d(4, 4, 3, groups=4), (5, 5)),
    ],
    ids=repr,
)
def test_every_layer_type_computes_with_features_outside_memory(layer, sides, monkeypatch):
    """A few features at a time."""
    monkeypatch.setattr("bnrecon.reconstruction.source_layer.CHUNK_BYTES", 1)
    layer = layer.double().eval()
    x = torch.randn(3, layer.in_channels, *sides, dtype=torch.float64)
    for storage in ("regenerate", "disk"):
        spec = FeatureSpec("he_normal", storage=storage, activation="relu", skip="outer")
        rebuilt = reconstruct(layer, spec, images=x)
        with torch.no_grad():
            assert torch.allclose(rebuilt.network(x), layer(x), rtol=1e-8, atol=1e-8), storage


@pytest.mark.parametrize("room", [1, 50_000])
def test_stored_and_regenerated_features_compute_the_same(room, monkeypatch, tmp_path):
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


def test_statistics_and_shifts_are_summed_over_parts(monkeypatch):
    monkeypatch.setattr("bnrecon.features.pair.RUN_BYTES", {"cpu": 1})
    made = draw("sign", LayerShape(6, 4, (3, 3)), 100, 0, 0, storage="regenerate")
    assert len(list(made.first_parts())) == len(list(made.second_parts())) == 7
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


@pytest.mark.parametrize("name", ["sign", "he_normal", "orthogonal"])
def test_auto_keeps_features_in_memory_only_while_they_fit(name, monkeypatch, tmp_path):
    elsewhere = "disk" if name == "orthogonal" else "regenerate"
    model = nn.Conv2d(16, 16, 3).eval()
    assert plan_layers(model, name).storage == "memory"
    size = plan_layers(model, FeatureSpec(name, storage="memory")).memory
    # A layer of this size does not need it.
    monkeypatch.setattr("bnrecon.reconstruction.source_layer.FORWARD_BYTES", 0)
    monkeypatch.setattr(Generated, "tile_bytes", lambda *_: 10**5)
    monkeypatch.setattr(planning_module, "available_memory", lambda _: size - 1)
    plan = plan_layers(model, name)
    assert plan.storage == elsewhere
    assert plan.memory < size
    assert (plan.temporary_disk > plan.layers[0].shape.feature_bytes(plan.layers[0].width)) == (
        elsewhere == "disk"
    )
    rebuilt = reconstruct(model, name)
    assert rebuilt.network.features.storage == elsewhere
    path = rebuilt.save(tmp_path / "source.safetensors")
    assert source_layers(bnrecon.load_source(path, model))[""].features.in_memory
    monkeypatch.setattr(source_file_module, "available_memory", lambda _: 10**6)
    assert bnrecon.load_source(path, model).features.storage == elsewhere


@pytest.fixture
def bf16(monkeypatch):
    """A processor with fast bf16, whose rounded features take 2 bytes a number."""
    monkeypatch.setattr(precision_module, "has_fast_bfloat16", lambda _: True)


def test_auto_uses_the_disk_where_rounded_features_do_not_fit(monkeypatch, bf16):
    model = nn.Conv2d(64, 64, 3).eval()
    needs = {
        way: plan_layers(model, FeatureSpec(storage=way)).memory
        for way in ("memory", "regenerate", "disk")
    }
    assert needs["memory"] > 2 * needs["regenerate"] > 2 * needs["disk"]
    for way, least in needs.items():
        monkeypatch.setattr(planning_module, "available_memory", lambda _, least=least: least)
        assert plan_layers(model).storage == way


def test_full_disk_is_refused_before_work_starts(monkeypatch, bf16):
    monkeypatch.setattr(storage_module, "disk_room", lambda: 10**8)
    model = nn.Conv2d(64, 64, 3).eval()
    with pytest.raises(RunError, match=r"features take 0.2 GB in .*, 0.1 GB are free; set TMPDIR"):
        plan_layers(model, FeatureSpec(storage="disk"))
    monkeypatch.setattr(planning_module, "available_memory", lambda _: 2 * 10**8)
    assert plan_layers(model).storage == "regenerate"
    with pytest.raises(UserError, match=r"features take .*; TMPDIR's disk is too small too"):
        plan_layers(model, "orthogonal")


def test_plan_counts_the_large_tiles_of_a_gpu(monkeypatch):
    """A product on a GPU processes features in tiles of 1 GiB; fewer are one tile."""
    spec = FeatureSpec("sign", storage="regenerate")  # never short of memory
    (small,) = plan_layers(nn.Linear(30, 3).eval(), spec).layers
    (large,) = plan_layers(nn.Conv2d(256, 256, 3).eval(), spec).layers
    monkeypatch.setattr(type(small), "device", torch.device("cuda"))
    assert dataclasses.replace(small).working_bytes < 2**30
    bits = large.width * (256 + 256 * 9) // 8  # all bits are kept
    assert dataclasses.replace(large).working_bytes > 3 * CHUNK_BYTES["cuda"] + bits


@pytest.mark.parametrize("name", ["he_normal", "sign", "sparse_he_normal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 4])
def test_plan_counts_the_weights_a_source_layer_holds(name, dtype, groups):
    """The layer's weights and, where they differ, the drawn ones."""
    model = nn.Conv2d(16, 16, 3, groups=groups, dtype=dtype).eval()
    (planned,) = plan_layers(model, FeatureSpec(name, storage="memory")).layers
    layer = reconstruct(model, FeatureSpec(name, storage="memory")).network
    tensors = [*layer.parameters(), *layer.buffers()]
    tensors += [vector for each in layer.maps for vector in each]
    tensors += [part for pair in layer.pairs for part in (pair.first, pair.second)]
    storages = [part.untyped_storage() for part in tensors if part is not None]
    held = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    outputs = 16 * (planned_layer.VECTOR_BYTES + 4 * dtype.itemsize)
    assert held <= planned.stored_bytes + outputs
    assert planned.stored_bytes < 1.1 * held


@pytest.mark.parametrize("name", ["he_normal", "sign"])
def test_plan_covers_the_measured_memory(name):
    """Measured by ``scripts/bench_storage.py solves --features he_normal --widths 64``."""
    measured = 446_902_272
    plan = plan_layers(nn.Conv2d(64, 64, 3).eval(), FeatureSpec(name, storage="memory"))
    assert measured < plan.memory < 1.1 * measured


def test_loading_in_float64_takes_three_times_the_memory(monkeypatch, tmp_path):
    model = nn.Linear(6, 4).eval()
    path = reconstruct(model, "he_normal").save(tmp_path / "source.safetensors")
    numbers = 36 * (6 + 4)
    monkeypatch.setattr(source_file_module, "available_memory", lambda _: 2 * 4 * numbers)
    assert bnrecon.load_source(path, nn.Linear(6, 4)).features.in_memory
    monkeypatch.setattr(source_file_module, "available_memory", lambda _: 2 * 12 * numbers - 1)
    assert not bnrecon.load_source(path, nn.Linear(6, 4).double()).features.in_memory


def test_gpu_features_have_to_fit_into_the_hosts_memory(monkeypatch):
    """The host keeps them as drawn."""
    monkeypatch.setattr("bnrecon.solvers.iterative.precision_schedule", lambda _: [BFLOAT16])
    monkeypatch.setattr(planning_module.PlannedLayer, "device", torch.device("cuda"))
    model = nn.Conv2d(64, 64, 3).eval()

    def planned(host, **options):
        free = iter((10**11, host))  # of the model's device, then of the host
        with monkeypatch.context() as patch:
            patch.setattr(planning_module, "available_memory", lambda _: next(free))
            return plan_layers(model, FeatureSpec(**options))

    plan = planned(10**9)
    assert plan.storage == "memory"
    assert plan.host_memory == 3 * plan.layers[0].shape.feature_bytes(plan.layers[0].width)
    assert planned(plan.host_memory).storage == "memory"
    assert planned(plan.host_memory - 1).storage == "regenerate"
    with pytest.raises(UserError, match=r"need 0.4 GB .*, 0.4 GB are free on the GPU's host; use"):
        planned(plan.host_memory - 1, storage="memory")


def test_rounded_features_take_twice_the_memory_where_bf16_fails(monkeypatch):
    """It depends on the solver: rounding costs κ² in Craig's method."""
    monkeypatch.setattr("bnrecon.solvers.iterative.precision_schedule", lambda _: [BFLOAT16])

    def rounded(solver, oversampling):
        spec = FeatureSpec(oversampling=oversampling, storage="disk")
        (layer,) = plan_layers(nn.Linear(90, 90).eval(), spec, solver).layers
        numbers = layer.width * 180
        return planned_layer.disk_bytes([layer]) / numbers - 4

    assert [rounded("matrix_free", c) for c in (1.5, 1.05, 1.01)] == [2, 2, 4]
    assert [rounded("minimum_norm", c) for c in (1.5, 1.15, 1.05)] == [2, 2, 4]
    assert rounded("lbfgs", 1.5) == 4


def test_copied_network_shares_its_features_on_disk():
    network = reconstruct(nn.Conv2d(4, 6, 3).eval(), FeatureSpec(storage="disk")).network
    copied, x = copy.deepcopy(network), torch.randn(2, 4, 5, 5)
    assert copied.features.first.data_ptr() == network.features.first.data_ptr()
    copied.first_norm.weight.data.mul_(2)
    assert not torch.equal(copied(x), network(x))


@pytest.mark.parametrize(("name", "storage"), [("orthogonal", "regenerate"), ("id_cond", "disk")])
def test_impossible_storage_for_a_distribution_is_refused(name, storage):
    with pytest.raises(UserError, match=f"{name} .*; take storage=memory"):
        plan_layers(nn.Linear(3, 4).eval(), FeatureSpec(name, storage=storage))


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit counts so on Linux")
@pytest.mark.parametrize(
    ("name", "storage", "width", "fits"),
    [
        ("he_normal", "memory", 48, False),
        ("he_normal", "regenerate", 48, True),
        ("he_normal", "disk", 80, True),
        ("sign", "regenerate", 80, True),
    ],
)
def test_limited_process_computes_with_features_outside_memory(name, storage, width, fits):
    """120 MB: features of width 48 take 60 MB in float32 and 240 MB while solving, of 80 280."""
    line = [storage_process.__file__, name, storage, str(width), str(120 * 10**6)]
    done = subprocess.run([sys.executable, *line], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode == 0) == fits, done.stderr
    assert fits or "alloc" in done.stderr.lower()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs limits of Linux")
def test_disk_filling_up_while_drawing_is_one_line():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, before[1]))
    try:
        with pytest.raises(RunError, match=r"no room for .* of features in .*File too large; set"):
            draw("he_normal", LayerShape(16, 16, (3, 3)), 3456, 0, 0, storage="disk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_feature_files_are_unnamed_and_freed_with_the_features(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def mapped():
        return sum(str(tmp_path) in line for line in Path("/proc/self/maps").open())

    features = draw("he_normal", LayerShape(32, 32, (3, 3)), 9216, 0, 0, storage="disk")
    rounded = feature_operator(features, torch.float64, torch.device("cpu")).to(BFLOAT16)
    assert mapped() == 3  # A, B, and B rounded: A is so small that it stays in memory
    assert list(tmp_path.iterdir()) == []
    del features, rounded
    gc.collect()
    assert mapped() == 0


def test_weights_outside_memory_are_not_saved_in_full(tmp_path):
    rebuilt = reconstruct(network(), FeatureSpec(storage="disk"))
    with pytest.raises(
        UserError, match=r"frozen weights of 0, 3.* are not in memory; rebuild with"
    ):
        rebuilt.save(tmp_path / "source.safetensors", full=True)
    assert list(tmp_path.iterdir()) == []


def test_damaged_draw_is_detected(tmp_path, monkeypatch):
    model = nn.Linear(6, 4).eval()
    reasons = {"sign": "", "he_normal": "", "orthogonal": "save with full=True to move them"}
    paths = [
        reconstruct(model, FeatureSpec(name, storage=storage)).save(tmp_path / name)
        for name, storage in zip(reasons, ("regenerate", "regenerate", "memory"), strict=True)
    ]
    monkeypatch.setattr(Stream, "_draw", lambda _stream, out, *_: out.fill(1))
    for path, reason in zip(paths, reasons.values(), strict=True):
        with pytest.raises(RunError, match=f"draws other features.*{reason}"):
            bnrecon.load_source(path, model)
