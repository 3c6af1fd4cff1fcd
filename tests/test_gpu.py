"""Requirements of a GPU, shown without one: one device, few waits, CUDA graphs."""

import dataclasses

import pytest
import torch
from fake_gpu import FakeGpu, on_device
from networks import difference, randomize, same_state, small_vgg
from random_layer import gaussian, random_layer
from torch import nn

from bnrecon import reconstruct
from bnrecon.construction.deep import balanced_widths, draw_deep, generic_rank, solve_deep
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.signs import ExpandedSigns
from bnrecon.reconstruction.source_file import collapse, load_source, source_layers
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.interruption import StopRequest
from bnrecon.runtime.precision import BFLOAT16
from bnrecon.solvers import SolverSpec, solve
from bnrecon.solvers.krylov import LOOK_EVERY, cgls, craig
from bnrecon.targets import trainer as training
from bnrecon.targets.accuracy import measure_accuracy
from bnrecon.targets.register import build
from bnrecon.targets.spec import TrainSpec
from bnrecon.targets.step import TrainingPlan
from bnrecon.targets.trainer import train

CPU = torch.device("cpu")
DOUBLE = torch.float64
SHAPE = LayerShape(6, 5, (3, 3))
SPEC = TrainSpec(epochs=2, nesterov=True, warmup_epochs=0.5, checkpoint_seconds=1e9)
PLAN = TrainingPlan(SPEC, torch.float32)
COMPILED = dataclasses.replace(PLAN, compiled=True)
REQUIRED = TrainingPlan(dataclasses.replace(SPEC, compile="on"), torch.float32, True)


@pytest.fixture
def gpu():
    with FakeGpu() as device:
        yield device


# The fake device.


