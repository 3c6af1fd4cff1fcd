"""A part's page: its table as Markdown, CSV and LaTeX, and its figure, from what is finished."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bnrecon.reporting import figures as drawing
from bnrecon.reporting import tables
from bnrecon.reporting.latex import latex
from bnrecon.reproduction.engine import ExperimentPlan, TablePlan, plan
from bnrecon.reproduction.options import result_options, stem_suffix
from bnrecon.reproduction.page import (
    Block,
    Claims,
    Heading,
    Origin,
    Page,
    Table,
    Text,
    device_name,
    listed,
    listed_commits,
)
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.run_page import run_page
from bnrecon.reproduction.shipped_rows import shipped_rows
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.task_store import TaskResult, concatenate
from bnrecon.runtime import files
from bnrecon.runtime.errors import first_line

__all__ = ["figures", "read", "write"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
KINDS = ("png", "svg")


def write(study: Study, request: StudyRequest, folder: Path | None = None) -> str:
    """Write the requested parts' files and return the pages as Markdown; nothing is computed.

    Args:
        study: the paper.
        request: its parts, scale and options.
        folder: where to write; the request's own folder by default.

    Raises:
        UserError: an impossible request.
    """
    folder = folder or request.folder
    files.remove_leftovers(folder)
    texts = []
    for text, contents in read(study, request, _render):
        texts.append(text)
        for name, content in contents.items():
            files.write_bytes(folder / name, content)
    return "\n\n\n".join(texts)


def read(study: Study, request: StudyRequest, render: Callable[[Page], T]) -> Iterator[T]:
    """The pages of the requested parts, one after the other, as ``render`` shows them.

    Nothing is computed or written. A part that cannot be read or rendered is a page that says why;
    the others are shown all the same.

    Raises:
        UserError: an impossible request.
    """
    for planned in _all_solvers(study, request):
        heading = _heading(study, request, planned)
        try:
            shown = render(_page(planned, heading))
        except Exception as error:
            place, reason = request.folder / "tasks" / heading.stem, first_line(error)
            line = f"{planned.name} cannot be shown ({type(error).__name__}: {reason}); see {place}"
            logger.error("%s", line, exc_info=logger.isEnabledFor(logging.DEBUG))
            shown = render(Page(heading, problem=line))
        yield shown


def figures(study: Study, request: StudyRequest) -> list[Path]:
    """The figures of the requested parts that have been written."""
    paths = (
        request.folder / f"{_stem(planned, request)}.png"
        for planned in _all_solvers(study, request)
    )
    return [path for path in paths if path.exists()]


def _all_solvers(study: Study, request: StudyRequest) -> list[ExperimentPlan | TablePlan]:
    """The requested parts with the rows of all solvers: a table stands whole on its page."""
    names = [planned.name for planned in plan(study, request)]
    whole = StudyRequest(
        request.name,
        request.scale,
        tuple(names),
        request.options,
        request.outputs,
        request.executor,
    )
    return plan(study, whole)


def _options_of(planned: ExperimentPlan | TablePlan, request: StudyRequest) -> tuple[str, ...]:
    """The options that reach a part's runs: none where it has no runs."""
    takes = isinstance(planned, TablePlan) or planned.part.options is not None
    return request.options if takes else ()


def _stem(planned: ExperimentPlan | TablePlan, request: StudyRequest) -> str:
    return f"{planned.name}-{request.scale}{stem_suffix(_options_of(planned, request))}"


def _render(page: Page) -> tuple[str, dict[str, bytes]]:
    """A page as Markdown, and its files by name; none where nothing is finished."""
    if not page.csv:
        return page.text, {}
    texts = {"md": page.text + "\n", "csv": page.csv, "tex": page.latex}
    contents = {kind: text.encode() for kind, text in texts.items()}
    if page.figure is not None:
        contents |= {kind: drawing.image(page.figure, kind) for kind in KINDS}
    return page.text, {f"{page.heading.stem}.{kind}": made for kind, made in contents.items()}


def _heading(study: Study, request: StudyRequest, planned: ExperimentPlan | TablePlan) -> Heading:
    options = result_options(_options_of(planned, request))
    command = ("bnrecon", "study", study.name, planned.name, f"scale={request.scale}", *options)
    return Heading(
        study.name,
        study.paper,
        planned.name,
        planned.part,
        request.scale,
        options,
        shlex.join(command),
        _stem(planned, request),
    )


def _page(planned: ExperimentPlan | TablePlan, heading: Heading) -> Page:
    for work in planned.work:
        if (damage := work.damage()) is not None:
            logger.warning("%s; computed again by: %s", damage, heading.command)
    if isinstance(planned, TablePlan):
        page = run_page(planned.part, heading, [work.cell() for work in planned.work])
    else:
        page = _experiment_page(planned, heading)
    if page.figure is not None:
        drawing.add_note(page.figure, heading.command)
    shipped = shipped_rows(planned.work)
    return dataclasses.replace(page, blocks=[*page.blocks, Text(shipped)]) if shipped else page


def _experiment_page(planned: ExperimentPlan, heading: Heading) -> Page:
    part = planned.part
    results = {work.task.name: work.result() for work in planned.work}
    done = [result for result in results.values() if result is not None]
    lacking = [name for name, result in results.items() if result is None]
    progress = f"{len(done)} of {len(results)} tasks finished"
    if not done:
        return Page(heading, progress, [Text("Not run.")], lacking=lacking)
    rows = concatenate(done)
    summary, caption = part.summary(rows), part.caption_for(rows)
    overrides = " ".join(part.options(heading.scale)) if part.options else ""
    blocks: list[Block] = [
        Table(summary, part.formats),
        Text(caption),
        Claims(tuple(part.claims(rows)) if part.claims else ()),
        Text(f"Trained with `{overrides}`." if overrides else ""),
        Text(f"Tasks that are not run: {'; '.join(lacking)}." if lacking else ""),
        Origin(_origin(done)),
    ]
    names = [result.task for result in done for _ in result.rows]
    with drawing.style():
        figure = None if part.draw is None else part.draw(rows)
    title = f"{heading.title}; {progress}. {caption}"
    return Page(
        heading,
        progress,
        blocks,
        tables.csv(rows.assign(task=names)),
        latex(summary, part.formats, caption=title, label=heading.label),
        figure,
        done,
        lacking,
    )


def _origin(done: Sequence[TaskResult]) -> str:
    """Where the rows come from: commits, machines, time."""
    seconds = round(sum(result.seconds for result in done)) or "less than 1"
    return (
        f"{listed_commits(result.commit for result in done)}; "
        f"{listed(device_name(result.machine) for result in done)}; "
        f"{seconds} s of computing, without "
        "trainings that were interrupted or already stored."
    )
