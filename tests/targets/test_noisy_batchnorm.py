"""Controlled noise: batch statistics vary like those of a smaller batch."""

import copy

import pytest
import torch
from networks import NormAct, same_state
from torch import nn

from bnrecon.runtime.errors import UserError
from bnrecon.targets.initialization import FrozenBatchNorm2d
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm2d, batch_noise


def statistics(draw, batch, virtual, repeats):
    """Mean and variance of each batch, with the noise of a virtual batch unless it is None."""
    rows = []
    for _ in range(repeats):
        images = draw(batch)
        mean, variance = images.mean((0, 2, 3)), images.var((0, 2, 3), unbiased=False)
        if virtual is not None:
            shift, scale = batch_noise(images, virtual)
            mean, variance = mean + shift * variance.sqrt(), variance * scale**2
        rows.append(torch.stack([mean, variance]))
    return torch.stack(rows)  # (repeats, 2, channels)


def gaussian(batch):
    """Figure 7: three channels with means 1, 0, -1 and variances 1, 3, 0.1, one pixel."""
    spread = torch.tensor([1.0, 3.0, 0.1], dtype=torch.float64).sqrt()
    values = torch.randn(batch, 3, dtype=torch.float64) * spread
    return (values + torch.tensor([1.0, 0.0, -1.0]))[..., None, None]


def correlated(batch):
    """Skewed images whose pixels share most of their variance."""
    shared = torch.distributions.Exponential(1.0).sample((batch, 2, 1, 1))
    return (shared + 0.5 * torch.randn(batch, 2, 4, 4)).double()


@pytest.mark.parametrize(("draw", "batch", "virtual"), [(gaussian, 64, 32), (correlated, 128, 48)])
def test_mean_and_variance_vary_as_in_a_batch_of_virtual_size(draw, batch, virtual):
    torch.manual_seed(0)
    noisy = statistics(draw, batch, virtual, 6000)
    real = statistics(draw, virtual, None, 6000)
    assert noisy.var(0).numpy() == pytest.approx(real.var(0).numpy(), rel=0.12)
    # The expected variance is (1 - 1 / V) σ², the virtual batch's: E σ'² = E σ²_V.
    error = (noisy.var(0) / len(noisy) + real.var(0) / len(real)).sqrt()
    assert ((noisy.mean(0) - real.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize("draw", [gaussian, correlated])
def test_the_noise_of_a_small_batch_has_the_variances_of_its_own_estimates(draw):
    """var(μ') = δ var(m) and var(σ'²) = (1 - r²)² δ var(v), with δ = 1/2 - 1/6."""
    torch.manual_seed(0)
    images = draw(6)[:, :1]
    shift, scale = batch_noise(images.expand(-1, 40_000, -1, -1), 2)
    mean, square = images.mean((1, 2, 3)), ((images - images.mean()) ** 2).mean((1, 2, 3))
    variance, delta = square.mean(), 1 / 2 - 1 / 6
    share = delta * mean.var() / variance
    assert float(shift.var() / share) == pytest.approx(1, abs=0.03)
    expected = (1 - share) ** 2 * delta * square.var() / variance**2
    assert float((scale**2).var() / expected) == pytest.approx(1, abs=0.06)


def test_linear_outputs_have_the_noise_of_one_pixel_images():
    values = gaussian(64)
    noise = []
    for shape in (values, values[..., 0, 0], values[..., 0]):
        torch.manual_seed(0)
        noise.append(torch.stack(batch_noise(shape, 32)))
    assert torch.equal(noise[0], noise[1])
    assert torch.equal(noise[0], noise[2])
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Conv3d(1, 1, 1))
    network.add_module("volume", nn.BatchNorm3d(1))
    NoisyBatchNorm2d.convert(network, virtual_batch=8)
    names = [type(layer).__name__ for layer in network]
    assert names == ["Linear", "NoisyBatchNorm1d", "Conv3d", "NoisyBatchNorm3d"]
    inputs = torch.randn(64, 4)
    assert not torch.equal(network[:2](inputs), network[:2](inputs))
    assert torch.equal(network.eval()[:2](inputs), network[:2](inputs))


def second_statistics(virtual):
    """Variances of mu and sigma² of one unit above a normalization and a ReLU."""
    torch.manual_seed(2)
    lower = NoisyBatchNorm2d(8, virtual_batch=virtual, affine=False)
    weight = torch.randn(8)[None, :, None, None]

    def unit(size):
        return (lower(torch.randn(size, 8, 1, 1)).relu() * weight).sum(1, keepdim=True)

    with torch.no_grad():
        return statistics(unit, 64, virtual, 1500).double().var(0).flatten()


def test_15_percent_more_variance_becomes_tenfold_above_a_normalization():
    """By the parts of a ReLU: r = 0.341 in all, 0.330 along h and h² - 1, 0.011 orthogonal.

    The batch moves mu by r' / B; the noise adds r / B directly and r - r' through the layer
    below, times 0.15 each.
    """
    plain, noisy = second_statistics(None), second_statistics(64 / 1.15)
    whole, beside = 0.5 - 0.5 / torch.pi, (1 - 3 / torch.pi) / 4
    expected = 1 + 0.15 * (2 * whole - beside) / beside
    assert (noisy[0] / plain[0]).item() == pytest.approx(expected, rel=0.2)
    assert expected == pytest.approx(10, rel=0.1)


def test_output_is_normalized_by_the_noisy_statistics():
    layer = NoisyBatchNorm2d(2, virtual_batch=10).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 0.0]))
        layer.bias.copy_(torch.tensor([0.3, -0.7]))
    images = correlated(40)
    torch.manual_seed(5)
    output = layer(images)
    torch.manual_seed(5)
    shift, scale = (noise[:, None, None] for noise in batch_noise(images, 10))
    mean = images.mean((0, 2, 3), keepdim=True)
    spread = (images.var((0, 2, 3), unbiased=False, keepdim=True) + layer.eps).sqrt()
    expected = ((images - mean) / spread - shift) / scale
    expected = expected * layer.weight[:, None, None] + layer.bias[:, None, None]
    assert (output - expected).abs().max() < 1e-12


