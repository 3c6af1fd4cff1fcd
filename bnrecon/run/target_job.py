"""``bnrecon train``: the target of a run alone."""

from __future__ import annotations

from bnrecon.config.checks import check_machine
from bnrecon.config.schema import RunConfig
from bnrecon.run import preparation
from bnrecon.runtime import distributed, hardware
from bnrecon.runtime.tracking import NO_TRACKERS
from bnrecon.targets.location import is_trained
from bnrecon.targets.reparameterization import trained_parameters
from bnrecon.targets.store import obtain_target


def train_only(config: RunConfig) -> str:
    """Train the target of a run, or take the trained one; alone, or with others under torchrun.

    Raises what ``obtain_target`` raises.

    Returns:
        How good it is, and its folder; nothing from any but the first of several processes.
    """
    preparation.check_names(config)
    check_machine(config)
    preparation.check_root(config)
    device, request = hardware.resolve_device(config.device), config.target_request
    with hardware.use_threads(config.threads), distributed.join_processes(device):
        data = distributed.run_on_first_rank_before_others(lambda: preparation.load_images(config))
        stored = is_trained(request, data, device)
        rank = distributed.rank_and_world_size()[0]
        trackers = preparation.announce_trackers(config) if rank == 0 else NO_TRACKERS
        target = obtain_target(request, data, device, trackers)
    if rank > 0:
        return ""
    about, processes = target.about, target.about.get("processes", 1)
    return (
        f"{config.target.name} of width {config.target.width}: {preparation.tested_on(target)} "
        f"accuracy {about['accuracy']:.2f}% (n={about['images']}), "
        f"{trained_parameters(target.network):,} trainable parameters, "
        f"{'trained before in' if stored else 'trained in'} {about['seconds']:.0f} s"
        f"{f' by {processes} processes' if processes > 1 else ''}\n{target.folder}"
    )
