"""A part's page: its table as Markdown, CSV and LaTeX, and its figure, from what is finished."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

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

__all__ = ["figures", "read", "write"]

logger = logging.getLogger(__name__)

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
    for page in read(study, request):
        texts.append(page.text)
        if page.csv:
            _write_page(folder / page.heading.stem, page)
    return "\n\n\n".join(texts)


def read(study: Study, request: StudyRequest) -> Iterator[Page]:
    """The pages of the requested parts, one after the other; nothing is computed or written.

    A part that cannot be shown is a page that says why; the others are shown all the same.

    Raises:
        UserError: an impossible request.
    """
    for planned in _all_solvers(study, request):
        heading = _heading(study, request, planned)
        try:
            page = _page(planned, heading)
        except Exception as error:
            place = f"{request.folder / 'tasks' / heading.stem}"
            line = f"{planned.name} cannot be shown ({type(error).__name__}: {error}); see {place}"
            logger.exception("%s", line)
            page = Page(heading, problem=line)
        yield page


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


def _write_page(stem: Path, page: Page) -> None:
    files.write_text(stem.with_name(f"{stem.name}.md"), page.text + "\n")
    files.write_text(stem.with_name(f"{stem.name}.csv"), page.csv)
    files.write_text(stem.with_name(f"{stem.name}.tex"), page.latex)
    if page.figure is not None:
        for kind in KINDS:
            picture = drawing.image(page.figure, kind)
            files.write_bytes(stem.with_name(f"{stem.name}.{kind}"), picture)


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
