"""Only some layers of a network are rebuilt: those that a plan is cut down to."""

import dataclasses

import torch

import bnrecon
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.targets.models import resnet


def test_a_plan_of_some_layers_leaves_the_others_as_they_are(tmp_path):
    torch.manual_seed(0)
    model = resnet((3, 8, 8), 10, depth=50, width=4, stem="imagenet").eval()
    plan = bnrecon.plan_layers(model, "sign")
    small = [layer for layer in plan.layers if layer.shape.equations <= 200]
    assert 0 < len(small) < len(plan.layers)
    solutions = {layer.name: bnrecon.solve_layer(layer) for layer in small}
    rebuilt = bnrecon.assemble(dataclasses.replace(plan, layers=small), solutions)
    names = {layer.name for layer in small}
    assert set(source_layers(rebuilt.network)) == names
    assert {layer.name for layer in rebuilt.layers} == names
    kept = {name for name, part in rebuilt.network.named_modules() if type(part) is torch.nn.Conv2d}
    assert {layer.name for layer in plan.layers} - names - {"fc"} <= kept
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for network in (rebuilt.network, loaded):
            torch.testing.assert_close(network(images), model(images), rtol=1e-4, atol=1e-5)