def test_operations_on_two_devices_are_refused(gpu):
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    index = torch.tensor([0, 2])
    for mistake in (
        lambda: here + there,
        lambda: torch.stack([here, there]),
        lambda: here.add_(there[0]),
        lambda: here[index.to("cuda")],
        lambda: there.index_select(0, index),
        lambda: nn.Linear(3, 2)(there),
        lambda: nn.BatchNorm1d(3).to("cuda")(torch.ones(4, 3)),
        lambda: torch.linalg.solve(torch.eye(3), there),
        lambda: torch.randn(3, device="cuda", generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match="device"):
            mistake()
    assert torch.equal(
        (there + torch.tensor(2.0)).cpu(), here + 2
    )  # numbers may be on either device


def test_waits_are_counted_and_work_is_not(gpu):
    there = torch.arange(6.0, device="cuda")
    weight = torch.randn(6, 6).to("cuda").requires_grad_()
    pinned = torch.ones(6).pin_memory()
    gpu.waits.clear()
    (weight @ there).square().sum().backward()
    there[2:4] = 7.0
    there += torch.full_like(there, 3) + pinned.to("cuda", non_blocking=True)
    copied = there[there.argsort()].clone().to(torch.bfloat16).float()
    assert gpu.waits.total() == 0
    for number, wait in enumerate(
        (
            lambda: float(copied[0]),
            lambda: bool(copied.sum() > 3),
            copied.sum().item,
            copied.tolist,
            copied.cpu,
            lambda: torch.ones(6).copy_(copied),
            lambda: copied.copy_(torch.ones(6)),
            lambda: torch.ones(6).to("cuda", non_blocking=True),
            lambda: copied.new_tensor(5),
            lambda: torch.tensor([1.0, 2.0], device="cuda"),
            lambda: copied[copied > 0],
            lambda: copied[[0, 1]],
            lambda: copied[copied.argmax()],
            copied.nonzero,
            lambda: torch.linalg.solve(torch.eye(6, device="cuda"), copied),
        ),
        1,
    ):
        wait()
        assert gpu.waits.total() == number, gpu.waits
    assert all(" at test_gpu.py:" in line for line in gpu.waits)


# Training.


def trained(digits, tmp_path, plan=PLAN):
    network = small_vgg()
    log, _ = train(network, digits, plan, CPU, tmp_path / "checkpoint", StopRequest())
    (tmp_path / "checkpoint").unlink()
    return network, log


TRAINED = {
    "vgg": {},
    "vgg_normalization": {"features": "he_normal", "excess": 10, "inner": "batchnorm"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", TRAINED)
def test_training_waits_only_at_its_synchronizations(
    digits, tmp_path, gpu, dtype, family, monkeypatch
):
    """20 steps wait as often as 5, except at synchronizations, and match the CPU."""
    x, y = digits.train_x[:640], digits.train_y[:640]
    few = dataclasses.replace(digits, train_x=x, train_y=y)

    def trained_on(device, batch_size, every):
        monkeypatch.setattr(training, "SYNC_EVERY", every)
        torch.manual_seed(0)
        options = {"width": 4, "groups": [1, 1], "activation": "relu", **TRAINED[family]}
        network = build(family, (1, 8, 8), 10, **options)
        spec = dataclasses.replace(SPEC, epochs=1, lr=0.01, batch_size=batch_size)
        plan = TrainingPlan(spec, dtype)
        checkpoint = tmp_path / f"{device} {batch_size} {every}"
        gpu.waits.clear()
        log, _ = train(network, few, plan, device, checkpoint, StopRequest())
        return network, log, gpu.waits.total()

    trained_on(gpu.device, 128, 4)  # copies the images
    unwatched, watched = trained_on(gpu.device, 128, 1000)[2], trained_on(gpu.device, 32, 4)[2]
    network, log, waits = trained_on(gpu.device, 32, 1000)
    assert waits == unwatched, gpu.waits
    assert watched == waits + 20 // 4 - 1  # the last one is the epoch's end
    other, other_log, none = trained_on(CPU, 32, 1000)
    assert none == 0
    assert log == other_log
    assert same_state(network, other)


# Compiled training.


class Replayed(nn.Module):
    """CUDA graphs' memory: a call overwrites the results of the last one and its backward."""

    def __init__(self, network):
        super().__init__()
        self.network, self.overwritten = network, []
        for parameter in network.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: self.overwritten.append(p.grad))

    def forward(self, x):
        for tensor in self.overwritten:
            tensor.fill_(float("nan"))
        logits = self.network(x)
        self.overwritten = [logits.detach()]
        return logits


def test_nothing_overwritten_by_a_replay_is_read_afterwards(digits, tmp_path, monkeypatch):
    whole, log = trained(digits, tmp_path)
    monkeypatch.setattr(torch, "compile", lambda network, mode: Replayed(network))
    network, compiled_log = trained(digits, tmp_path, COMPILED)
    assert compiled_log == log
    assert same_state(network, whole)
    assert all(parameter.grad is None for parameter in network.parameters())  # the graphs' memory


def test_training_is_one_graph_compiled_once(digits, tmp_path, monkeypatch):
    """By Dynamo and AOTAutograd as on a GPU: statistics inside, rate outside, one shape."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter, compiler = CompileCounterWithBackend("aot_eager"), torch.compile
    whole, log = trained(digits, tmp_path)
    monkeypatch.setattr(torch, "compile", lambda network, mode: compiler(network, backend=counter))
    network, compiled_log = trained(digits, tmp_path, COMPILED)
    assert counter.frame_count == 1
    assert [row["accuracy"] for row in compiled_log] == [row["accuracy"] for row in log]
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-4, atol=1e-5)
    assert network.features.norm1_1.num_batches_tracked == 22


class Breaks(torch.autograd.Function):
    """A forward pass that runs, with a backward pass that cannot be captured."""

    @staticmethod
    def forward(ctx, logits):
        return logits.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("operation not permitted when stream is capturing\nand more lines")


def failing(network, calls, in_backward):
    """A compiled network that fails in its n-th call, before or after statistics change."""
    remaining = [calls]

    class Compiled(nn.Module):
        def forward(self, x):
            remaining[0] -= 1
            if remaining[0] == 0 and not in_backward:
                raise RuntimeError("ptxas failed\nand more lines")
            return Breaks.apply(network(x)) if remaining[0] == 0 else network(x)

    return Compiled()


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_training_continues_identically_where_compiling_or_capturing_fails(
    digits, tmp_path, monkeypatch, caplog, call, in_backward
):
    whole, log = trained(digits, tmp_path)
    monkeypatch.setattr(torch, "compile", lambda network, mode: failing(network, call, in_backward))
    network, other_log = trained(digits, tmp_path, COMPILED)
    said = [line for line in caplog.messages if "compile" in line]
    assert len(said) == 1
    assert said[0].startswith("torch.compile fails here (RuntimeError: ")
    assert said[0].endswith("; training goes on uncompiled")
    assert "more lines" not in said[0]
    assert other_log == log
    assert same_state(network, whole)


def test_training_continues_uncompiled_without_a_c_compiler(digits, tmp_path, caplog):
    """Inductor with a missing compiler."""
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("/nowhere/compiler",)}):
        network, _ = trained(digits, tmp_path, COMPILED)
    said = caplog.text
    assert "torch.compile fails here (InvalidCxxCompiler: No working C++ compiler found" in said
    assert "Traceback" not in said
    assert network.features.norm1_1.num_batches_tracked == 22


@pytest.mark.parametrize("in_backward", [False, True])
def test_compile_failure_is_an_error_if_required(digits, tmp_path, monkeypatch, in_backward):
    monkeypatch.setattr(torch, "compile", lambda network, mode: failing(network, 2, in_backward))
    said = r"train\.compile=on: torch\.compile fails here .*or =off$"
    with pytest.raises(UserError, match=said) as error:
        trained(digits, tmp_path, REQUIRED)
    assert "\n" not in str(error.value)


def test_error_of_the_network_is_not_blamed_on_compiling(digits, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", lambda network, mode: network)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        train(
            nn.Sequential(nn.Flatten(), nn.Linear(7, 10)),
            digits,
            REQUIRED,
            CPU,
            tmp_path / "c",
            StopRequest(),
        )
    assert "compile" not in caplog.text


# Solvers.


def system(name, width, device, skip="none"):
    return random_layer(name, SHAPE, width, skip=skip, device=device)[-1]


WIDTHS = {"minimum": SHAPE.minimum_width, "maximum": SHAPE.equations, "wide": 405}


@pytest.mark.parametrize(
    ("solver", "features", "width"),
    [
        ("matrix_free", "he_normal", "wide"),
        ("minimum_norm", "he_normal", "wide"),
        ("least_squares", "er_sign", "wide"),
        ("least_squares", "er_sign", "minimum"),
        ("refined", "he_normal", "minimum"),
        ("lu", "sparse_he_normal", "minimum"),
        ("lu", "he_normal", "maximum"),
        ("closed_form", "id_cond", "minimum"),
        ("closed_form", "id_cond", "maximum"),
        ("closed_form", "ortho_cond", "maximum"),
        ("svd_lu_lbfgs", "he_normal", "wide"),
        ("auto", "he_normal", "wide"),
        ("auto", "he_uniform", "minimum"),
    ],
)
def test_solvers_work_on_the_device(gpu, solver, features, width):
    posed = system(features, WIDTHS[width], gpu.device)
    solution = solve(posed, SolverSpec(solver))
    assert on_device(solution.scale)
    scales = posed.scales(solution.scale)
    assert on_device(scales.inner)
    assert on_device(scales.outer)
    assert solution.report.relative_residual < (1e-3 if "lbfgs" in solver else 1e-10)


@pytest.mark.parametrize("solver", ["matrix_free", "minimum_norm"])
def test_krylov_methods_wait_less_than_once_in_two_iterations(gpu, solver):
    posed = system("he_normal", 405, gpu.device)
    gpu.waits.clear()
    report = solve(posed, SolverSpec(solver)).report
    assert report.converged
    assert report.precision == "tf32"
    assert report.iterations > 80
    assert gpu.waits.total() < 0.5 * report.iterations, gpu.waits


@pytest.mark.parametrize("inner", [cgls, craig])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_iterations_beyond_an_exact_solution_change_nothing(gpu, inner, dtype):
    """M = 2 I is solved in one iteration; until the next check energies are 0, never NaN."""
    factors = 2 * torch.eye(16, dtype=dtype), torch.ones(16, 1, dtype=dtype)
    rhs = torch.randn(16, dtype=dtype, generator=torch.Generator().manual_seed(0))
    rhs /= rhs.norm()
    moved = KhatriRao(*(factor.to(gpu.device) for factor in factors))
    expected, steps = inner(KhatriRao(*factors), rhs, 1e-3, 100)
    assert steps == 1
    for limit, counted in ((100, LOOK_EVERY), (4, 4)):
        there, steps = inner(moved, rhs.to(gpu.device), 1e-3, limit)
        assert steps == counted
        assert torch.equal(there.cpu(), expected)


FOUR_WIDTHS = (405, 420, 440, 460)


@pytest.mark.parametrize("solver", ["matrix_free", "minimum_norm"])
def test_iterations_are_counted_as_done(gpu, solver):
    """The CPU checks every iteration, a GPU every tenth; the limit is never exceeded."""
    here, there = (
        [
            solve(system("er_sign", width, device), SolverSpec(solver)).report
            for width in FOUR_WIDTHS
        ]
        for device in (CPU, gpu.device)
    )
    assert all(report.converged for report in here + there)
    assert not any(report.iterations % LOOK_EVERY for report in there)
    # The number depends on the processor's rounding and may be a multiple of ten by chance.
    assert any(report.iterations % LOOK_EVERY for report in here)
    limited = SolverSpec(solver, max_iterations=37)
    few = solve(system("er_sign", 405, gpu.device), limited).report
    assert few.iterations == 37
    assert not few.converged


@pytest.mark.parametrize("skip", ["none", "inner", "outer"])
def test_products_of_the_eliminated_system_never_wait(gpu, skip):
    width = SHAPE.minimum_width + (skip == "inner")
    here = system("he_normal", width, CPU, skip).operator
    there = system("he_normal", width, gpu.device, skip).operator
    x, y = gaussian(here.shape[1], 2, seed=1), gaussian(here.shape[0], seed=2)

    def products(operator, x, y):
        part = operator.columns(slice(3, 9))
        return operator.matvec(x), operator.rmatvec(y), part, operator.dense()

    moved = x.to(gpu.device), y.to(gpu.device)
    gpu.waits.clear()
    computed = products(there, *moved)
    assert gpu.waits.total() == 0, gpu.waits
    for got, wanted in zip(computed, products(here, x, y), strict=True):
        assert torch.equal(got.cpu(), wanted)


def test_deep_sources_are_solved_on_the_targets_device_from_the_same_draws(gpu):
    target = gaussian(3, 4, seed=1)
    weights = draw_deep(4, 1, balanced_widths(16, 3, 3), 0)
    here, there = solve_deep(target, weights), solve_deep(target.to(gpu.device), weights)
    assert here.relative_error == there.relative_error < 1e-9
    for got, wanted in zip(there.scales, here.scales, strict=True):
        assert on_device(got)
        assert torch.equal(got.cpu(), wanted)
    moved = [weight.to(gpu.device) for weight in weights]
    assert generic_rank(moved) == generic_rank(weights) == 12


# Whole networks.


@pytest.mark.parametrize(
    ("features", "options"),
    [
        *((name, {}) for name in DISTRIBUTIONS),
        *((name, {"activation": "relu"}) for name in ("he_normal", "sign", "id_cond")),
        *((name, {"skip": "inner"}) for name in ("he_normal", "sign", "id_cond")),
        *(("sign", {"storage": way}) for way in ("regenerate", "disk")),
        *(("he_normal", {"storage": way}) for way in ("regenerate", "disk")),
    ],
    ids=str,
)
def test_networks_are_rebuilt_on_the_device(digits, gpu, features, options, monkeypatch):
    monkeypatch.setattr("bnrecon.operators.rows.TILE", 50)  # for features outside memory
    target = randomize(small_vgg(), (1, 8, 8)).to(gpu.device)
    images, _ = next(iter(digits.test_batches(100, gpu.device)))
    source = reconstruct(target, FeatureSpec(features, **options), images=images).network
    assert all(on_device(tensor) for tensor in (*source.parameters(), *source.buffers()))
    assert difference(source, target, images) < 1e-3
    rebuilt = measure_accuracy(source, digits, gpu.device)
    assert rebuilt == measure_accuracy(target, digits, gpu.device)


@pytest.mark.parametrize("there", [True, False], ids=["to the device", "from the device"])
@pytest.mark.parametrize("features", ["he_normal", "id_cond"])
def test_moved_source_computes_on_its_device(gpu, features, there, tmp_path):
    begin, end = (CPU, gpu.device) if there else (gpu.device, CPU)
    target = randomize(small_vgg(), (1, 8, 8)).to(begin)
    rebuilt = reconstruct(target, features)
    source, target = rebuilt.network.to(end), target.to(end)
    single = collapse(source)
    assert all(on_device(parameter) == there for parameter in single.parameters())
    assert on_device(next(iter(source_layers(source).values())).weight) == there
    x = torch.randn(8, 1, 8, 8).to(end)
    for network in (source, single):
        assert difference(network, target, x) < 1e-3
    loaded = load_source(rebuilt.save(tmp_path / "source.safetensors"), target)
    assert torch.equal(loaded(x).cpu(), source(x).cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", ["memory", "regenerate"])
@pytest.mark.parametrize("features", ["he_normal", "sign"])
def test_network_is_rebuilt_on_a_real_gpu(features, storage):
    model = randomize(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 8, 8))
    rebuilt = reconstruct(model.cuda(), FeatureSpec(features, storage=storage), seed=0)
    x = torch.randn(4, 2, 8, 8, device="cuda")
    with exact_float32():  # otherwise convolutions use TF32
        assert difference(rebuilt.network, model, x) < 1e-4
    assert all(layer.converged for layer in rebuilt.layers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("room", [0, 10**11])
def test_sign_products_on_a_real_gpu_match_the_dense_matrix(room, monkeypatch):
    monkeypatch.setattr("bnrecon.operators.signs.available_memory", lambda _: room)
    features = draw("sign", LayerShape(40, 30, (3, 3)), 20_000, 0, 0, storage="regenerate")
    operator = feature_operator(features, DOUBLE, torch.device("cuda"))
    rounded, dense = operator.to(BFLOAT16), operator.dense()
    assert isinstance(rounded.transposed, ExpandedSigns) == bool(room)
    x, y = (torch.randn(size, device="cuda") for size in reversed(dense.shape))
    for product, wanted in (
        (rounded.matvec(x), dense @ x.double()),
        (rounded.rmatvec(y), dense.T @ y.double()),
    ):
        assert float((product - wanted).norm() / wanted.norm()) < 0.01
