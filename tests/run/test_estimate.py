"""Operations and times estimated before a run, against PyTorch's count of operations."""

import contextlib
import copy

import pytest
import torch
from networks import Composed, same_state
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bnrecon
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.integers import find_signs
from bnrecon.reconstruction import duration, planning
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.solving import layer_problem
from bnrecon.run import estimate
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64
from bnrecon.solvers import SolverSpec, factorization
from bnrecon.solvers.lbfgs import MAX_ITERATIONS


def attend(self, x):
    """Apply the attention, with packed projections, to the rows of an image."""
    rows = x.flatten(0, 1)
    return self.attention(rows, rows, rows, need_weights=False)[0]


ATTENDED = Composed(attend, attention=nn.MultiheadAttention(6, 2, batch_first=True))
TWICE = nn.Conv2d(3, 3, 3, padding=1)
SINGLE = Composed(lambda self, x: self.layer(x[0]), layer=nn.Conv1d(3, 4, 3, stride=2))
# A layer only for training, such as an auxiliary classifier.
PARTS = {"layer": nn.Conv2d(3, 4, 3), "auxiliary": nn.Linear(4, 10)}
UNUSED = Composed(lambda self, x: self.layer(x), **PARTS)
NETWORKS = {
    "one layer not called": (UNUSED, (3, 5, 5)),
    "Conv2d": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 9, 8)),
    "Conv2d, dilated, padding=same": (nn.Conv2d(3, 4, 2, dilation=2, padding="same"), (3, 6, 5)),
    "Conv2d, reflected": (nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), (3, 6, 5)),
    "Conv1d": (nn.Conv1d(3, 4, 3, padding=1), (3, 9)),
    "Conv1d, one image": (SINGLE, (3, 9)),
    "Conv3d": (nn.Conv3d(2, 4, (1, 2, 3), padding=(0, 0, 1)), (2, 3, 4, 5)),
    "grouped": (nn.Conv2d(6, 4, 3, groups=2), (6, 6, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 6, 6)),
    "transposed": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
        (4, 5, 4),
    ),
    "transposed, grouped, Conv1d": (nn.ConvTranspose1d(4, 6, 4, stride=3, groups=2), (4, 5)),
    "Linear": (nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2)),
    "Linear on sequences": (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)), (1, 6, 5)),
    "attention": (ATTENDED, (1, 5, 6)),
    "called twice": (nn.Sequential(TWICE, nn.MaxPool2d(2), TWICE), (3, 8, 8)),
}


