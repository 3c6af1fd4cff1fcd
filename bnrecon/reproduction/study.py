"""A study: a paper's parts by name, each in a module of its own that is imported when needed."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from bnrecon.runtime.errors import UserError, nearest

if TYPE_CHECKING:
    from bnrecon.reproduction.part import Part

__all__ = ["SCALES", "Study", "read_reported"]

SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Study:
    """A paper that is reproduced.

    Listing a study's parts imports none of them, so that help and tab completion are fast.

    Args:
        name: the folder's name in ``bnrecon/studies``.
        paper: the paper as it is cited.
        parts: names of its tables and experiments, in the order of the paper. Each is a module of
            the study's folder that binds ``PART``.
        solvers: names that select the rows of one solver where a part's runs compare
            solvers.
    """

    name: str
    paper: str
    parts: tuple[str, ...]
    solvers: tuple[str, ...] = ()

    def part(self, name: str) -> Part:
        """Import a part.

        Raises:
            UserError: the study has no part of this name.
        """
        if name not in self.parts:
            raise UserError(f"{name}: {nearest(name, self.parts)}")
        return importlib.import_module(f"bnrecon.studies.{self.name}.{name}").PART


@functools.cache
def read_reported(package: str) -> dict[str, Any]:
    """The numbers that a paper prints: the ``reported.yaml`` in its folder."""
    file = importlib.resources.files(package).joinpath("reported.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))
