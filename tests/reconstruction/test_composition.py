"""Trainable collapsed networks: the source's values, gradients, statistics and tensors."""

import copy
import itertools
import pickle

import pytest
import torch
from layer_cases import CASES, label, make
from networks import NETWORKS, outputs, randomize
from torch import nn

import bnrecon
from bnrecon import FeatureSpec, reconstruct
from bnrecon.features import DISTRIBUTIONS
from bnrecon.runtime.errors import UserError

SPECS = [FeatureSpec(name) for name in sorted(DISTRIBUTIONS)]
SPECS += [
    FeatureSpec(width="minimum"),
    FeatureSpec("id_cond", width="minimum"),
    FeatureSpec(skip="inner"),
    FeatureSpec(skip="outer"),
]


def gradients(network, x, training):
    """Outputs, gradients of x and all trainable parameters, and buffers, after two batches."""
    network.train(training).zero_grad()
    for scale in (1.0, 2.0):
        inputs = (scale * x + 0.5).requires_grad_()
        output = network(inputs)
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)
    (weights * output).sum().backward()
    trained = [p for p in network.parameters() if p.requires_grad]
    assert all(p.grad is None for p in network.parameters() if not p.requires_grad)
    buffers = (b for b in network.buffers() if b.dtype != torch.uint8)  # no digest of the draws
    return [output.detach(), inputs.grad, *(p.grad for p in trained), *buffers]


def agree(one, other):
    """Whether all numbers agree relative to the size of each tensor."""
    return all(
        (a - b).abs().max() <= 1e-9 * max(1.0, float(b.abs().max()))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize(
    ("kind", "name", "bias", "spec"),
    [(*case, spec) for case, spec in zip(CASES, itertools.cycle(SPECS), strict=False)],
    ids=lambda value: (
        f"{value.name} {value.skip}" if isinstance(value, FeatureSpec) else label(value)
    ),
)
def test_gradients_and_statistics_match_the_source(kind, name, bias, spec, training):
    model, x = make(kind, name, bias)
    source = reconstruct(model, spec, images=x, solver=bnrecon.SolverSpec(tolerance=1e-8)).network
    network = bnrecon.collapse(copy.deepcopy(source), trainable=True)
    assert agree(gradients(network, x, training), gradients(source, x, training))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("storage", ["implicit", "regenerate", "disk"])
def test_features_outside_memory_train(storage, training, monkeypatch):
    model, x = make(nn.Conv2d, "grouped", True)
    name = "id_cond" if storage == "implicit" else "he_normal"
    stored = reconstruct(model, name, images=x).network
    if storage == "implicit":
        monkeypatch.setattr("bnrecon.reconstruction.source_layer.IMPLICIT_FROM", -1)
    spec = FeatureSpec(name, storage="auto" if storage == "implicit" else storage)
    source = reconstruct(model, spec, images=x).network
    assert source.implicit == (storage == "implicit")
    for norm in ("first_norm", "second_norm"):
        getattr(source, norm).load_state_dict(getattr(stored, norm).state_dict())
    with pytest.raises(RuntimeError, match=r"no training mode; .*collapse\(network, trainable"):
        source.train()(x)
    network = bnrecon.collapse(source, trainable=True)
    assert agree(gradients(network, x, training), gradients(stored, x, training))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_training_changes_the_source_and_is_saved_with_it(training, tmp_path):
    build, shape = NETWORKS["residual"]
    model = randomize(build(), shape)
    rebuilt = reconstruct(model, images=torch.randn(32, *shape))
    network = bnrecon.collapse(rebuilt.network, trainable=True)
    before, kept = outputs(network, shape), copy.deepcopy(network)
    assert not network.training
    assert list(network.state_dict()) == list(rebuilt.network.state_dict())
    pairs = zip(network.parameters(), rebuilt.network.parameters(), strict=True)
    assert all(one is other for one, other in pairs)
    frozen = [p.clone() for p in network.parameters() if not p.requires_grad]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-2)
    network.train(training)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randn(16, *shape)).square().mean().backward()
        optimizer.step()
    assert not any(module.training for module in rebuilt.network.modules())
    now = [p for p in network.parameters() if not p.requires_grad]
    assert all(map(torch.equal, frozen, now))
    trained = outputs(network.eval(), shape)
    assert (trained - before).abs().max() > 1e-3 * before.abs().max()
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "trained.safetensors"), model)
    for other in (rebuilt.network, loaded, bnrecon.collapse(network), copy.deepcopy(network)):
        assert (outputs(other, shape) - trained).abs().max() < 1e-4 * trained.abs().max()
    assert torch.equal(outputs(kept, shape), before)
    kept.load_state_dict(rebuilt.network.state_dict())
    assert torch.equal(outputs(kept, shape), trained)


