"""``bnrecon train``: the target of a run alone."""

from __future__ import annotations

from dataclasses import dataclass

from bnrecon.config.checks import check_machine
from bnrecon.config.schema import RunConfig
from bnrecon.run.preparation import (
    announce_trackers,
    check_names,
    check_root,
    load_images,
    tested_on,
)
from bnrecon.runtime import distributed, hardware
from bnrecon.runtime.tracking import NO_TRACKERS
from bnrecon.targets.location import is_trained
from bnrecon.targets.reparameterization import trained_parameters
from bnrecon.targets.store import Trained, obtain_target


@dataclass(frozen=True)
class TrainedTarget:
    """A target that was trained alone; ``stored`` where it had been trained before."""

    trained: Trained
    name: str
    width: int
    stored: bool
    rank: int

    def text(self) -> str:
        """What ``bnrecon train`` prints; nothing from any but the first of several processes."""
        if self.rank > 0:
            return ""
        about = self.trained.about
        parameters = trained_parameters(self.trained.network)
        processes = about.get("processes", 1)
        return (
            f"{self.name} of width {self.width}: {tested_on(self.trained)} accuracy "
            f"{about['accuracy']:.2f}% "
            f"(n={about['images']}), {parameters:,} trainable parameters, "
            f"{'trained before in' if self.stored else 'trained in'} {about['seconds']:.0f} s"
            f"{f' by {processes} processes' if processes > 1 else ''}\n{self.trained.folder}"
        )


def train_only(config: RunConfig) -> TrainedTarget:
    """Train the target of a run, or take the trained one; alone, or with others under torchrun.

    Raises what ``obtain_target`` raises.
    """
    check_names(config)
    check_machine(config)
    check_root(config)
    device, request = hardware.resolve_device(config.device), config.target_request
    with hardware.use_threads(config.threads), distributed.join_processes(device):
        data = distributed.run_on_first_rank_before_others(lambda: load_images(config))
        stored = is_trained(request, data, device)
        rank = distributed.rank_and_world_size()[0]
        trackers = announce_trackers(config) if rank == 0 else NO_TRACKERS
        trained = obtain_target(request, data, device, trackers)
    return TrainedTarget(trained, config.target.name, config.target.width, stored, rank)
