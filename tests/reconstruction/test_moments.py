"""Moments of inputs and outputs against those computed from all images at once."""

import dataclasses

import pytest
import torch
from random_layer import gaussian
from torch import nn

from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS, choose_width
from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.moments import LayerMoments, gather


def gathered(module, *batches):
    """The moments of a model's only layer."""
    model = module.double().eval()
    (moments,) = gather(model, find_layers(model).layers, batches).values()
    return moments


def assert_equal(actual: LayerMoments, expected: LayerMoments):
    for field in dataclasses.fields(LayerMoments):
        one, other = (torch.as_tensor(getattr(each, field.name)) for each in (actual, expected))
        torch.testing.assert_close(one, other, msg=lambda text, name=field.name: f"{name}: {text}")


LAYERS = {
    "linear": (lambda: nn.Linear(4, 6), (5, 4)),
    "padded": (lambda: nn.Conv2d(4, 6, 3, padding=1), (5, 4, 7, 8)),
    "strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (5, 4, 7, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (5, 4, 7)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_moments_of_batches_match_all_images_together(name):
    make, shape = LAYERS[name]
    layer, (first, second) = make(), (gaussian(*shape, seed=seed) for seed in (0, 1))
    second = 3 * second  # the largest inputs are in one batch
    together = gathered(layer, torch.cat([first, second]))
    assert_equal(gathered(layer, first, second), together)
    assert_equal(gathered(layer, second, first), together)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}])
def test_group_moments_are_those_of_its_convolution_alone(options):
    x = gaussian(5, 6, 9, 8) * torch.arange(1.0, 7.0)[:, None, None]  # no two groups alike
    layer = nn.Conv2d(6, 9, 3, groups=3, **options)
    moments = gathered(layer, x)
    for group in range(3):
        alone = nn.Conv2d(2, 3, 3, **options)
        alone.weight = nn.Parameter(layer.weight[3 * group : 3 * group + 3])
        alone.bias = nn.Parameter(layer.bias[3 * group : 3 * group + 3])
        expected = gathered(alone, x[:, 2 * group : 2 * group + 2])
        assert_equal(moments.of_group(group, 3), expected)


@pytest.mark.parametrize("side", [2, 3, 4])
def test_centre_is_the_input_of_the_kernels_middle_tap(side):
    """A layer that reads only the middle tap returns what the moments call the centre."""
    layer = nn.Conv2d(3, 3, side, stride=2, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[range(3), range(3), side // 2, side // 2] = 1
    moments = gathered(layer, gaussian(4, 3, 9, 8))
    torch.testing.assert_close(moments.centre_sum, moments.output_sum)
    torch.testing.assert_close(moments.centre_products.diagonal(), moments.output_squares)
    torch.testing.assert_close(moments.centre_with_output, moments.centre_products)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_first_output_statistics_match_the_applied_features(name):
    shape = LayerShape(4, 3, (3, 3))
    pair = draw(name, shape, choose_width(name, shape), seed=0, layer=0)
    x = gaussian(5, 3, 7, 8) * torch.tensor([1.0, 2.0, 4.0])[:, None, None] + 1  # no two alike
    mean, variance = gathered(nn.Conv2d(3, 4, 3), x).first_output(pair)
    output = pair.weights()[0].double() @ x.transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, output.mean(1))
    torch.testing.assert_close(variance, output.var(1, correction=1))


@pytest.mark.parametrize("skip", [False, True])
def test_second_output_statistics_match_their_formula(skip):
    """The formula is z = (gain ∘ (o - bias) - S x) / outer + shift."""
    layer, x = nn.Conv2d(3, 4, 3, stride=2, padding=1), gaussian(5, 3, 7, 8) + 1
    moments, output = gathered(layer, x), layer(x).detach()
    values = [[2.0, -1, 0.5, 3], [1, -2, 0, 0.3], [0.1, -4, 7, 2]]  # the third output is off
    gain, outer, shift = torch.tensor(values, dtype=torch.float64)
    beside = gaussian(4, 3, seed=2) if skip else None
    mean, variance = moments.second_output(gain, layer.bias, outer, shift, beside)
    at_centre = x[:, :, ::2, ::2]
    skipped = torch.einsum("oi,nihw->nohw", beside, at_centre) if skip else 0

    def of(channels):
        return channels[:, None, None]

    z = (of(gain) * (output - of(layer.bias.detach())) - skipped) / of(outer) + of(shift)
    on = outer != 0
    torch.testing.assert_close(mean[on], z.mean((0, 2, 3))[on])
    torch.testing.assert_close(variance[on], z.var((0, 2, 3), correction=1)[on])
    assert (mean[~on], variance[~on]) == (shift[~on], 1)
