"""An experiment of a paper: its tasks, and the table and figure of their rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from bnrecon.reporting import tables
from bnrecon.reporting.latex import latex
from bnrecon.reproduction import page
from bnrecon.reproduction.request import OF_SOURCES, option_group
from bnrecon.reproduction.study import PartRequest
from bnrecon.reproduction.task_store import TaskResult, concatenate
from bnrecon.reproduction.work import TaskWork

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bnrecon.reproduction.parts import Task


# The meaning of each verdict.
VERDICTS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("verdicts.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what the rows say about it.

    Args:
        where: its position in the paper, as "Theorem 1" or "Appendix E".
        statement: the claim, quoted or summarized.
        verdict: one of ``VERDICTS``, computed from the rows.
        evidence: the numbers behind the verdict, in a sentence.
        short: the claim in a line, if it is listed among the paper's findings.
        number: the number in its line.
    """

    where: str
    statement: str
    verdict: str
    evidence: str
    short: str = ""
    number: str = ""

    @property
    def is_beyond(self) -> bool:
        """Whether it is bnrecon's claim, beyond the paper."""
        return self.where.startswith("Beyond")

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.verdict!r} is no verdict: {', '.join(VERDICTS)}")


@dataclass(frozen=True)
class Experiment:
    """An experiment in one file of a paper's folder, bound there to the name ``PART``.

    Args:
        where: its position in the paper, as "Figure 2".
        title: what is shown.
        tasks: returns the tasks for the scale and the user's options, cheaply. Raises ``UserError``
            for an option that the experiment sets itself.
        summary: makes the printed table from all tasks' rows; cells may be ``Interval`` objects.
        caption: what the reader has to know, or a function that computes it from the rows; its
            first paragraph is above the table, the others are below.
        draw: draws the figure from the rows.
        options: the overrides common to its runs, by scale, if the page names them.
        formats: format specifications of the printed table's numbers, by column.
        claims: the statements of the paper that the rows decide, with their verdicts.
        excerpt: selects the lines of a long table above the rule; all lines are below it.
        reported: the paper's numbers for a row, by column.
    """

    where: str
    title: str
    tasks: Callable[[str, Sequence[str]], Sequence[Task]]
    summary: Callable[[pd.DataFrame], pd.DataFrame]
    caption: str | Callable[[pd.DataFrame], str]
    draw: Callable[[pd.DataFrame], Figure] | None = None
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    claims: Callable[[pd.DataFrame], Sequence[Claim]] | None = None
    excerpt: page.Excerpt | None = None
    reported: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def caption_for(self, rows: pd.DataFrame) -> str:
        """The caption, computed from the rows if it depends on them."""
        return self.caption if isinstance(self.caption, str) else self.caption(rows)

    def applicable(self, options: Sequence[str]) -> Sequence[str]:
        """The user's options that apply: tasks only train or read targets, if anything."""
        if all(task.options is None for task in self.tasks("smoke", ())):
            return ()
        return [one for one in options if option_group(one) not in OF_SOURCES]

    def plan_work(self, request: PartRequest) -> list[TaskWork]:
        """Its tasks."""
        folders = request.folder, request.shipped
        return [
            TaskWork(request.name, request.scale, task, *folders, request.threads)
            for task in self.tasks(request.scale, request.options)
        ]

    def numbers(self, work: Sequence[TaskWork]) -> pd.DataFrame:
        """The rows of the finished tasks with task and commit, and the paper's numbers."""
        done = _finished(work)
        rows = concatenate(done)
        if self.reported:
            rows = rows.join(pd.DataFrame(map(self.reported, rows.to_dict("records"))))
        for name in ("task", "commit"):
            rows[name] = [getattr(result, name) for result in done for _ in result.rows]
        return rows

    def decide_claims(self, work: Sequence[TaskWork]) -> list[Claim]:
        """The statements that the finished tasks decide."""
        done = _finished(work)
        return list(self.claims(concatenate(done))) if done and self.claims else []

    def make_page(self, heading: page.Heading, work: Sequence[TaskWork]) -> page.Page:
        """The page of the finished tasks."""
        done = _finished(work)
        names = {result.task for result in done}
        lacking = [item.task.name for item in work if item.task.name not in names]
        progress = f"{len(done)} of {len(work)} tasks finished"
        if not done:
            return page.Page(heading, progress, [page.Text("Not run.")], lacking=lacking)
        rows = concatenate(done)
        summary = self.summary(rows)
        caption, details = page.caption_and_details(self.caption_for(rows))
        overrides = " ".join(self.options.get(heading.scale, ()))
        # The rows' origin: commits, machines, time.
        commits = page.listed_commits(result.commit for result in done)
        machines = page.listed(page.device_name(result.machine) for result in done)
        seconds = round(math.fsum(result.seconds for result in done)) or "less than 1"
        origin = (
            f"{commits}; {machines}; {seconds} s of computing, without trainings that were "
            "interrupted or already stored."
        )
        blocks: list[page.Block] = [
            page.Text(caption),
            page.Table(page.shorten(summary, self.excerpt), self.formats),
            page.Claims(tuple(self.claims(rows)) if self.claims else (), bool(lacking)),
            page.RULE,
            *([page.Table(summary, self.formats, page.WHOLE)] if self.excerpt else []),
            page.Text(details, "reading"),
            page.Text(f"Trained with `{overrides}`." if overrides else ""),
            page.Text(f"Tasks that are not run: {'; '.join(lacking)}." if lacking else ""),
            page.Text(origin, "origin"),
        ]
        draw = None if self.draw is None else functools.partial(self.draw, rows)
        title = f"{heading.title}; {progress}. {caption}"
        csv = tables.csv(rows.assign(task=[result.task for result in done for _ in result.rows]))
        table = latex(summary, self.formats, caption=title, label=heading.label)
        return page.Page(heading, progress, blocks, csv, table, draw, done, lacking)


def _finished(work: Sequence[TaskWork]) -> list[TaskResult]:
    return [result for item in work if (result := item.result()) is not None]
