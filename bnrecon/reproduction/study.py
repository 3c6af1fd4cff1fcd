"""A study: a paper's parts by name, each in its own module; the protocol of a part."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import yaml

from bnrecon.runtime.errors import require_choice

if TYPE_CHECKING:
    import pandas as pd

    from bnrecon.reproduction.experiment import Claim
    from bnrecon.reproduction.page import Heading, Page

SCALES = ("smoke", "laptop", "paper")
W = TypeVar("W", bound=Any)  # the part's type of work


@dataclass(frozen=True)
class PartRequest:
    """The request for a part."""

    name: str  # the part's
    scale: str  # smoke, laptop or paper
    options: Sequence[str]  # overrides of every run
    folder: Path  # the study's folder, which is written
    shipped: Path  # the folder of shipped results, read if the study's folder has none
    threads: int | None = None  # the ``threads`` option


class Part(Protocol[W]):
    """A table or an experiment, bound to ``PART`` in one file of a paper's folder."""

    @property
    def where(self) -> str:
        """Its position in the paper, as "Figure 2"."""

    @property
    def title(self) -> str:
        """What is shown."""

    def applicable(self, options: Sequence[str]) -> Sequence[str]:
        """The user's options that apply to its runs."""

    def plan_work(self, request: PartRequest) -> Sequence[W]:
        """List its work, cheaply. Raises ``UserError`` for an impossible option."""

    def make_page(self, heading: Heading, work: Sequence[W]) -> Page:
        """Make its page from finished results."""

    def numbers(self, work: Sequence[W]) -> pd.DataFrame:
        """All numbers of finished results, with the paper's, and the commit of each row."""

    def decide_claims(self, work: Sequence[W]) -> Sequence[Claim]:
        """The statements of the paper that finished results decide."""


@dataclass(frozen=True)
class Study:
    """The reproduction of a paper.

    Listing a study's parts imports none of them, so that help and tab completion are fast.
    """

    name: str  # the folder's name in ``bnrecon/studies``
    paper: str  # the paper's short name
    # Names of its tables and experiments, in the order of the paper. Each is a module of the
    # study's folder that binds ``PART``.
    parts: tuple[str, ...]
    # The parts before the theorems on the paper's page
    main: tuple[str, ...] = ()
    # Names that select the rows of one solver if a part's runs compare solvers
    solvers: tuple[str, ...] = ()
    citation: str = ""  # authors, title, and the address at the end
    summary: str = ""  # the paper's claims, our results, its theorems: ``paper.md``

    def part(self, name: str) -> Part:
        """Import a part.

        Raises:
            UserError: the study has no part of this name.
        """
        require_choice("", name, self.parts)
        return importlib.import_module(f"bnrecon.studies.{self.name}.{name}").PART


@functools.cache
def read_study(name: str) -> Study:
    """The study that the ``paper.md`` in a folder of ``bnrecon/studies`` describes.

    The fields of ``Study`` are YAML front matter before the summary, between two lines of ---.

    Raises:
        ValueError: there is no front matter.
        KeyError, TypeError: it lacks a field, or has an unknown one.
    """
    page = importlib.resources.files(f"bnrecon.studies.{name}") / "paper.md"
    fields, summary = split_front_matter(page.read_text(encoding="utf-8"), str(page))
    chosen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Study(name, **chosen, summary=summary.strip())


def split_front_matter(text: str, where: str) -> tuple[dict[str, Any], str]:
    """The YAML between two lines of --- at the start of a text, and what follows.

    Raises:
        ValueError: there is none; the message names ``where``.
    """
    opening, *parts = text.split("---\n", 2)
    if opening or len(parts) != 2:
        raise ValueError(f"{where}: it must begin with front matter between two lines of ---")
    return yaml.safe_load(parts[0]), parts[1]
