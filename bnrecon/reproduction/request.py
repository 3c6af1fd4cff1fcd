"""What is asked of `bnrecon study`, `tables` and `figures` of a study: the words of the command line, read once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import checks, composition
from bnrecon.runtime.errors import UserError

__all__ = ["Asked", "read"]


OWN = ("scale", "jobs")  # a study's; every other option is its runs'


@dataclass(frozen=True)
class Asked:
    """A study, its scale, the parts named (none: all of them), options of its runs, their outputs folder, and how many processes."""

    name: str
    scale: str
    parts: tuple[str, ...]
    options: tuple[str, ...]
    outputs: Path
    jobs: int

    @property
    def folder(self) -> Path:
        """Where the study's tables and pictures lie; those that ship lie in OUTPUTS/NAME and are never written."""
        return self.outputs / "studies" / self.name

    @property
    def alone(self) -> list[str]:
        """The words that ask one process for the same."""
        return [self.name, *self.parts, f"scale={self.scale}", *self.options]


def read(name: str, words: Sequence[str]) -> Asked:
    """Take the words behind a study's name apart.

    Raises ``UserError`` for flags, an own option given twice, processes that are no number, an outputs folder that is none.

    >>> read("random_features", ["matching", "jobs=2", "device=cpu"]).alone
    ['random_features', 'matching', 'scale=laptop', 'device=cpu']
    """
    if flags := [word for word in words if word.startswith("-")]:
        raise UserError(
            f"{flags[0]}: a study takes parts and options, as in scale=smoke; bnrecon study --help lists them"
        )
    parts, options, given = [], [], {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lstrip("+")
        if not equals:
            parts.append(word)
            continue
        if key in (*OWN, "outputs"):
            if key in given:
                raise UserError(f"{key}= is given twice")
            given[key] = value
        if key not in OWN:
            options.append(word)
    jobs = given.get("jobs", "1")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", jobs):
        raise UserError(f"jobs={jobs}: how many processes share the work, 1 or more")
    outputs = composition.compose(
        [f"outputs={given['outputs']}"] if "outputs" in given else []
    ).outputs
    checks.require_folder("outputs", outputs)
    return Asked(
        name, given.get("scale", "laptop"), tuple(parts), tuple(options), Path(outputs), int(jobs)
    )
