"""The elements of a part's page: texts, tables, claims, its beginning and its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """A paragraph, with code in backticks.

    Args:
        text: the Markdown.
        kind: "reading" for details and how to read the tables, "origin" for the origin of the
            numbers, "beside" for what a report shows elsewhere; empty for the page's other texts.
    """

    text: str
    kind: str = ""

    @property
    def markdown(self) -> str:
        """The text."""
        return self.text


Excerpt = Callable[[pd.DataFrame], pd.DataFrame]  # selects the part of a table shown first
RULE = Text("---", "rule")  # the paper's page does not contain what is below it
WHOLE = "The whole table"  # its title below the rule, if there is an excerpt above


@dataclass(frozen=True)
class Table:
    """A table, and its title if the page has several."""

    frame: pd.DataFrame
    formats: tables.Formats = field(default_factory=dict)
    title: str = ""

    @property
    def markdown(self) -> str:
        """The title in bold, and the table; empty without columns."""
        if not len(self.frame.columns):
            return ""
        table = tables.markdown(self.frame, self.formats)
        return f"**{self.title}**\n\n{table}" if self.title else table


def shorten(table: pd.DataFrame, excerpt: Excerpt | None) -> pd.DataFrame:
    """The part of a table above the rule: an excerpt, or all of it if the excerpt has no lines.

    An excerpt without columns, as from ``parts.below``, shows no table.
    """
    short = table if excerpt is None else excerpt(table)
    return table if short.empty and len(short.columns) else short


@dataclass(frozen=True)
class Claims:
    """The statements of the paper that the part decides; ``so_far`` if it is incomplete."""

    claims: tuple[Claim, ...]
    so_far: bool = False

    @property
    def markdown(self) -> str:
        """A line for each; a statement decided by several settings appears once above them."""
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
    """A run of the main job: its name on the page, its folder's, and the command to rerun it."""

    name: str
    folder: str
    result: RunResult
    command: str


@dataclass(frozen=True)
class Page:
    """The page of a part; without ``csv`` nothing is finished."""

    heading: Heading  # its beginning and end
    progress: str = ""  # how much of it is finished
    blocks: Sequence[Block] = ()  # the content between, in order
    csv: str = ""  # all numbers
    latex: str = ""  # the table for a paper
    draw: Callable[[], Figure] | None = None  # draws its figure, which takes longer than the rest
    # The finished tasks or runs
    results: Sequence[TaskResult] | Sequence[FinishedRun] = ()
    lacking: Sequence[str] = ()  # the names of unfinished tasks or runs
    commands: Sequence[str] = ()  # the command for each of those, if one computes only this
    # Of its runs: how many of them, and how often each verdict against their targets ("target") and
    # the paper's numbers ("reported")
    comparison: Mapping[str, str] | None = None
    problem: str = ""  # why it cannot be shown, in one line; then it has no other content

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
    """The beginning and the end of a page."""

    study: str  # the name of the study
    paper: str  # the paper's short name
    name: str  # the name of the part
    part: Part  # the table or experiment
    scale: str  # the request's scale
    options: Sequence[str]  # the options that change its results
    command: str  # the command that computes the page
    stem: str  # the name of its files, without suffix

    @property
    def label(self) -> str:
        """The label of the page's LaTeX table."""
        return f"{self.study}-{self.stem}"

    @property
    def title(self) -> str:
        """The paper, the position in it, what is shown, and the scale."""
        scale = ", ".join((f"Scale {self.scale}", *self.options))
        return f"{self.paper}, {self.part.where}: {self.part.title}. {scale}"


def caption_and_details(text: str) -> tuple[str, str]:
    r"""Split a part's text: the first paragraph is above the table, the others are below.

    >>> caption_and_details("One layer.\n\nSeeds differ.")
    ('One layer.', 'Seeds differ.')
    """
    caption, _, details = text.partition("\n\n")
    return caption, details


def device_name(stored: str) -> str:
    """A result's device, as readable text.

    >>> device_name("cpu (1 threads)"), device_name("cuda (NVIDIA H200)")
    ('cpu, 1 thread', 'cuda (NVIDIA H200)')
    """
    cpu = re.fullmatch(r"cpu \((\d+) threads?\)", stored)
    return stored if cpu is None else f"cpu, {count_of(int(cpu[1]), 'thread')}"


def listed(names: Iterable[str]) -> str:
    """The distinct names in alphabetical order."""
    return ", ".join(sorted(set(names)))


def listed_commits(commits: Iterable[str]) -> str:
    """The distinct commits in alphabetical order, and the meaning of a plus after one of them.

    >>> listed_commits(["0123ab+", "0123ab"])
    'Commits 0123ab, 0123ab+ (+: with changes that were not committed)'
    """
    text = listed(commits)
    changed = " (+: with changes that were not committed)" if "+" in text else ""
    return f"Commits {text}{changed}"
