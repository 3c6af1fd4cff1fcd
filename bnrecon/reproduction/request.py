"""What a user requests of `bnrecon study`, `tables` and `figures`: parts, scale and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import checks, composition
from bnrecon.reproduction import cluster_options
from bnrecon.reproduction.cluster_options import ClusterOptions
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.shipped import shipped_outputs

__all__ = ["StudyRequest", "read"]

# A study's own options; all others are its runs'.
OWN = ("scale", "jobs", *cluster_options.OWN)


@dataclass(frozen=True)
class StudyRequest:
    """A study, its scale, its parts, and the options of its runs.

    Args:
        name: the study.
        scale: smoke, laptop or paper.
        parts: parts and solvers by name; all parts where it is empty.
        options: overrides that every run is given.
        outputs: the folder of runs and studies.
        jobs: number of processes that share the work.
        cluster: whose jobs compute it; ``None`` where the command itself does.
    """

    name: str
    scale: str
    parts: tuple[str, ...]
    options: tuple[str, ...]
    outputs: Path
    jobs: int
    cluster: ClusterOptions | None = None

    @property
    def folder(self) -> Path:
        """Where the study's tasks, tables and figures are written."""
        return self.outputs / "studies" / self.name

    @property
    def shipped(self) -> Path:
        """Where those lie that ship with bnrecon, which are only read."""
        return shipped_outputs(self.outputs) / self.name

    @property
    def command(self) -> str:
        """What a user types for the same."""
        jobs = [] if self.jobs == 1 else [f"jobs={self.jobs}"]
        cluster = () if self.cluster is None else self.cluster.words
        return shlex.join(["bnrecon", "study", *self.alone, *jobs, *cluster])

    @property
    def alone(self) -> list[str]:
        """The arguments with which one process does the same."""
        return [self.name, *self.parts, f"scale={self.scale}", *self.options]


def read(
    name: str, options: Sequence[str], detach: bool = False, config_dir: Path | None = None
) -> StudyRequest:
    """Read what follows a study's name on the command line.

    Args:
        name: the study.
        options: parts and options.
        detach: whether to leave once a cluster has the jobs.
        config_dir: a folder with the user's own ``slurm.yaml``.

    >>> read("random_features", ["matching", "jobs=2", "device=cpu"]).alone
    ['random_features', 'matching', 'scale=laptop', 'device=cpu']

    Raises:
        UserError: a flag, an own option given twice, an impossible number of processes, an outputs
            folder that cannot be one, or settings of a cluster that there are not.
    """
    if flags := [option for option in options if option.startswith("-")]:
        raise UserError(
            f"{flags[0]}: a study takes parts and options, as in scale=smoke; "
            "bnrecon study --help lists them"
        )
    parts, passed, slurm, own = [], [], [], {}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.lstrip("+")
        if not equals:
            parts.append(option)
            continue
        if key in (*OWN, "outputs"):
            if key in own:
                raise UserError(f"{key}= is given twice")
            own[key] = value
        if key.startswith("slurm."):
            slurm.append(option.lstrip("+"))
        elif key not in OWN:
            passed.append(option)
    jobs = own.get("jobs", "1")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", jobs):
        raise UserError(f"jobs={jobs}: give the number of processes, 1 or more")
    outputs = composition.compose([f"outputs={own['outputs']}"] if "outputs" in own else []).outputs
    checks.require_folder("outputs", outputs)
    scale = own.get("scale", "laptop")
    cluster = cluster_options.read(own, slurm, detach, config_dir)
    return StudyRequest(name, scale, tuple(parts), tuple(passed), Path(outputs), int(jobs), cluster)
