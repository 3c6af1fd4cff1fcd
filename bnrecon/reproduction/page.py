"""What a part's page is made of: texts, tables, claims, and what stands at beginning and end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reporting.wording import count_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bnrecon.reporting.result import RunResult
    from bnrecon.reproduction.experiment import Claim
    from bnrecon.reproduction.study import Part
    from bnrecon.reproduction.task_store import TaskResult


@dataclass(frozen=True)
class Text:
    """A paragraph; code stands between backticks.

    Args:
        text: as Markdown.
        kind: "reading" for details and how tables are to be read, "origin" for where the numbers
            come from, "beside" for what a report shows elsewhere; empty for what belongs to
            this page.
    """

    text: str
    kind: str = ""

    @property
    def markdown(self) -> str:
        """As it is."""
        return self.text


Excerpt = Callable[[pd.DataFrame], pd.DataFrame]  # the part of a table that stands first
RULE = Text("---", "rule")  # what stands below it is not taken into the paper's page
WHOLE = "The whole table"  # its title there, where an excerpt of it stands above


@dataclass(frozen=True)
class Table:
    """A table, and its title where a page has several."""

    frame: pd.DataFrame
    formats: tables.Formats = field(default_factory=dict)
    title: str = ""

    @property
    def markdown(self) -> str:
        """The title in bold, and the table; empty where it has no columns."""
        if not len(self.frame.columns):
            return ""
        table = tables.markdown(self.frame, self.formats)
        return f"**{self.title}**\n\n{table}" if self.title else table


def shorten(table: pd.DataFrame, excerpt: Excerpt | None) -> pd.DataFrame:
    """What of a table stands above the rule: an excerpt, or all of it where that has no lines.

    An excerpt without columns, as by ``parts.below``, is no table.
    """
    short = table if excerpt is None else excerpt(table)
    return table if short.empty and len(short.columns) else short


@dataclass(frozen=True)
class Claims:
    """The statements of the paper that the part decides; ``so_far`` where it is not complete."""

    claims: tuple[Claim, ...]
    so_far: bool = False

    @property
    def markdown(self) -> str:
        """A line for each; a statement that several settings decide stands once above them."""
        same: dict[tuple[str, str], list[str]] = {}
        for claim in self.claims:
            verdict = claim.verdict.capitalize() + " so far" * self.so_far
            decided = f"**{verdict}**: {claim.evidence}"
            same.setdefault((claim.where, claim.statement), []).append(decided)
        return "\n".join(
            f"- {where}: {statement}"
            + (f" {decided[0]}" if len(decided) == 1 else "".join(f"\n    - {d}" for d in decided))
            for (where, statement), decided in same.items()
        )


Block = Text | Table | Claims


@dataclass(frozen=True)
class FinishedRun:
    """A run of the main job: its name on the page, its folder's, and what computes it again."""

    name: str
    folder: str
    result: RunResult
    command: str


@dataclass(frozen=True)
class Comparison:
    """How many runs are finished, and how often each verdict came out."""

    runs: str  # as "3 of 5"
    target: str  # the verdicts against the targets
    reported: str  # those against what the paper reports; empty where it reports nothing


@dataclass(frozen=True)
class Page:
    """What a part looks like for a reader; without ``csv`` nothing of it is finished."""

    heading: Heading  # how it begins and ends
    progress: str = ""  # how much of it is finished
    blocks: Sequence[Block] = ()  # what stands between, in order
    csv: str = ""  # all numbers
    latex: str = ""  # the table for a paper
    draw: Callable[[], Figure] | None = None  # its figure, which takes longer than the rest
    # The tasks or runs that are finished
    results: Sequence[TaskResult] | Sequence[FinishedRun] = ()
    lacking: Sequence[str] = ()  # the tasks or runs that are not, by name
    commands: Sequence[str] = ()  # what computes each of those, where a command does it alone
    comparison: Comparison | None = None  # of its runs with their targets and the paper
    problem: str = ""  # why it cannot be shown, in one line; then it has nothing else

    @property
    def text(self) -> str:
        """The page as Markdown."""
        if self.problem:
            return self.problem
        title, stem = self.heading.part.title, self.heading.stem
        picture = f"![{title}]({stem}.svg)" if self.draw is not None else ""
        lines = [line for line in (picture, *(block.markdown for block in self.blocks)) if line]
        beginning = f"{self.heading.title}; {self.progress}"
        return "\n\n".join([beginning, *lines, f"Command: `{self.heading.command}`."])


@dataclass(frozen=True)
class Heading:
    """How a page begins and ends."""

    study: str  # the name of the study
    paper: str  # the paper as it is cited
    name: str  # the name of the part
    part: Part  # the table or experiment
    scale: str  # the request's scale
    options: Sequence[str]  # the options that change its results
    command: str  # computes the page
    stem: str  # the name of its files, without suffix

    @property
    def label(self) -> str:
        """Of the page's LaTeX table."""
        return f"{self.study}-{self.stem}"

    @property
    def title(self) -> str:
        """The paper, where in it, what is shown, and the scale."""
        scale = ", ".join((f"Scale {self.scale}", *self.options))
        return f"{self.paper}, {self.part.where}: {self.part.title}. {scale}"


def caption_and_details(text: str) -> tuple[str, str]:
    r"""A part's text in two: its first paragraph stands above the table, the others below.

    >>> caption_and_details("One layer.\n\nSeeds differ.")
    ('One layer.', 'Seeds differ.')
    """
    caption, _, details = text.partition("\n\n")
    return caption, details


def device_name(stored: str) -> str:
    """A result's device for a reader.

    >>> device_name("cpu (1 threads)"), device_name("cuda (NVIDIA H200)")
    ('cpu, 1 thread', 'cuda (NVIDIA H200)')
    """
    cpu = re.fullmatch(r"cpu \((\d+) threads?\)", stored)
    return stored if cpu is None else f"cpu, {count_of(int(cpu[1]), 'thread')}"


def listed(names: Iterable[str]) -> str:
    """Different names in alphabetical order."""
    return ", ".join(sorted(set(names)))


def listed_commits(commits: Iterable[str]) -> str:
    """Different commits in alphabetical order, and what a plus behind one of them means.

    >>> listed_commits(["0123ab+", "0123ab"])
    'Commits 0123ab, 0123ab+ (+: with changes that were not committed)'
    """
    text = listed(commits)
    changed = " (+: with changes that were not committed)" if "+" in text else ""
    return f"Commits {text}{changed}"