def test_without_noise_it_is_batchnorm_exactly():
    torch.manual_seed(0)
    images = correlated(20).float()
    for virtual, training, size in (
        (None, True, 20),
        (8, False, 20),
        (20, True, 20),
        (32, True, 5),
    ):
        plain = nn.BatchNorm2d(2).train(training)
        noisy = NoisyBatchNorm2d(2, virtual_batch=virtual).train(training)
        assert torch.equal(noisy(images[:size]), plain(images[:size]))


def test_running_statistics_have_no_noise():
    images = correlated(20)
    plain, noisy = nn.BatchNorm2d(2).double(), NoisyBatchNorm2d(2, virtual_batch=4).double()
    plain(images), noisy(images)
    assert same_state(noisy, plain)


def test_constant_channel_has_no_noise_and_finite_gradients():
    images = torch.full((16, 2, 3, 3), 5.0, requires_grad=True)
    output = NoisyBatchNorm2d(2, virtual_batch=4)(images)
    assert output.abs().max() < 1e-3
    output.square().sum().backward()
    assert torch.isfinite(images.grad).all()


def test_noise_below_bfloat16_resolution_survives_autocast():
    torch.manual_seed(0)
    images = (1.3 * torch.randn(128, 6, 8, 8) + 0.4).bfloat16()
    noisy, plain = NoisyBatchNorm2d(6, virtual_batch=120), nn.BatchNorm2d(6)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        output = noisy(images)
        ratio = plain(images).float().std((0, 2, 3)) / output.float().std((0, 2, 3))
    torch.manual_seed(1)
    _, scale = batch_noise(images, 120)
    assert output.dtype == torch.bfloat16
    assert (scale - 1).abs().max() < 2**-8
    assert (ratio - scale).abs().max() < 0.1 * (scale - 1).abs().max()


def test_gradient_is_orthogonal_to_the_input():
    """As in BatchNorm, the output does not depend on the input's scale, for fixed noise."""
    images = correlated(32).requires_grad_()
    layer = NoisyBatchNorm2d(2, virtual_batch=8, eps=1e-12).double()
    (layer(images) ** 3).sum().backward()
    along = (images.grad * images).sum()
    assert abs(along) < 1e-9 * (images.grad.norm() * images.norm())


def test_subclass_keeps_its_computation_after_the_noise():
    torch.manual_seed(0)
    images = correlated(40).float()
    plain = NoisyBatchNorm2d(2, virtual_batch=10)
    nn.init.normal_(plain.weight), nn.init.normal_(plain.bias)
    network = nn.Sequential(NormAct(2))
    network.load_state_dict({f"0.{name}": value for name, value in plain.state_dict().items()})
    before = network.eval()(images)
    noisy = NoisyBatchNorm2d.convert(network, virtual_batch=10)
    assert torch.equal(noisy(images), before)
    outputs, gradients = [], []
    for layer, activation in ((plain, nn.ReLU()), (noisy.train(), nn.Identity())):
        torch.manual_seed(5)
        outputs.append(activation(layer(images)))
        outputs[-1].square().sum().backward()
        gradients.append(next(layer.parameters()).grad)
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)
    assert isinstance(noisy[0], NormAct)


