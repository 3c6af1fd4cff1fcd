"""Shipped targets, loaded by name."""

import shutil

import pytest
import torch
from repository import SHIPPED

import bnrecon
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.files import read_json


@pytest.mark.parametrize("name", SHIPPED["targets"])
def test_every_shipped_target_is_loaded_by_its_name(shipped_outputs, name):
    network = bnrecon.load_target(name, shipped_outputs)
    classes = {"cifar10": 10, "cifar100": 100}[name.partition("-")[0]]
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, classes)
    width = read_json(shipped_outputs / f"targets/{name}/target.json")["config"]["target"]["width"]
    assert next(network.parameters()).shape[0] == width
    assert not network.training


def test_unknown_or_ambiguous_names_and_missing_weights_are_one_line(shipped_outputs, tmp_path):
    with pytest.raises(UserError, match="did you mean 'cifar10-vgg18-1a99b1df98'"):
        bnrecon.load_target("cifar10-vgg18-1a99b1df99", shipped_outputs)
    with pytest.raises(UserError, match=r"cifar10-vgg18 is the name of \d+ targets"):
        bnrecon.load_target("cifar10-vgg18", shipped_outputs)
    folder = tmp_path / "targets" / "cifar10-vgg18-1a99b1df98"
    folder.mkdir(parents=True)
    shutil.copy(shipped_outputs / f"targets/{folder.name}/target.json", folder)
    with pytest.raises(UserError, match=r"has no weights .*give outputs="):
        bnrecon.load_target(folder.name, tmp_path)
