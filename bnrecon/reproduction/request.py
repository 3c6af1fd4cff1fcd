"""A user's request to `bnrecon study`, `tables` and `figures`: parts, scale and options.

Some options of a study's runs change results, and a table sets some itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import checks, composition, schema
from bnrecon.jobs import options as job_options
from bnrecon.jobs.options import JobOptions
from bnrecon.jobs.work import Batch
from bnrecon.reproduction.study import SCALES
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.shipped import shipped_outputs

PLANNER = "bnrecon.reproduction.engine:plan_again"

# Options of a study; all others belong to its runs.
STUDY_OPTIONS = ("scale", *job_options.OPTIONS)
# Groups of options that change source networks, not their target.
OF_SOURCES = {"features", "solver", "seeds", "evaluate", "source_images", "keep_source"}


@dataclass(frozen=True)
class StudyRequest:
    """A study, its scale, its parts, and the options of its runs."""

    name: str  # the study
    scale: str  # smoke, laptop or paper
    parts: tuple[str, ...]  # parts and solvers by name; empty for all parts
    options: tuple[str, ...]  # overrides of every run
    outputs: Path  # the folder of runs and studies
    executor: JobOptions  # who computes

    @property
    def folder(self) -> Path:
        """The folder for the study's tasks, tables and figures."""
        return self.outputs / "studies" / self.name

    @property
    def shipped(self) -> Path:
        """The folder of those that ship with bnrecon, which are only read."""
        return shipped_outputs(self.outputs) / self.name

    @property
    def command(self) -> str:
        """The equivalent command."""
        return shlex.join(["bnrecon", "study", *self.words_without_executor, *self.executor.words])

    @property
    def words_without_executor(self) -> list[str]:
        """The arguments of the same request for one process."""
        return [self.name, *self.parts, f"scale={self.scale}", *self.options]

    @property
    def batch(self) -> Batch:
        """The batch, for the processes that compute it."""
        words = tuple(self.words_without_executor)
        return Batch(self.folder, self.scale, self.command, PLANNER, words)


def read(
    name: str, options: Sequence[str], detach: bool = False, config_dir: Path | None = None
) -> StudyRequest:
    """Read what follows a study's name on the command line.

    >>> read("random_features", ["matching", "jobs=2", "device=cpu"]).words_without_executor
    ['random_features', 'matching', 'scale=laptop', 'device=cpu']

    Raises:
        UserError: a flag, an unknown scale, a study's option given twice, an impossible number of
            processes, an impossible outputs folder, or unknown settings of a cluster.
    """
    if flags := [option for option in options if option.startswith("-")]:
        raise UserError(
            f"{flags[0]}: a study takes parts and options, as in scale=smoke; "
            "bnrecon study --help lists them"
        )
    values, slurm, words = job_options.split(options, STUDY_OPTIONS)
    parts = [word for word in words if "=" not in word]
    passed = [word for word in words if "=" in word]
    folders = [word for word in passed if word.lstrip("+").startswith("outputs=")]
    if len(folders) > 1:
        raise UserError("outputs= is given twice")
    outputs = composition.compose([word.lstrip("+") for word in folders]).outputs
    checks.require_folder("outputs", outputs)
    if config_dir is not None and values.get("cluster") != "slurm":
        raise UserError("--config-dir: is for cluster=slurm")
    executor = job_options.read(values, slurm, detach, config_dir)
    if (scale := values.get("scale", "laptop")) not in SCALES:
        raise UserError(f"scale={scale}: {nearest(scale, SCALES)}")
    return StudyRequest(name, scale, tuple(parts), tuple(passed), Path(outputs), executor)


def option_name(option: str) -> str:
    """The name of an option.

    >>> option_name("+target.width=8")
    'target.width'
    """
    return option.lstrip("+~").partition("=")[0]


def option_group(option: str) -> str:
    """The group of an option.

    >>> option_group("+target.width=8"), option_group("seeds=[0]")
    ('target', 'seeds')
    """
    return option_name(option).partition(".")[0]


def result_options(options: Sequence[str]) -> list[str]:
    """The options that change results, not only where or how fast they are computed.

    >>> result_options(["data.root=/images", "target.width=8", "device=cpu"])
    ['target.width=8']
    """
    return sorted(option for option in options if option_name(option) not in schema.VOLATILE)


def stem_suffix(options: Sequence[str]) -> str:
    """The suffix of a part's file names: empty, or a hash of options that change results.

    >>> stem_suffix(["device=cpu"])
    ''
    """
    changing = result_options(options)
    return f"-{content_key({'words': changing})}" if changing else ""
