"""Controlled noise: the statistics of a batch vary as those of a smaller one."""

import copy

import pytest
import torch
import torchvision
from torch import nn

from bnrecon.runtime.errors import UserError
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm2d, batch_noise


def statistics(draw, batch, virtual, repeats):
    """Mean and variance of each batch, with the noise of a virtual batch where one is given."""
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
def test_mean_and_variance_vary_as_those_of_a_batch_of_the_virtual_size(draw, batch, virtual):
    torch.manual_seed(0)
    noisy = statistics(draw, batch, virtual, 6000)
    real = statistics(draw, virtual, None, 6000)
    assert noisy.var(0).numpy() == pytest.approx(real.var(0).numpy(), rel=0.12)
    # The expected variance is (1 - 1 / V) σ², not that of the larger batch: E σ'² = E σ²_V.
    error = (noisy.var(0) / len(noisy) + real.var(0) / len(real)).sqrt()
    assert ((noisy.mean(0) - real.mean(0)).abs() < 4 * error).all()


def test_gaussian_variances_are_those_of_proposition_2():
    """var(μ) = σ² / V; var(σ²) = 2 σ⁴ (V - 1) / V² for Eq. 3, Eq. 13 being (V / (V - 1))² of it."""
    torch.manual_seed(1)
    noisy = statistics(gaussian, 64, 32, 8000).var(0)
    variance = torch.tensor([1.0, 3.0, 0.1], dtype=torch.float64)
    assert noisy[0].numpy() == pytest.approx((variance / 32).numpy(), rel=0.08)
    assert noisy[1].numpy() == pytest.approx((2 * variance**2 * 31 / 32**2).numpy(), rel=0.1)


def test_the_output_is_normalized_by_the_noisy_statistics():
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


def test_running_statistics_are_those_without_noise():
    images = correlated(20)
    plain, noisy = nn.BatchNorm2d(2).double(), NoisyBatchNorm2d(2, virtual_batch=4).double()
    plain(images), noisy(images)
    for name, value in plain.state_dict().items():
        assert torch.equal(noisy.state_dict()[name], value)


def test_a_constant_channel_has_no_noise_and_finite_gradients():
    images = torch.full((16, 2, 3, 3), 5.0, requires_grad=True)
    output = NoisyBatchNorm2d(2, virtual_batch=4)(images)
    assert output.abs().max() < 1e-3
    output.square().sum().backward()
    assert torch.isfinite(images.grad).all()


def test_the_gradient_is_orthogonal_to_the_input():
    """As BatchNorm: the output does not depend on the input's scale, the noise held fixed."""
    images = correlated(32).requires_grad_()
    layer = NoisyBatchNorm2d(2, virtual_batch=8, eps=1e-12).double()
    (layer(images) ** 3).sum().backward()
    along = (images.grad * images).sum()
    assert abs(along) < 1e-9 * (images.grad.norm() * images.norm())


def test_a_block_of_a_residual_network_is_converted_and_trains():
    torch.manual_seed(0)
    block = torchvision.models.resnet.BasicBlock(3, 3)
    noisy = NoisyBatchNorm2d.convert(copy.deepcopy(block), virtual_batch=8)
    kinds = [type(module) for module in noisy.modules() if isinstance(module, nn.BatchNorm2d)]
    assert kinds == [NoisyBatchNorm2d] * 2
    assert noisy.state_dict().keys() == block.state_dict().keys()
    images = torch.randn(32, 3, 8, 8)
    noisy(images).sum().backward()
    assert noisy.bn1.weight.grad is not None
    block.load_state_dict(noisy.state_dict())
    assert torch.equal(noisy.eval()(images), block.eval()(images))


def test_smaller_virtual_batches_move_a_networks_output_more():
    torch.manual_seed(0)
    block = torchvision.models.resnet.BasicBlock(3, 3)
    images = torch.randn(64, 3, 8, 8)
    spreads = []
    for virtual in (56, 16, 4):
        noisy = NoisyBatchNorm2d.convert(copy.deepcopy(block), virtual_batch=virtual)
        with torch.no_grad():
            spreads.append(torch.stack([noisy(images) for _ in range(30)]).var(0).mean().item())
    assert spreads == sorted(spreads)
    assert spreads[0] > 0


@pytest.mark.parametrize("virtual", [1, 0, -3.0, float("nan")])
def test_a_virtual_batch_below_two_is_refused(virtual):
    with pytest.raises(UserError, match=r"virtual_batch=.*at least 2"):
        NoisyBatchNorm2d(3, virtual_batch=virtual)
