"""Before a run: refuse what cannot be done, then say what will be, and about how long it takes."""

from __future__ import annotations

from typing import Any

import torch

from bnrecon.config.schema import RunConfig
from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.data import Images
from bnrecon.reconstruction.planning import Plan, plan_layers
from bnrecon.run import estimate
from bnrecon.runtime import hardware
from bnrecon.runtime.own_code import blamed
from bnrecon.targets.models import FAMILIES, minimum_width_count, parameter_count
from bnrecon.targets.store import build_target, is_trained, training_plan

__all__ = ["announce", "chosen_width", "source_images"]

SOURCE_IMAGES = 64  # test images that always go through the real source network
# Operations up to which `evaluate=auto` sends all test images through the real source network: some ten minutes.
SOURCE_FLOPS = {"cpu": 1e14, "cuda": 1e16}


def chosen_width(config: RunConfig) -> dict[str, Any]:
    """The one of the three ways to say how many features a layer has that was given, the others ``None``."""
    features = config.features
    return {name: getattr(features, name) for name in ("oversampling", "excess", "width")}


def announce(config: RunConfig, data: Images, device: torch.device) -> Plan:
    """Refuse what cannot be done, then say what will be, and about how long it takes."""
    network = build_target(config, data).eval()
    plan = plan_layers(
        network,
        config.features.name,
        **chosen_width(config),
        allow_below_minimum=config.features.allow_below_minimum,
        solver=config.solver.name,
        device=device,
        skip=config.features.skip,
    )
    training = training_plan(config, device)
    with blamed(FAMILIES[config.target.family]):
        places = estimate.pixels(network, data.shape)
    channels, height, width = data.shape
    speed = {dtype: estimate.rate(dtype, device) for dtype in {training.dtype, torch.float32}}
    images = config.train.epochs * data.sizes[0]
    learn = estimate.training_seconds(
        estimate.multiply_adds(network, places), images, speed[training.dtype]
    )
    solve = len(config.seeds) * estimate.solving_seconds(plan, config.solver.name, device)
    flops = estimate.source_flops(plan, places)
    seen = source_images(config, flops, data.sizes[1], device)
    test = len(config.seeds) * seen * flops / (0.5 * speed[torch.float32])
    widths = sorted({layer.width for layer in plan.layers})
    span = f"{widths[0]}" if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
    oversampling = plan.layers[-1].width / plan.layers[-1].found.target.shape.equations
    known = is_trained(config, data, device)
    lines = [
        f"data      {data.name}: {data.sizes[0]} training and {data.sizes[1]} test images of {height}x{width}x{channels}",
        f"target    {config.target.name} of width {config.target.width}: {parameter_count(network):,} parameters; a source of minimum "
        f"width trains {minimum_width_count(network):,} in its convolutions",
        f"source    {config.features.name}, {span} features a layer (oversampling {oversampling:.3g}), solver {config.solver.name}, "
        f"seeds {', '.join(map(str, config.seeds))}",
        f"scale     {config.scale}: {config.train.epochs} epochs, batch {config.train.batch_size}, peak rate {config.train.lr:g}",
        f"device    {hardware.describe(device)}, training in {str(training.dtype).removeprefix('torch.')}",
        f"expect    {'no training (already trained), about' if known else f'about {estimate.duration(learn)} training,'} "
        f"{estimate.duration(solve)} solving, {estimate.duration(test)} testing",
    ]
    if skipped := getattr(network, "skipped_poolings", 0):
        lines.append(f"note      {skipped} poolings are skipped: the image's side is already 1")
    if config.train.warmup_epochs > config.train.epochs / 2:
        lines.append(
            f"note      warm-up is cut from {config.train.warmup_epochs:g} to half of the {config.train.epochs} epochs"
        )
    lines += [f"note      {note}" for note in plan.notes]
    print("\n".join(lines), flush=True)
    return plan


def source_images(config: RunConfig, flops: int, images: int, device: torch.device) -> int:
    """How many test images the real source network sees: all, where its collapsed form is another function."""
    nearly = not FIRST_ACTIVATIONS[config.features.activation].exact
    affordable = nearly or flops * images <= SOURCE_FLOPS[device.type]
    everything = config.evaluate == "source" or (config.evaluate == "auto" and affordable)
    return images if everything else min(SOURCE_IMAGES, images)
