"""ResNet-9 and both networks of Batch Normalization Explained, against their descriptions."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.runtime.errors import UserError
from bnrecon.targets.dropout_networks import dropout_cnn, dropout_resnet
from bnrecon.targets.register import build
from bnrecon.targets.resnet9 import resnet9


def kernels(network):
    """(outputs, inputs, side) of every convolution, in order."""
    return [
        (*m.weight.shape[:2], m.weight.shape[2])
        for m in network.modules()
        if isinstance(m, nn.Conv2d)
    ]


def test_resnet9_has_the_convolutions_of_the_original():
    """Page 2018: 64; 128, 128, 128; 256; 512, 512, 512; a linear layer without bias."""
    channels = [3, 64, 128, 128, 128, 256, 512, 512, 512]
    network = resnet9((3, 32, 32), 10)
    expected = [(b, a, 3) for a, b in itertools.pairwise(channels)]
    assert kernels(network) == expected
    weights = sum(9 * a * b + 2 * b for b, a, _ in expected) + 512 * 10
    assert sum(p.numel() for p in network.parameters()) == weights == 6_573_120


def test_resnet9_computes_its_description():
    torch.manual_seed(0)
    network = resnet9((3, 32, 32), 10, width=4).eval()
    convolutions = iter([m.weight for m in network.modules() if isinstance(m, nn.Conv2d)])

    def block(x):  # a fresh BatchNorm in eval mode divides by sqrt(1 + 1e-5)
        return F.relu(F.conv2d(x, next(convolutions), padding=1) / (1 + 1e-5) ** 0.5)

    def residual(x):
        return x + block(block(x))

    x = torch.randn(2, 3, 32, 32)
    y = block(x)
    y = residual(F.max_pool2d(block(y), 2))
    y = F.max_pool2d(block(y), 2)
    y = residual(F.max_pool2d(block(y), 2))
    y = F.max_pool2d(y, 4).flatten(1) @ network.classifier.linear.weight.T * 0.125
    assert torch.allclose(network(x), y, atol=1e-5)


def test_resnet9_can_start_without_batchnorm():
    """He's variance preserves the signal's size through eight layers without BatchNorm."""
    torch.manual_seed(0)
    network = resnet9((3, 32, 32), 10, width=16)
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent = network.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Identity())
    assert 0.1 < network(torch.randn(16, 3, 32, 32)).std() < 10


def test_dropout_resnet_has_the_layers_of_appendix_d():
    """Each width ends in pooling and a 1x1 convolution of 512; skip convolutions where needed."""
    expected = [(32, 3, 5)]
    inputs = 32
    for width in (64, 128, 256, 512):
        expected += [(width, inputs, 3), (width, width, 3)]
        expected += [(width, inputs, 3)] if width != inputs else []
        expected += [(width, width, 3)] * 2 + [(512, width, 1)]
        inputs = 512
    network = dropout_resnet((3, 32, 32), 10)
    assert kernels(network) == expected
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.1]
    assert sum(isinstance(m, nn.AvgPool2d) for m in network.modules()) == 4
    # A BatchNorm follows every convolution except those of the three skip connections.
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    assert norms == len(expected) - 3


def test_dropout_cnn_has_the_layers_of_appendix_d():
    expected = [(32, 3, 5)]
    for inputs, width in ((32, 96), (96, 192)):
        expected += [(width, inputs, 5), (width, width, 1), (width, width, 1)]
        expected += [(width, width, 5), (width, width, 1), (width, width, 1)] * 2
    expected += [(192, 192, 3), (192, 192, 1)]
    network = dropout_cnn((3, 32, 32), 10)
    assert kernels(network) == expected
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.3, 0.3]
    assert sum(isinstance(m, nn.MaxPool2d) for m in network.modules()) == 3
    larger = kernels(dropout_cnn((3, 128, 128), 10))
    assert larger == [(32, 3, 5), (64, 32, 5), (96, 64, 5), *expected[2:]]


@pytest.mark.parametrize(
    ("family", "least"), [("resnet9", 8), ("dropout_resnet", 2), ("dropout_cnn", 2)]
)
def test_images_below_the_smallest_side_are_refused(family, least):
    for shape in ((3, least, least), (3, least, 5 * least), (3, least + 1, least)):
        network = build(family, shape, 10, width=6)
        assert network(torch.randn(2, *shape)).shape == (2, 10)
    expected = rf"^{family}: images of 20x{least - 1} pixels are too small; give {least}x{least} or"
    with pytest.raises(UserError, match=expected):
        build(family, (3, least - 1, 20), 10, width=6)
    with pytest.raises(UserError, match=f"images of {least - 1}x20 pixels"):
        build(family, (3, 20, least - 1), 10, width=6)


@pytest.mark.parametrize(
    ("side", "poolings", "padding", "end"),
    [(2, 1, 1, 1), (3, 1, 1, 1), (4, 2, 1, 1), (7, 2, 1, 1), (8, 3, 1, 1), (16, 3, 1, 2)]
    + [(23, 3, 1, 2), (24, 3, 0, 1), (32, 3, 0, 2), (63, 3, 0, 5), (64, 4, 0, 2)],
)
def test_small_images_have_fewer_poolings_and_a_padded_convolution(side, poolings, padding, end):
    """All three poolings from 8 pixels on; no padding, as in the paper, from 24 pixels on."""
    network = dropout_cnn((3, side, side), 10, width=6)
    assert sum(isinstance(m, nn.MaxPool2d) for m in network) == poolings
    assert [m.padding[0] for m in network if isinstance(m, nn.Conv2d)][-2] == padding
    assert network[:-3](torch.randn(2, 3, side, side)).shape[2:] == (end, end)
