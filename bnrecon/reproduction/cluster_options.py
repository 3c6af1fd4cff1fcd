"""What `bnrecon study` is told of a cluster: ``cluster=``, ``minutes_per_job=`` and ``slurm.*``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import cluster_settings
from bnrecon.config.cluster_settings import ClusterSettings
from bnrecon.runtime.errors import UserError, nearest

__all__ = ["CLUSTERS", "OWN", "ClusterOptions", "read"]

CLUSTERS = ("local", "slurm")
OWN = ("cluster", "minutes_per_job")  # options of a study


@dataclass(frozen=True)
class ClusterOptions:
    """Whose jobs compute a study's work.

    Args:
        name: ``"slurm"``, or ``"local"`` for processes of this machine that outlive the command.
        settings: what each job asks of Slurm.
        words: the options as they were given.
        minutes_per_job: for how long a job is given work.
        detach: whether the command leaves once the jobs are given.
    """

    name: str
    settings: ClusterSettings
    words: tuple[str, ...]
    minutes_per_job: float = 10.0
    detach: bool = False


def read(
    own: Mapping[str, str], slurm: Sequence[str], detach: bool, config_dir: Path | None
) -> ClusterOptions | None:
    """Read what a command was told; ``None`` where it computes itself.

    Args:
        own: the study's own options by name.
        slurm: words as ``slurm.mem=8G``.
        detach: the flag ``--detach``.
        config_dir: the flag ``--config-dir``.

    Raises:
        UserError: a cluster or a setting that there is not, or options that do not go together.
    """
    name = own.get("cluster")
    if name is not None and name not in CLUSTERS:
        raise UserError(f"cluster={name}: {nearest(name, CLUSTERS)}")
    if name is None and detach:
        raise UserError("--detach: is for cluster=slurm and cluster=local")
    if name != "slurm":
        given = [*slurm, *(["--config-dir"] if config_dir is not None else [])]
        given += [f"{key}={own[key]}" for key in ("minutes_per_job",) if key in own]
        if given:
            raise UserError(f"{given[0]}: is for cluster=slurm")
    if name is None:
        return None
    words = (*(f"{key}={own[key]}" for key in OWN if key in own), *slurm)
    if name == "local":
        return ClusterOptions(name, ClusterSettings(), words, detach=detach)
    if own.get("jobs", "1") != "1":
        raise UserError(
            f"jobs={own['jobs']}: with cluster=slurm, slurm.array_parallelism= says how many jobs "
            "run at once"
        )
    settings = cluster_settings.read(config_dir, slurm)
    return ClusterOptions(name, settings, words, _minutes(own.get("minutes_per_job", "10")), detach)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 <= minutes < 1e6:
        raise UserError(f"minutes_per_job={text}: give a number of minutes; 0 is a job for each")
    return minutes
