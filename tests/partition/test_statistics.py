"""BatchNorm statistics set from data, layer by layer (Theorem 1)."""

import pytest
import torch
import torchvision
from networks import recorded
from torch import nn

from bnrecon.partition import set_statistics
from bnrecon.runtime.errors import UserError


def network_with_norms():
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=10).double()


def test_statistics_are_those_of_every_layer_in_eval_mode():
    inputs = torch.randn(12, 3, 32, 32, dtype=torch.float64)
    network = set_statistics(network_with_norms(), inputs)
    seen = recorded(network.eval(), nn.BatchNorm2d, inputs)
    assert len(seen) == 20
    for norm, (norm_input, _) in seen.items():
        assert (norm.running_mean - norm_input.mean((0, 2, 3))).abs().max() < 1e-12
        assert (norm.running_var - norm_input.var((0, 2, 3), unbiased=False)).abs().max() < 1e-12


def test_synchronized_norms_are_set():
    network, inputs = nn.Sequential(nn.Linear(2, 3), nn.SyncBatchNorm(3)), 3 + torch.randn(50, 2)
    outputs = set_statistics(network, inputs).eval()(inputs)
    assert outputs.mean(0).abs().max() < 1e-4


def test_modes_and_hooks_are_restored():
    network = network_with_norms().train()
    network.layer1.eval()
    set_statistics(network, torch.randn(2, 3, 32, 32).double())
    assert network.training
    assert not network.layer1[0].bn1.training
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_norm_that_runs_twice_is_refused():
    norm = nn.BatchNorm1d(3)
    network = nn.Sequential(nn.Linear(3, 3), norm, nn.Linear(3, 3), norm)
    with pytest.raises(UserError, match="1: runs twice"):
        set_statistics(network, torch.randn(5, 3))
