"""An experiment of a paper: its tasks, and how their rows become a table and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from bnrecon.reporting import figures, tables
from bnrecon.reporting.latex import latex
from bnrecon.reproduction.page import (
    RULE,
    WHOLE,
    Block,
    Claims,
    Heading,
    Page,
    Table,
    Text,
    caption_and_details,
    device_name,
    listed,
    listed_commits,
)
from bnrecon.reproduction.study import PartRequest
from bnrecon.reproduction.task_store import concatenate
from bnrecon.reproduction.work import TaskWork

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Task:
    """The smallest piece of work that is computed, stored and resumed on its own.

    Args:
        name: what it is called in progress and messages, unique within its experiment.
        function: called with ``arguments`` by name, and with ``options`` where it has any; returns
            the task's rows: a frame whose columns are snake_case and whose cells are numbers,
            words, truth values or missing (NaN, None).
        arguments: JSON values; with the experiment's name and what ``options`` change they are the
            task's key.
        options: overrides of the runs whose targets the task trains or reads; ``None`` for a task
            that has no such runs.
        reads_target: whether it reads the target of the run that ``options`` describe, so that it
            may be trained before; not where it trains networks of its own.
    """

    name: str
    function: Callable[..., pd.DataFrame]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] | None = None
    reads_target: bool = False

    def compute(self) -> pd.DataFrame:
        """Do the work and return its rows."""
        options = {} if self.options is None else {"options": self.options}
        return self.function(**self.arguments, **options)


VERDICTS = {
    "confirmed": "What was computed agrees with the claim. That says nothing of other sizes, data "
    "or trainings.",
    "needs a correction": "A factor, sign, index, exponent or number is wrong as printed; an "
    "erratum has the right one.",
    "needs a condition": "Fails in an example as it is printed, and holds under a further "
    "condition, which the evidence or an erratum names.",
    "contradicted": "What was computed speaks against the claim as it is stated, for the sizes, "
    "data and trainings that were computed.",
    "false as stated": "The statement as it is printed fails in an example or contradicts a "
    "derivation, and more than a condition or a correction is needed. The paper's other statements "
    "may hold without it.",
    "undecided": "Not decided: the intervals allow for both answers, or too little was computed.",
    "not at the paper's size": "Not attempted at the size, or on the data, of the claim; what was "
    "computed is smaller.",
}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what the rows say about it.

    Args:
        where: its place, as "Theorem 1" or "Appendix E".
        statement: what is claimed, quoted or in short.
        verdict: one of ``VERDICTS``, computed from the rows.
        evidence: the numbers that it rests on, in a sentence.
        short: the claim in a line, where it is listed among the paper's findings.
        number: the one number of its line.
    """

    where: str
    statement: str
    verdict: str
    evidence: str
    short: str = ""
    number: str = ""

    @property
    def is_beyond(self) -> bool:
        """Whether it is ours, of something that the paper does not say."""
        return self.where.startswith("Beyond")

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.verdict!r} is no verdict: {', '.join(VERDICTS)}")


