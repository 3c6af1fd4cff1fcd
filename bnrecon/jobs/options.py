"""The options that set who computes: ``jobs=``, ``cluster=``, ``minutes_per_job=``, ``slurm.*``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import cluster_settings
from bnrecon.config.cluster_settings import ClusterSettings
from bnrecon.runtime.errors import UserError, require_choice

CLUSTERS = ("local", "slurm")
OPTIONS = ("jobs", "cluster", "minutes_per_job")  # and slurm.NAME


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster whose jobs compute a study's work."""

    name: str  # ``"slurm"``, or ``"local"`` for processes of this machine that outlive the command
    settings: ClusterSettings  # what each job requests from Slurm
    words: tuple[str, ...]  # the options as written
    minutes_per_job: float = 10.0  # about how much work a job gets
    detach: bool = False  # whether the command exits once the jobs are submitted


@dataclass(frozen=True)
class JobOptions:
    """Who computes: this command's processes, or the jobs of a cluster."""

    jobs: int = 1  # number of processes of this machine that share the work
    cluster: ClusterOptions | None = None  # computes instead of the command

    @property
    def words(self) -> list[str]:
        """The options as written on the command line, without defaults."""
        cluster = () if self.cluster is None else self.cluster.words
        return [*([] if self.jobs == 1 else [f"jobs={self.jobs}"]), *cluster]


def split(
    words: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """The values of the options in ``names``, the words ``slurm.NAME=VALUE``, and all others.

    >>> split(["jobs=2", "slurm.mem=8G", "device=cpu"], OPTIONS)
    ({'jobs': '2'}, ['slurm.mem=8G'], ['device=cpu'])

    Raises:
        UserError: an option in ``names`` is given twice.
    """
    values: dict[str, str] = {}
    slurm, others = [], []
    for word in words:
        name, equals, value = word.lstrip("+").partition("=")
        if equals and name.startswith("slurm."):
            slurm.append(word.lstrip("+"))
        elif not equals or name not in names:
            others.append(word)
        elif name in values:
            raise UserError(f"{name}= is given twice")
        else:
            values[name] = value
    return values, slurm, others


def read(
    values: Mapping[str, str], slurm: Sequence[str], detach: bool, config_dir: Path | None
) -> JobOptions:
    """Read a command's options: values by name, and words such as ``slurm.mem=8G``.

    ``config_dir`` is the folder of ``slurm.yaml``, if not the user's configuration folder.

    Raises:
        UserError: an unknown cluster or setting, an impossible number of processes, or options
            that exclude each other.
    """
    name, jobs = values.get("cluster"), values.get("jobs", "1")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", jobs):
        raise UserError(f"jobs={jobs}: give the number of processes, 1 or more")
    if name is not None:
        require_choice("cluster=", name, CLUSTERS)
    if name is None and detach:
        raise UserError("--detach: is for cluster=slurm and cluster=local")
    cluster_words = (*(f"{key}={values[key]}" for key in OPTIONS[1:] if key in values), *slurm)
    settings = ClusterSettings()
    if name == "slurm":
        if jobs != "1":
            raise UserError(
                f"jobs={jobs}: with cluster=slurm, slurm.array_parallelism= says how many jobs "
                "run at once"
            )
        settings = cluster_settings.read(config_dir, slurm)
    elif misplaced := [*slurm, *(word for word in cluster_words if word.startswith("minutes"))]:
        raise UserError(f"{misplaced[0]}: is for cluster=slurm")
    if name is None:
        return JobOptions(int(jobs))
    minutes = values.get("minutes_per_job", "10")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]*)?|\.[0-9]+", minutes):
        raise UserError(f"minutes_per_job={minutes}: give a number of minutes; 0 is a job for each")
    cluster = ClusterOptions(name, settings, cluster_words, float(minutes), detach)
    return JobOptions(int(jobs), cluster)
