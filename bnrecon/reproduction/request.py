"""What a user requests of `bnrecon study`, `tables` and `figures`: parts, scale and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import checks, composition
from bnrecon.runtime.errors import UserError

__all__ = ["StudyRequest", "read"]

OWN = ("scale", "jobs")  # a study's own options; all others are its runs'


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
    """

    name: str
    scale: str
    parts: tuple[str, ...]
    options: tuple[str, ...]
    outputs: Path
    jobs: int

    @property
    def folder(self) -> Path:
        """Where the study's tasks, tables and figures are written."""
        return self.outputs / "studies" / self.name

    @property
    def shipped(self) -> Path:
        """Where those lie that ship with bnrecon, which are only read."""
        return self.outputs / self.name

    @property
    def command(self) -> str:
        """What a user types for the same."""
        jobs = [] if self.jobs == 1 else [f"jobs={self.jobs}"]
        return shlex.join(["bnrecon", "study", *self.alone, *jobs])

    @property
    def alone(self) -> list[str]:
        """The arguments with which one process does the same."""
        return [self.name, *self.parts, f"scale={self.scale}", *self.options]


def read(name: str, options: Sequence[str]) -> StudyRequest:
    """Read what follows a study's name on the command line.

    >>> read("random_features", ["matching", "jobs=2", "device=cpu"]).alone
    ['random_features', 'matching', 'scale=laptop', 'device=cpu']

    Raises:
        UserError: a flag, an own option given twice, an impossible number of processes, or an
            outputs folder that cannot be one.
    """
    if flags := [option for option in options if option.startswith("-")]:
        raise UserError(
            f"{flags[0]}: a study takes parts and options, as in scale=smoke; "
            "bnrecon study --help lists them"
        )
    parts, passed, own = [], [], {}
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
        if key not in OWN:
            passed.append(option)
    jobs = own.get("jobs", "1")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", jobs):
        raise UserError(f"jobs={jobs}: give the number of processes, 1 or more")
    outputs = composition.compose([f"outputs={own['outputs']}"] if "outputs" in own else []).outputs
    checks.require_folder("outputs", outputs)
    scale = own.get("scale", "laptop")
    return StudyRequest(name, scale, tuple(parts), tuple(passed), Path(outputs), int(jobs))
