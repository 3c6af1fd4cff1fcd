"""A normalization folded into its layer, against applying both."""

import pytest
import torch
from networks import NormAct
from torch import nn

from bnrecon.reconstruction.folding import find_layers


def normalization(options):
    """A BatchNorm with random statistics and parameters, in float64."""
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(4, **options).double()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.01, 2)
    if norm.affine:
        nn.init.normal_(norm.weight)  # of either sign
        if norm.bias is not None:
            nn.init.normal_(norm.bias)
    return norm.eval()


def without_bias():
    norm = normalization({})
    norm.bias = None
    return norm


NORMS = {
    "affine": lambda: normalization({}),
    "a large eps": lambda: normalization({"eps": 0.5}),
    "no scales, no shifts": lambda: normalization({"affine": False}),
    "scales alone": without_bias,
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_folded_layer_computes_layer_and_normalization(name, bias):
    torch.manual_seed(0)
    layer, norm = nn.Conv2d(3, 4, 3, bias=bias).double(), NORMS[name]()
    (folded_layer,) = find_layers(nn.Sequential(layer, norm).eval()).layers
    assert folded_layer.norm is norm
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    folded = nn.functional.conv2d(x, folded_layer.target.weight, folded_layer.target.bias)
    torch.testing.assert_close(folded, norm(layer(x)))
    gain = folded_layer.target.weight / layer.weight.detach()
    torch.testing.assert_close(folded_layer.gain[:, None, None, None].expand_as(gain), gain)


def hooked():
    norm = normalization({})
    norm.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return norm


def overridden():
    norm = NormAct(4).double()
    norm.load_state_dict(normalization({}).state_dict())
    return norm


@pytest.mark.parametrize("make", [hooked, overridden])
def test_normalization_with_additional_work_is_not_folded(make):
    layer = nn.Conv2d(3, 4, 3).double()
    (folded_layer,) = find_layers(nn.Sequential(layer, make()).eval()).layers
    assert (folded_layer.norm, folded_layer.norm_name) == (None, None)
    assert torch.equal(folded_layer.target.weight, layer.weight)
    assert torch.equal(folded_layer.gain, torch.ones_like(folded_layer.gain))
