"""Choose the executor of a request."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bnrecon.jobs.cluster import Cluster
from bnrecon.jobs.computation import InProcess
from bnrecon.jobs.local_processes import LocalProcesses, require_room
from bnrecon.jobs.options import JobOptions
from bnrecon.jobs.work import Batch, Executor


def choose(
    options: JobOptions,
    batch: Batch,
    device: torch.device | None,
    seconds: Mapping[str, float],
    show: bool = False,
) -> Executor:
    """Choose the executor: on this machine's ``device``, or Slurm's jobs where it is ``None``.

    ``seconds`` are the durations of one item of work, by part, where known; ``show`` says whether
    this process, if it computes alone, shows the details.

    Raises:
        UserError: this machine has no room for so many processes, or no such cluster.
    """
    if device is None:
        assert options.cluster is not None
        return Cluster(batch, options.cluster, seconds=seconds)
    require_room(options.jobs, device)
    if options.cluster is not None:
        return Cluster(batch, options.cluster, options.jobs, device=device)
    if options.jobs == 1:
        return InProcess(batch.locks_folder, None if show else batch.log)
    return LocalProcesses(options.jobs, batch.locks_folder, batch.log, device)