def counted(network, shape):
    """PyTorch's count for one image, without the attention itself."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *shape))
    counts = counter.get_flop_counts()["Global"]
    layers = ("convolution", "mm", "addmm", "bmm", "_convolution")
    return sum(
        count for operation, count in counts.items() if str(operation).partition(".")[2] in layers
    )


@pytest.mark.parametrize("kind", [name for name in NETWORKS if name != "attention"])
def test_multiply_adds_are_half_of_pytorchs_operations(kind):
    network, shape = NETWORKS[kind]
    network.eval()
    positions = estimate.pixels(network, shape)
    assert 2 * estimate.multiply_adds(network, positions) == counted(network, shape) > 0


def test_attention_counts_as_four_projections():
    network, shape = NETWORKS["attention"]
    positions = estimate.pixels(network.eval(), shape)
    names = {f"attention.{name}_proj" for name in ("q", "k", "v", "out")}
    assert set(positions) == names == {layer.name for layer in plan_layers(network).layers}
    assert estimate.multiply_adds(network, positions) == 4 * 5 * 6 * 6


@pytest.mark.parametrize("kind", [name for name in NETWORKS if name != "called twice"])
@pytest.mark.parametrize("storage", ["memory", "regenerate"])
def test_source_layer_operations_match_pytorchs(kind, storage):
    network, shape = NETWORKS[kind]
    plan = plan_layers(network.eval(), FeatureSpec("sign", storage=storage))
    positions = estimate.pixels(network, shape)
    rebuilt = bnrecon.reconstruct(network, FeatureSpec("sign", storage=storage)).network
    expected = counted(rebuilt, shape)
    if kind == "attention":  # PyTorch's attention applies identities to q, k and v
        expected -= 2 * 3 * 5 * 6 * 6 + 2 * 5 * 6 * 6
    assert estimate.source_flops(plan, positions) == expected > 0


def test_network_is_unchanged():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    before = copy.deepcopy(network)
    estimate.pixels(network, (3, 5, 5))
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())
    assert same_state(network, before)


def test_time_to_solve_counts_all_groups():
    plans = [
        plan_layers(nn.Conv2d(64 * g, 64 * g, 3, groups=g).eval(), "sign", "matrix_free")
        for g in (1, 4)
    ]
    one, four = map(seconds_to_solve, plans)
    assert four == pytest.approx(4 * one)


RATES = {torch.float32: 1e11, torch.float64: 5e10, torch.bfloat16: 4e11, torch.int8: 8e11}


def seconds_to_solve(plan, integers=True):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duration, "rate", lambda kind, device: RATES[kind])
        patch.setattr("bnrecon.solvers.iterative.has_fast_int8", lambda device: integers)
        patch.setattr(duration, "precision_schedule", lambda device: [BFLOAT16, FLOAT32, FLOAT64])
        return sum(duration.solving_seconds(plan.layers))


def test_signs_take_half_as_long_with_fast_integers():
    layer = nn.Conv2d(64, 64, 3).eval()
    signs, normal = plan_layers(layer, "sign"), plan_layers(layer, "he_normal")
    stored, on_disk = (
        plan_layers(layer, FeatureSpec("er_sign", storage=way)) for way in ("memory", "disk")
    )
    for plan in (signs, stored):
        assert seconds_to_solve(plan) == pytest.approx(seconds_to_solve(plan, False) / 2, rel=0.2)
    assert seconds_to_solve(on_disk) == seconds_to_solve(on_disk, False)
    half = 0.75 * seconds_to_solve(normal, False)  # of the products use integers
    assert seconds_to_solve(normal) == pytest.approx(half, rel=0.2)


@pytest.mark.parametrize(("width", "integers"), [(11_250, True), (7_000, False)])
def test_system_with_eliminated_outputs_is_not_solved_in_integers(width, integers):
    """With fewer features than equations, an outer skip connection replaces the missing ones."""
    layer = nn.Linear(5, 1500).eval()
    plan = plan_layers(layer, FeatureSpec("sign", skip="outer", width=width), "matrix_free")
    faster = seconds_to_solve(plan) < seconds_to_solve(plan, False)
    (planned,) = plan.layers
    system, _ = layer_problem(planned, planned.folded.target, planned.draw(0))
    assert faster == (find_signs(system.operator) is not None) == integers


def test_tolerance_and_iteration_limit_set_the_time_and_lbfgs_reaches_its_limit(monkeypatch):
    monkeypatch.setattr(duration, "rate", lambda kind, device: 1e11)

    def seconds(name, **options):
        features = FeatureSpec("sign", oversampling=1.0 if name == "lbfgs" else None)
        solver = SolverSpec(name, **options)
        return plan_layers(nn.Conv2d(64, 64, 3).eval(), features, solver).seconds

    assert seconds("matrix_free", tolerance=1e-5) < seconds("matrix_free")
    assert seconds("matrix_free", max_iterations=10) < seconds("matrix_free")
    assert seconds("lbfgs") == seconds("lbfgs", max_iterations=MAX_ITERATIONS)


@pytest.mark.parametrize("channels", [64, 72])  # 36,864 and 46,656 equations
def test_lu_by_panels_takes_half_as_long(channels, monkeypatch):
    """Only where oneDNN's products are faster; elsewhere panels just lift LAPACK's limit."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(planning, "available_memory", lambda _: 16e9)  # on any machine
    features = FeatureSpec("he_normal", oversampling=1.0)
    plan = plan_layers(nn.Conv2d(channels, channels, 3).eval(), features, "refined")
    seconds = {}
    for faster in (True, False):
        for module in (duration, factorization):
            monkeypatch.setattr(module, "onednn_is_faster", lambda _, faster=faster: faster)
        seconds[faster] = seconds_to_solve(plan)
    assert seconds[True] == pytest.approx(seconds[False] / 2, rel=0.1)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with contextlib.nullcontext() if channels == 64 else pytest.raises(UserError, match="46656"):
        plan_layers(nn.Conv2d(channels, channels, 3).eval(), features, "refined")