def test_hooks_and_shared_layers_are_kept():
    norm, calls = nn.BatchNorm2d(2), []
    norm.register_forward_hook(lambda _layer, _inputs, output: calls.append(1) or 2 * output)
    network = nn.ModuleList([norm, nn.Sequential(norm)])
    network.norm = norm
    NoisyBatchNorm2d.convert(network, virtual_batch=8)
    assert network[0] is network[1][0] is network.norm is norm
    assert type(norm) is NoisyBatchNorm2d
    images = correlated(20).float()
    assert torch.equal(norm.eval()(images), 2 * nn.BatchNorm2d(2).eval()(images))
    assert len(calls) == 1


def test_scale_and_shift_are_read_as_pytorch_reads_them():
    images = correlated(40).float()
    later, without = nn.BatchNorm2d(2, affine=False), nn.BatchNorm2d(2)
    later.weight = nn.Parameter(torch.tensor([2.0, -3.0]))
    without.weight = None
    unshifted = nn.BatchNorm2d(2)
    unshifted.bias = None
    for norm in (later, without, unshifted):
        plain = copy.deepcopy(norm)
        noisy = NoisyBatchNorm2d.convert(norm, virtual_batch=39.999)
        assert torch.equal(noisy.eval()(images), plain.eval()(images))
        noise = (noisy.train()(images) - plain.train()(images)).abs().max()
        assert 0 < noise < 0.05


def replaced_forward(norm):
    norm.forward = lambda x: x
    return norm


@pytest.mark.parametrize(
    "layer",
    [
        replaced_forward(nn.BatchNorm2d(2)),
        nn.utils.parametrizations.weight_norm(nn.BatchNorm2d(2), dim=None),
    ],
)
def test_layer_without_effect_of_noise_is_refused_before_any_change(layer):
    network = nn.Sequential(nn.BatchNorm2d(2), layer)
    with pytest.raises(UserError, match="layer 1: its forward pass or weight is replaced"):
        NoisyBatchNorm2d.convert(network, virtual_batch=8)
    assert type(network[0]) is nn.BatchNorm2d


def test_pruned_scales_stay_and_parametrized_ones_are_refused():
    layer, images = NoisyBatchNorm2d(2, virtual_batch=8), correlated(40).float()
    nn.utils.prune.l1_unstructured(layer, "weight", 1)
    assert layer(images).isfinite().all()
    assert layer.weight.tolist() == (layer.weight_orig * layer.weight_mask).tolist()
    nn.utils.prune.remove(layer, "weight")
    parametrized = nn.utils.parametrizations.weight_norm(layer, dim=None)
    assert parametrized.eval()(images).isfinite().all()
    with pytest.raises(RuntimeError, match="parametrized"):
        parametrized.train()(images)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_statistics_in_half_precision_are_refused_in_training(kind):
    layer, images = NoisyBatchNorm2d(2, virtual_batch=8).to(kind), correlated(40).to(kind)
    assert layer.eval()(images).isfinite().all()
    with pytest.raises(RuntimeError, match="keep it in float32"):
        layer.train()(images)


def test_conversion_keeps_frozen_statistics():
    network = nn.Sequential(FrozenBatchNorm2d(2), nn.BatchNorm2d(2))
    noisy = NoisyBatchNorm2d.convert(network, virtual_batch=4).train()
    assert [type(layer) for layer in noisy] == [FrozenBatchNorm2d, NoisyBatchNorm2d]
    noisy(correlated(16).float())
    assert not noisy[0].running_mean.any()


@pytest.mark.parametrize("virtual", [1, 0, -3.0, float("nan")])
def test_virtual_batch_below_two_is_refused(virtual):
    with pytest.raises(UserError, match=r"virtual_batch=.*at least 2"):
        NoisyBatchNorm2d(3, virtual_batch=virtual)
    with pytest.raises(UserError, match=r"virtual_batch=.*at least 2"):
        NoisyBatchNorm2d.convert(nn.BatchNorm2d(3), virtual)