def test_layers_with_an_activation_are_not_collapsed(caplog):
    model, x = make(nn.Conv2d, "valid", True)
    source = reconstruct(model, FeatureSpec(activation="relu"), images=x).network
    network = bnrecon.collapse(source, trainable=True)
    assert "an activation between the convolutions; not collapsed" in caplog.text
    assert torch.equal(network(x), source(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_at_once(dtype):
    source = reconstruct(nn.Linear(3, 4).eval()).network.to(dtype)
    with pytest.raises(UserError, match=r"float16; .* works in float32 or float64"):
        bnrecon.collapse(source, trainable=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("features", ["he_normal", "id_cond"])
def test_half_precision_is_refused_after_collapsing(features, dtype):
    source = reconstruct(nn.Linear(3, 4).eval(), features).network
    network = bnrecon.collapse(source, trainable=True).to(dtype)
    with pytest.raises(RuntimeError, match=r"float16: convert the source before"):
        network(torch.ones(2, 3, dtype=dtype))


def test_called_network_is_pickled_without_what_it_holds():
    spec = FeatureSpec("sign", storage="regenerate")
    source = reconstruct(nn.Linear(3, 4).eval(), spec).network
    network, x = bnrecon.collapse(source, trainable=True), torch.randn(5, 3)
    before = pickle.dumps(network)
    expected = network(x)
    assert len(pickle.dumps(network)) == len(before)
    torch.testing.assert_close(pickle.loads(pickle.dumps(network))(x), expected)


def test_batch_of_one_pixel_is_refused_as_by_batchnorm():
    network = bnrecon.collapse(reconstruct(nn.Linear(3, 4).eval()).network, trainable=True)
    with pytest.raises(ValueError, match="two pixels"):
        network.train()(torch.randn(1, 3))


def test_second_derivatives_and_autocast():
    model, x = make(nn.Conv2d, "valid", True)
    network = bnrecon.collapse(reconstruct(model, "id_cond").network, trainable=True)
    gamma = network.first_norm.weight.detach().clone().requires_grad_()

    def outputs_of(scale):
        named = {"first_norm.weight": scale}
        return torch.func.functional_call(network, named, (x,)).square().sum()

    assert torch.autograd.gradgradcheck(outputs_of, (gamma,))
    network, x = network.float(), x.float()
    exact = network(x)
    with torch.autocast("cpu", torch.bfloat16):
        low = network(x)
        low.float().sum().backward()
    assert (low - exact).norm() < 0.02 * exact.norm()


RECORD = {
    "export": lambda network, x: torch.export.export(network, (x,)).module(),
    "trace": torch.jit.trace,
    "compile": lambda network, _: torch.compile(network, backend="eager"),
}


@pytest.mark.filterwarnings("ignore:.*jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("features", ["he_normal", "sign", "id_cond"])
@pytest.mark.parametrize("record", RECORD)
def test_network_that_never_ran_is_recorded(record, features):
    """Recording must leave nothing in the network that holds only within the graph."""
    torch._dynamo.reset()
    source = reconstruct(nn.Linear(3, 4).eval(), features).network
    network, x = bnrecon.collapse(source, trainable=True), torch.randn(5, 3)
    recorded = RECORD[record](network, x)
    torch.testing.assert_close(recorded(x), source(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network(x), source(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("change", [copy.deepcopy, nn.Module.double])
@pytest.mark.parametrize("record", ["export", "trace"])
def test_network_changed_since_is_called_before_it_is_recorded(record, change):
    source = reconstruct(nn.Linear(3, 4).eval()).network
    network = change(bnrecon.collapse(source, trainable=True))
    x = torch.randn(5, 3).to(network.first_norm.weight)
    with pytest.raises(RuntimeError, match="call it once before"):
        RECORD[record](network, x)
    expected = network(x)
    torch.testing.assert_close(RECORD[record](network, x)(x), expected)


@pytest.mark.parametrize("storage", ["memory", "regenerate"])
def test_network_trains_after_a_first_call_in_inference_mode(storage):
    source = reconstruct(nn.Linear(3, 4).eval(), FeatureSpec(storage=storage)).network
    for dtype in (torch.float32, torch.float64):  # in which what is held is formed again
        trained = bnrecon.collapse(source, trainable=True).to(dtype)
        x = torch.randn(5, 3, dtype=dtype)
        with torch.inference_mode():
            trained(x)
        trained.train()(x).sum().backward()
        assert trained.first_norm.weight.grad is not None
