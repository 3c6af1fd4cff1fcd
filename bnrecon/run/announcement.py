"""Before a run: refuse what is impossible, say what will be done and how long it takes."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import nn

from bnrecon.config.composition import option_names
from bnrecon.config.schema import RunConfig
from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.data import Images
from bnrecon.operators.mapped import disk_folder
from bnrecon.reconstruction.duration import rate, solving_seconds
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reporting.wording import span
from bnrecon.run import estimate
from bnrecon.runtime import hardware
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.units import format_bytes, format_duration
from bnrecon.runtime.user_code import attribute_errors
from bnrecon.solvers.register import lookup
from bnrecon.solvers.spec import SolverSpec
from bnrecon.targets.building import build_target
from bnrecon.targets.location import is_trained, training_plan
from bnrecon.targets.models import minimum_width_count, parameter_count, skipped_poolings
from bnrecon.targets.register import FAMILIES
from bnrecon.targets.spec import VggTarget
from bnrecon.targets.weights_file import load_weights

logger = logging.getLogger(__name__)

# Up to so many operations, `evaluate=auto` sends all test images through the real source network:
# about ten minutes.
SOURCE_FLOPS = {"cpu": 1e14, "cuda": 1e16}
LONG = 3600  # from so many seconds of solving, a note says that solved layers are kept
WAITING = 60  # from so many seconds of solving, a note names a solver that takes half of them


class _Expected(NamedTuple):
    """Expected seconds of a run; ``tested`` images go through the real source network."""

    training: float
    solving: float
    testing: float
    largest: float
    tested: int


def announce(config: RunConfig, data: Images, device: torch.device) -> None:
    """Refuse what is impossible, then log what will be done and about how long it takes.

    Raises:
        UserError: an option or a layer is not possible.
        RunError: there is not enough memory.
    """
    network = build_target(config.target_request, data).eval()
    if config.target.weights is not None:
        load_weights(network, config.target.weights)
    network = network.to(device)  # the layers' device decides memory and precisions
    with option_names("features"):
        plan = plan_layers(network, config.features, config.solver)
    expected = _expect(config, data, device, network, plan)
    tested = f"{data.sizes[1]} images through the source network"
    if expected.tested == data.sizes[1]:
        tested = f"all {tested}"
    else:
        tested = f"{expected.tested} of {tested}, the others through its collapsed form"
    notes = [*_notes(config, data, expected), *_faster(config, network, expected.solving)]
    lines = [
        *_description(config, data, device, network, plan),
        f"testing   {tested}",
        f"expect    {_duration(config, data, device, expected)}",
        f"needs     {_needs(plan, len(config.seeds))}",
        *(f"note      {note}" for note in [*notes, *plan.notes]),
    ]
    logger.info("\n".join(lines))


def source_images(config: RunConfig, flops: int, images: int, device: torch.device) -> int:
    """The number of test images that go through the real source network.

    All of them, if its collapsed form is another function (tanh, sigmoid) or if its operations per
    image make that affordable; otherwise ``source_images``. ``evaluate`` takes precedence.
    """
    collapse_differs = not FIRST_ACTIVATIONS[config.features.activation].exact
    affordable = collapse_differs or flops * images <= SOURCE_FLOPS[device.type]
    everything = config.evaluate == "source" or (config.evaluate == "auto" and affordable)
    return images if everything else min(config.source_images, images)


def _expect(
    config: RunConfig, data: Images, device: torch.device, network: nn.Module, plan: Plan
) -> _Expected:
    dtype = training_plan(config.target_request, device).dtype
    with attribute_errors(FAMILIES[config.target.family]):
        positions = estimate.pixels(network, data.shape)
    rates = {kind: rate(kind, device) for kind in {dtype, torch.float32}}
    flops = estimate.source_flops(plan, positions)
    target = estimate.multiply_adds(network, positions)
    images, seeds = data.sizes[1], len(config.seeds)
    tested = source_images(config, flops, images, device)
    layers = solving_seconds(plan.layers)
    # Forward and backward are three passes; small layers add about 0.1 ms per image.
    training = 6 * target / (0.85 * rates[dtype]) + 1e-4
    # All images go through the target and the source's collapsed form.
    testing = (tested * flops + images * 2 * 2 * target) / (0.8 * rates[torch.float32])
    return _Expected(
        config.train.epochs * data.sizes[0] * training,
        seeds * sum(layers),
        seeds * testing,
        max(layers, default=0.0),
        tested,
    )


def _duration(config: RunConfig, data: Images, device: torch.device, expected: _Expected) -> str:
    """The duration of each step; the reason if nothing is trained."""
    training, solving, testing = (
        format_duration(max(1, seconds))
        for seconds in (expected.training, expected.solving, expected.testing)
    )
    trained = f"about {training} training,"
    if config.target.weights is not None:
        trained = f"no training (weights of {config.target.weights}), about"
    elif is_trained(config.target_request, data, device):
        trained = "no training (already trained), about"
    return f"{trained} {solving} solving, {testing} testing"


def _needs(plan: Plan, seeds: int) -> str:
    """Memory and disk, where features are stored, and the memory of a solver that factorizes."""
    weights = {
        "memory": "features in memory",
        "regenerate": "features regenerated tile by tile",
        "disk": "features in a temporary file",
    }[plan.storage]
    largest = max(plan.layers, key=lambda layer: layer.working_bytes)
    solver = lookup(largest.choice.solver)
    if not solver.products:
        weights += f", {format_bytes(largest.solver_memory)} of it for solver {solver.name}"
    memory, disk = format_bytes(plan.memory), format_bytes(seeds * plan.disk)
    beside = ""
    if plan.storage == "disk":
        size = format_bytes(plan.temporary_disk)
        beside = f", and {size} in {disk_folder()} while it runs (TMPDIR chooses the folder)"
    host = f", {format_bytes(plan.host_memory)} of the host's" if plan.host_memory else ""
    return f"about {memory} of memory for the source ({weights}){host}, {disk} of disk{beside}"


def _description(
    config: RunConfig, data: Images, device: torch.device, network: nn.Module, plan: Plan
) -> list[str]:
    """What will be done, one line for each group of options."""
    channels, height, width = data.shape
    widths = span(layer.width for layer in plan.layers)
    oversampling = span((layer.width / layer.shape.equations for layer in plan.layers), ".3g")
    dtype = str(training_plan(config.target_request, device).dtype).removeprefix("torch.")
    tested = "test" if config.data.validation is None else "held-out training"
    train, trained, precision = config.train, "", ""
    if config.target.weights is None and not is_trained(config.target_request, data, device):
        precision = f", training in {dtype}"
    if config.target.weights is None:
        batch = min(train.batch_size, data.sizes[0])
        trained = f": {train.epochs} epochs, batch {batch}, peak rate {train.lr:g}"
    return [
        f"data      {data.name}: {data.sizes[0]} training and {data.sizes[1]} {tested} images of "
        f"{height}x{width}x{channels}, {len(data.classes)} classes",
        f"target    {config.target.name} of width {config.target.width}: "
        f"{parameter_count(network):,} parameters; a source of minimum width trains "
        f"{minimum_width_count(network):,} in its convolutions",
        f"source    {config.features.name}, {widths} features a layer "
        f"(oversampling {oversampling}), solver {config.solver.name}, "
        f"seeds {', '.join(map(str, config.seeds))}",
        f"scale     {config.scale}{trained}",
        f"device    {hardware.describe_device(device)}{precision}",
    ]


def _notes(config: RunConfig, data: Images, expected: _Expected) -> list[str]:
    """Where the run departs from what its options seem to say."""
    target, notes = config.target, []
    if isinstance(target, VggTarget):
        skipped = skipped_poolings(data.shape, target.groups[: target.poolings])
        if skipped:
            notes.append(f"{skipped} poolings are skipped: the image's side is already 1")
    if target.weights is None and config.train.warmup_epochs > config.train.epochs / 2:
        notes.append(
            f"warm-up is cut from {config.train.warmup_epochs:g} epochs to half of the training, "
            f"{config.train.epochs / 2:g}"
        )
    if expected.solving >= LONG:
        notes.append(
            f"the largest layer takes about {format_duration(expected.largest)}; what is "
            "solved is kept: stop this at any time, and rerun the command to go on"
        )
    return notes


def _faster(config: RunConfig, network: nn.Module, seconds: float) -> list[str]:
    """A note if ``solver=auto`` is expected to take at most half as long on this machine."""
    name = config.solver.name
    if seconds < WAITING or name == "auto" or lookup(name).registered.user_defined:
        return []
    try:
        plan = plan_layers(network, config.features, SolverSpec(tolerance=config.solver.tolerance))
    except (UserError, RunError):  # auto may need more features
        return []
    expected = len(config.seeds) * plan.seconds
    if 2 * expected > seconds:
        return []
    largest = max(plan.layers, key=lambda layer: layer.shape.equations)
    return [
        f"solver=auto is expected to take about {format_duration(max(1, expected))}: "
        f"{largest.choice.solver} with {largest.width} features in the largest layer"
    ]
