"""What a part's page is made of: its texts, and what stands at its beginning and end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.run_table import RunTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Heading", "Page", "device_name", "listed"]


@dataclass(frozen=True)
class Page:
    """What a part looks like for a reader; without ``csv`` nothing of it is finished."""

    text: str
    csv: str = ""
    latex: str = ""
    figure: Figure | None = None


@dataclass(frozen=True)
class Heading:
    """How a page begins and ends.

    Args:
        study: the name of the study.
        paper: the paper as it is cited.
        part: the table or experiment.
        scale: the request's scale.
        options: the options that change its results.
        command: computes the page.
        stem: the name of its files, without suffix.
    """

    study: str
    paper: str
    part: Experiment | RunTable
    scale: str
    options: Sequence[str]
    command: str
    stem: str

    @property
    def label(self) -> str:
        """Of the page's LaTeX table."""
        return f"{self.study}-{self.stem}"

    @property
    def title(self) -> str:
        """The paper, where in it, what is shown, and the scale."""
        scale = ", ".join((f"Scale {self.scale}", *self.options))
        return f"{self.paper}, {self.part.where}: {self.part.title}. {scale}"

    def page(self, progress: str, body: Sequence[str], drawn: bool = False) -> str:
        """The text around a table, with the part's figure where one is drawn."""
        picture = f"![{self.part.title}]({self.stem}.svg)" if drawn else ""
        lines = [line for line in (*body, picture) if line]
        return "\n\n".join([f"{self.title}; {progress}", *lines, f"Command: `{self.command}`."])


def device_name(stored: str) -> str:
    """A result's device for a reader.

    >>> device_name("cpu (1 threads)"), device_name("cuda (NVIDIA H200)")
    ('cpu, 1 thread', 'cuda (NVIDIA H200)')
    """
    cpu = re.fullmatch(r"cpu \((\d+) threads?\)", stored)
    return stored if cpu is None else f"cpu, {cpu[1]} thread{'' if cpu[1] == '1' else 's'}"


def listed(names: Iterable[str]) -> str:
    """Different names in alphabetical order."""
    return ", ".join(sorted(set(names)))
