"""Build an untrained target from its request; the memory that its training takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.runtime.options import prefix_fields, reworded
from bnrecon.targets.models import parameter_count
from bnrecon.targets.normalization import change_normalization
from bnrecon.targets.register import FAMILIES, build
from bnrecon.targets.reparameterization import reparameterize
from bnrecon.targets.spec import NormalizationVggTarget, TargetRequest, TargetSpec, VggTarget


def build_target(request: TargetRequest, data: Images) -> nn.Module:
    """Build the target untrained, its initial weights drawn from ``train.seed``."""
    target, seed = request.target, request.train.seed
    options = _options(target, type(target))
    options |= options.pop("options", {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with reworded(lambda line: prefix_fields(line, "target.", vars(target))):
            network = build(target.family, data.shape, len(data.classes), **options)
    network = change_normalization(network, target, seed)
    return reparameterize(network, target.condition, target.density, seed, target.spectrum)


def _options(target: TargetSpec, kind: type[TargetSpec]) -> dict[str, Any]:
    """The arguments of a family's builder, from the fields of ``kind``."""
    # All families have a width, which each uses in its way.
    shared = {field.name for field in dataclasses.fields(TargetSpec)} - {"width"}
    names = [field.name for field in dataclasses.fields(kind) if field.name not in shared]
    return {name: getattr(target, name) for name in names}


def training_bytes(target: TargetSpec) -> int:
    """About how many bytes the weights take in training; 0 for a user's family.

    That is 12 per parameter: weight, gradient and momentum in float32, counted in a network for
    32x32 images on the device ``meta``, which stores no numbers. For frozen pairs it is the
    features, at least one per equation.
    """
    frozen = isinstance(target, NormalizationVggTarget) and target.features != "none"
    kind = VggTarget if isinstance(target, NormalizationVggTarget) else type(target)
    family = "vgg" if kind is VggTarget else target.family
    if family not in FAMILIES or FAMILIES[family].user_defined:
        return 0
    options = _options(target, kind)
    options.pop("padding", None)  # not every one is possible for images of this size
    with torch.device("meta"):
        network = build(family, (3, 32, 32), 10, **options)
    if frozen:
        layers = (layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
        return sum(4 * layer.weight.numel() * 10 * target.width for layer in layers)
    return 12 * parameter_count(network)
