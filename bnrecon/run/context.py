"""What the steps of a run share, planned once and passed on."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch

from bnrecon.config.composition import option_names
from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.data import Images
from bnrecon.reconstruction.assembly import check_moments
from bnrecon.reconstruction.moments import LayerMoments, gather
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.run.naming import code_of_run
from bnrecon.runtime import digests, hardware
from bnrecon.runtime.tracking import NO_TRACKERS, TrackedRun
from bnrecon.targets.store import Trained, obtain_target

logger = logging.getLogger(__name__)

STATISTICS_IMAGES = 1024  # training images for running statistics


Share: TypeAlias = "Callable[[RunContext, int, Sequence[PlannedLayer]], None]"


@dataclass(frozen=True)
class RunContext:
    """A run whose target is trained."""

    config: RunConfig
    data: Images
    device: torch.device
    folder: Path  # the run's; a seed's files are in ``folder/seed-N``
    target: Trained  # the trained network
    tracked: TrackedRun  # logs layers and seeds
    share: Share | None = None  # lets other processes solve and store a seed's layers

    @cached_property
    def plan(self) -> Plan:
        """Width, features and solver of every layer, for all seeds; see ``plan_of_seed``."""
        with option_names("features"):
            plan = plan_layers(self.target.network, self.config.features, self.config.solver)
        if plan.storage != self.config.features.storage and plan.storage != "memory":
            logger.info("storage   %s, by the memory that is free now", plan.storage)
        return plan

    def plan_of_seed(self, seed: int) -> Plan:
        """The plan with a seed, which decides only the features that are drawn."""
        layers = [dataclasses.replace(layer, seed=seed) for layer in self.plan.layers]
        return dataclasses.replace(self.plan, layers=layers)

    @cached_property
    def moments(self) -> Mapping[str, LayerMoments]:
        """Moments of layers' inputs and outputs, by name, for the sources' running statistics."""
        images = self.data.plain_train_batches(64, self.device, STATISTICS_IMAGES)
        moments = gather(self.plan.model, [layer.folded for layer in self.plan.layers], images)
        with option_names("features"):
            return check_moments(self.plan, moments)

    @cached_property
    def seed_key(self) -> str:
        """A hash of what a seed's record depends on besides the seed.

        That is the target, images, options, the user's code, the device type and the version.
        """
        content = digests.differences_from_defaults(self.config, VOLATILE | {"seeds"})
        content |= code_of_run(self.config)
        content |= {
            "target": digests.tensor_digest(self.target.network.state_dict()),
            "pixels": self.data.checksum(),
            "device": self.device.type,
            "version": importlib.metadata.version("bnrecon"),
        }
        return digests.content_key(content)


def open_run(config: RunConfig, data: Images, folder: Path) -> RunContext:
    """Open a run without logging, to solve some of its layers; trains its target.

    Raises what ``obtain_target`` raises.
    """
    device = hardware.resolve_device(config.device)
    target = obtain_target(config.target_request, data, device)
    return RunContext(config, data, device, folder, target, TrackedRun(NO_TRACKERS, "", {}))
