"""Shared fixtures: the embedded digits, small networks with lively normalization, and the command run in this process."""

import pytest
import torch
from torch import nn

from bnrecon.cli import main
from bnrecon.data import DataSpec, load


@pytest.fixture(scope="session")
def digits():
    return load(DataSpec("digits", crop_padding=1, flip=False))


@pytest.fixture
def command(capsys):
    """Run `bnrecon WORDS` in this process; return exit code, standard output and standard error."""

    def run(*words):
        capsys.readouterr()
        code = {"run": main._run, "train": main._train, "tables": main._tables}[words[0]](list(words[1:]))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def enliven(network, shape, seed=0):
    """Give a network running statistics and normalization parameters that are not the initial ones, and fix it."""
    torch.manual_seed(seed)
    network.train()
    for _ in range(3):
        network(torch.randn(16, *shape))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias)
    return network.eval()
