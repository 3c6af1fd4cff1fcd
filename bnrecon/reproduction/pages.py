"""A part's page: its table as Markdown, CSV and LaTeX, and its figure, from what is finished."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path

from bnrecon.reporting import figures as drawing
from bnrecon.reproduction.engine import PartPlan, plan
from bnrecon.reproduction.options import result_options, stem_suffix
from bnrecon.reproduction.page import Heading, Page, Text
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.shipped_rows import shipped_rows
from bnrecon.reproduction.study import Study
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


def _all_solvers(study: Study, request: StudyRequest) -> list[PartPlan]:
    """The requested parts with the rows of all solvers: a table stands whole on its page."""
    names = [planned.name for planned in plan(study, request)]
    whole = StudyRequest(
        request.name, request.scale, tuple(names), request.options, request.outputs, request.jobs
    )
    return plan(study, whole)


def _options_of(planned: PartPlan, request: StudyRequest) -> tuple[str, ...]:
    """The options that reach a part's runs: none where it has no runs."""
    return request.options if planned.part.takes_options else ()


def _stem(planned: PartPlan, request: StudyRequest) -> str:
    return f"{planned.name}-{request.scale}{stem_suffix(_options_of(planned, request))}"


def _write_page(stem: Path, page: Page) -> None:
    files.write_text(stem.with_name(f"{stem.name}.md"), page.text + "\n")
    files.write_text(stem.with_name(f"{stem.name}.csv"), page.csv)
    files.write_text(stem.with_name(f"{stem.name}.tex"), page.latex)
    if page.figure is not None:
        for kind in KINDS:
            picture = drawing.image(page.figure, kind)
            files.write_bytes(stem.with_name(f"{stem.name}.{kind}"), picture)


def _heading(study: Study, request: StudyRequest, planned: PartPlan) -> Heading:
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


def _page(planned: PartPlan, heading: Heading) -> Page:
    for work in planned.work:
        if (damage := work.damage()) is not None:
            logger.warning("%s; computed again by: %s", damage, heading.command)
    page = planned.part.make_page(heading, planned.work)
    if page.figure is not None:
        drawing.add_note(page.figure, heading.command)
    shipped = shipped_rows(planned.work)
    return dataclasses.replace(page, blocks=[*page.blocks, Text(shipped)]) if shipped else page