@dataclass(frozen=True)
class Experiment:
    """What stands in one file of a paper's folder, bound there to the name ``PART``.

    Args:
        where: where in the paper, as "Figure 2".
        title: what is shown.
        tasks: called with the scale and the user's options; naming tasks costs nothing. Raises
            ``UserError`` for an option that the experiment itself sets.
        summary: makes the printed table of all tasks' rows; cells may be ``Interval`` objects.
        caption: what the reader has to know, or a function that computes it from the rows; its
            first paragraph stands above the table, the others below.
        draw: makes the figure of the rows.
        options: the overrides that the experiment gives its own runs at a scale; ``None`` where it
            has none and the user's options change nothing.
        formats: format specifications of the printed table's numbers, by column.
        claims: the statements of the paper that the rows decide, with their verdicts.
        excerpt: of a long table the lines that stand above the rule; all of them stand below.
        reported: what the paper prints beside a row, by column.
    """

    where: str
    title: str
    tasks: Callable[[str, Sequence[str]], Sequence[Task]]
    summary: Callable[[pd.DataFrame], pd.DataFrame]
    caption: str | Callable[[pd.DataFrame], str]
    draw: Callable[[pd.DataFrame], Figure] | None = None
    options: Callable[[str], Sequence[str]] | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    claims: Callable[[pd.DataFrame], Sequence[Claim]] | None = None
    excerpt: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    reported: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def caption_for(self, rows: pd.DataFrame) -> str:
        """The caption, computed from the rows where it depends on them."""
        return self.caption if isinstance(self.caption, str) else self.caption(rows)

    @property
    def takes_options(self) -> bool:
        """Whether it has runs that the user's options reach."""
        return self.options is not None

    def plan_work(self, request: PartRequest) -> list[TaskWork]:
        """Its tasks."""
        folders = request.folder, request.shipped
        return [
            TaskWork(request.name, request.scale, task, *folders, request.threads)
            for task in self.tasks(request.scale, request.options)
        ]

    def numbers(self, work: Sequence[TaskWork]) -> pd.DataFrame:
        """The rows of the finished tasks with task and commit, and what the paper prints beside."""
        done = [result for item in work if (result := item.result()) is not None]
        rows = concatenate(done)
        if self.reported:
            rows = rows.join(pd.DataFrame(map(self.reported, rows.to_dict("records"))))
        for name in ("task", "commit"):
            rows[name] = [getattr(result, name) for result in done for _ in result.rows]
        return rows

    def decide_claims(self, work: Sequence[TaskWork]) -> list[Claim]:
        """The statements that the finished tasks decide."""
        done = [result for item in work if (result := item.result()) is not None]
        return list(self.claims(concatenate(done))) if done and self.claims else []

    def make_page(self, heading: Heading, work: Sequence[TaskWork]) -> Page:
        """The page of the finished tasks."""
        done = [result for item in work if (result := item.result()) is not None]
        names = {result.task for result in done}
        lacking = [item.task.name for item in work if item.task.name not in names]
        progress = f"{len(done)} of {len(work)} tasks finished"
        if not done:
            return Page(heading, progress, [Text("Not run.")], lacking=lacking)
        rows = concatenate(done)
        summary = self.summary(rows)
        caption, details = caption_and_details(self.caption_for(rows))
        overrides = " ".join(self.options(heading.scale)) if self.options else ""
        # Where the rows come from: commits, machines, time.
        commits = listed_commits(result.commit for result in done)
        machines = listed(device_name(result.machine) for result in done)
        seconds = round(sum(result.seconds for result in done)) or "less than 1"
        origin = (
            f"{commits}; {machines}; {seconds} s of computing, without trainings that were "
            "interrupted or already stored."
        )
        blocks: list[Block] = [
            Text(caption),
            Table(self.excerpt(summary) if self.excerpt else summary, self.formats),
            Claims(tuple(self.claims(rows)) if self.claims else ()),
            RULE,
            *([Table(summary, self.formats, WHOLE)] if self.excerpt else []),
            Text(details, "reading"),
            Text(f"Trained with `{overrides}`." if overrides else ""),
            Text(f"Tasks that are not run: {'; '.join(lacking)}." if lacking else ""),
            Text(origin, "origin"),
        ]
        with figures.style():
            figure = None if self.draw is None else self.draw(rows)
        title = f"{heading.title}; {progress}. {caption}"
        csv = tables.csv(rows.assign(task=[result.task for result in done for _ in result.rows]))
        table = latex(summary, self.formats, caption=title, label=heading.label)
        return Page(heading, progress, blocks, csv, table, figure, done, lacking)


def no_overrides(_scale: str) -> tuple[str, ...]:
    """For ``Experiment.options``: its runs are given nothing but what its tasks say."""
    return ()
