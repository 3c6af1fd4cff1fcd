"""Weights behind fixed factors: trained parts, and equality to id_cond features."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spectrum import aspect_of_condition, distance, edges
from bnrecon.runtime import files
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.models import vgg
from bnrecon.targets.reparameterization import reparameterize, singular_values


# The last three conditions are those of Random features, Table 1.
@pytest.mark.parametrize("condition", [2, 5413, 10123, 1541601])
@pytest.mark.parametrize("size", [(10, 4), (16, 16, 3, 3)])
def test_factors_have_the_law_and_condition_number(condition, size):
    s = singular_values(torch.Size(size), condition, Stream(0, 1)).double()
    assert float(s.max() / s.min()) == pytest.approx(condition, rel=1e-3)
    low, high = edges(aspect_of_condition(condition))
    assert float(s.max()) == pytest.approx(high, rel=1e-5)
    assert float(s.min()) == pytest.approx(low, rel=1e-3)
    assert distance(s.flatten().numpy(), aspect_of_condition(condition)) <= 1.01 / s.numel()
    assert float(s.square().mean()) == pytest.approx(1, abs=4 / s.numel() + 0.01)
    assert not torch.equal(s, singular_values(torch.Size(size), condition, Stream(0, 2)).double())


@pytest.mark.parametrize("condition", [10, 1000])
def test_log_uniform_factors_have_even_logarithms_and_mean_square_one(condition):
    s = singular_values(torch.Size([16, 16, 3, 3]), condition, Stream(0, 1), "log_uniform").double()
    assert float(s.max() / s.min()) == pytest.approx(condition, rel=1e-5)
    gaps = s.flatten().sort().values.log().diff()
    assert float(gaps.max() / gaps.min()) == pytest.approx(1, abs=0.01)
    assert float(s.square().mean()) == pytest.approx(1, abs=0.01)
    for law in ((), ("log_uniform",)):  # a condition number of 1 changes nothing
        ones = singular_values(torch.Size([3, 4]), 1, Stream(0, 0), *law)
        assert torch.equal(ones, torch.ones(3, 4))


def test_reparameterized_network_has_the_requested_spectrum():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(40, 50))
    reparameterize(layer, 100.0, None, 3, "log_uniform")
    factors = layer[0].parametrizations.weight[0].factors
    expected = singular_values(torch.Size([50, 40]), 100.0, Stream(3, 0), "log_uniform")
    assert torch.equal(factors, expected)
    assert not torch.equal(factors, singular_values(torch.Size([50, 40]), 100.0, Stream(3, 0)))


def test_masks_keep_a_share_and_the_variance():
    torch.manual_seed(0)
    layer = nn.Conv2d(100, 100, 3)
    before = float(layer.weight.detach().square().mean())
    reparameterize(nn.Sequential(layer), None, 0.2, 0)
    kept = layer.parametrizations.weight[0].factors
    assert float(kept.mean()) == pytest.approx(0.2, abs=0.005)
    assert kept.unique().tolist() == [0, 1]
    assert float(layer.weight.detach().square().mean()) == pytest.approx(before, rel=0.05)


def test_sparse_id_cond_scales_take_the_steps_of_masked_weights():
    """With the same support and start, in every step of SGD (Theorem 3.1 for masks)."""
    torch.manual_seed(0)
    shape = LayerShape(6, 5, (3, 3))
    start = torch.randn(6, 5, 3, 3)
    pair = CollapsedPair(shape, 54, "sparse_id_cond", "scale", seed=0, number=0).start_from(start)
    support = torch.zeros(270)
    support[
        (
            pair.first.argmax(1)
            + 5 * pair.second.sum(0).flatten(1).argmax(1)
            + 45 * pair.second.flatten(2).sum(2).argmax(0)
        ).long()
    ] = 1
    conv = nn.Conv2d(5, 6, 3, padding=1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(start)
    reparameterize(nn.Sequential(conv), None, 0.2, 0)
    factors = conv.parametrizations.weight[0].factors
    factors.copy_(support.reshape(6, 3, 3, 5).permute(0, 3, 1, 2))
    optimizers = [
        torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=5e-4) for m in (pair, conv)
    ]
    for _ in range(4):
        x, y = torch.randn(3, 5, 7, 7), torch.randn(3, 6, 7, 7)
        outputs = []
        for network, optimizer in zip((pair, conv), optimizers, strict=True):
            optimizer.zero_grad()
            out = network(x)
            (out * y).mean().backward()
            optimizer.step()
            outputs.append(out.detach())
        assert torch.allclose(*outputs, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"condition": 100.0, "density": None}, {"condition": None, "density": 0.3}]
)
def test_training_behind_factors_is_training_scales(options):
    """Features: id_cond with B's entries s instead of ones; inner scales have equal gradients."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(4, 5, 3, padding=1, bias=False).double())
    reparameterize(layer, **options, seed=3)
    w = layer[0].parametrizations.weight.original
    s = layer[0].parametrizations.weight[0].factors.double()
    x, upstream = torch.randn(2, 4, 7, 6).double(), torch.randn(2, 5, 7, 6).double()
    layer(x).backward(upstream)

    count = w.numel()
    l = torch.arange(count)  # noqa: E741 (the papers' index)
    first = torch.zeros(count, 4).double()
    first[l, l // 9 % 4] = 1
    second = torch.zeros(5, count, 9).double()
    second[l // 36, l, l % 9] = s.flatten()
    scales = w.detach().flatten().requires_grad_()
    hidden = F.conv2d(x, first[:, :, None, None]) * scales[:, None, None]
    out = F.conv2d(hidden, second.reshape(5, count, 3, 3), padding=1)
    out.backward(upstream)
    assert torch.allclose(out, layer(x), atol=1e-12)
    assert torch.allclose(scales.grad, w.grad.flatten(), atol=1e-12)


def test_every_weight_has_factors_which_the_seed_restores():
    def built(seed):
        torch.manual_seed(0)
        return reparameterize(vgg((3, 16, 16), 10, 8, [1, 2], "relu"), 5413.0, None, seed)

    network, again, other = built(0), built(0), built(1)
    assert torch.equal(network.features.conv1_1.weight, again.features.conv1_1.weight)
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) == 4
    for layer in layers:
        assert float(layer.parametrizations.weight[0].factors.std()) > 0.1
    assert not torch.equal(network.features.conv1_1.weight, other.features.conv1_1.weight)
    other.load_state_dict(network.state_dict())
    assert torch.equal(network.features.conv1_1.weight, other.features.conv1_1.weight)


def test_masked_target_is_rebuilt(succeed, tmp_path):
    succeed("run", "scale=smoke", "target.density=0.3", "seeds=[0]", f"outputs={tmp_path}")
    stored = load_file(next(tmp_path.glob("targets/*/target.safetensors")))
    kept = torch.cat(
        [value.flatten() for name, value in stored.items() if name.endswith("factors")]
    )
    assert 0.25 < float(kept.mean()) < 0.35
    result = files.read_json(next(tmp_path.glob("runs/*/result.json")))
    assert max(layer["relative_error"] for layer in result["layers"]) < 1e-9
