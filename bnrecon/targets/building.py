"""A target as its request describes it, untrained."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.runtime.options import prefix_fields, reworded
from bnrecon.targets.normalization import change_normalization
from bnrecon.targets.register import build
from bnrecon.targets.reparameterization import reparameterize
from bnrecon.targets.spec import TargetRequest, TargetSpec


def build_target(request: TargetRequest, data: Images) -> nn.Module:
    """Build the target untrained, its initial weights drawn from ``train.seed``."""
    target, seed = request.target, request.train.seed
    options = {field.name: getattr(target, field.name) for field in dataclasses.fields(target)}
    for shared in dataclasses.fields(TargetSpec):
        if shared.name != "width":  # of which each family makes what it will
            del options[shared.name]
    options |= options.pop("options", {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with reworded(lambda line: prefix_fields(line, "target.", vars(target))):
            network = build(target.family, data.shape, len(data.classes), **options)
    network = change_normalization(network, target, seed)
    return reparameterize(network, target.condition, target.density, seed, target.spectrum)
