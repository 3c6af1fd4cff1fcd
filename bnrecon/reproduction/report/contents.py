"""What stands in a report, gathered from what is finished; nothing is computed."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from bnrecon.reproduction import pages
from bnrecon.reproduction.options import result_options
from bnrecon.reproduction.page import (
    Beside,
    Origin,
    Page,
    Reading,
    Table,
    Text,
)
from bnrecon.reproduction.report import errata, provenance, text
from bnrecon.reproduction.report.figures import VectorFigures
from bnrecon.reproduction.report.html_table import html_table
from bnrecon.reproduction.report.runs import Runs, read_runs
from bnrecon.reproduction.report.verdicts import Comparison, Verdict, claims_of, comparison_of
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.run_table import Cell
from bnrecon.reproduction.study import Study

__all__ = ["Paper", "Part", "Report", "gather"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """A table or experiment as it is shown.

    Args:
        anchor: its id on the page.
        page: what it consists of.
        figure: as SVG.
        blocks: kind and content of what stands below the title, in order.
        readings: how its tables are to be read.
        origin: where the numbers come from, in a sentence.
        origins: the same for each task or run.
        verdicts: the claims that it decides.
        comparison: its runs beside the paper's.
        missing: the commands of rows that are not run.
    """

    anchor: str
    page: Page
    figure: Markup | None
    blocks: Sequence[tuple[str, Any]]
    readings: Sequence[Markup]
    origin: str
    origins: provenance.Origins
    verdicts: Sequence[Verdict]
    comparison: Comparison | None
    missing: Sequence[str]

    @property
    def incomplete(self) -> bool:
        """Whether something of it is not finished, or cannot be shown."""
        return bool(self.page.lacking or self.page.problem)


@dataclass(frozen=True)
class Paper:
    """A study with its parts."""

    study: Study
    command: str
    parts: Sequence[Part]
    origins: Sequence[tuple[str, str]]

    @property
    def verdicts(self) -> list[Verdict]:
        """The claims that its finished parts decide."""
        return [verdict for part in self.parts for verdict in part.verdicts]


@dataclass(frozen=True)
class Report:
    """All of a report."""

    scale: str
    options: Sequence[str]
    papers: Sequence[Paper]
    runs: Runs
    errata: errata.Errata
    glyphs: Markup

    @property
    def verdicts(self) -> list[Verdict]:
        """The claims of all papers."""
        return [verdict for paper in self.papers for verdict in paper.verdicts]

    @property
    def parts(self) -> list[Part]:
        """The parts of all papers."""
        return [part for paper in self.papers for part in paper.parts]


def gather(requests: Sequence[tuple[Study, StudyRequest]]) -> Report:
    """Read what is finished of the studies, and draw their figures.

    Args:
        requests: the studies, all with the same scale, options and outputs folder.

    Raises:
        UserError: an impossible request.
    """
    place = errata.find_errata()
    found = errata.Errata() if place is None else errata.read_errata(place.read_text("utf-8"))
    figures = VectorFigures()
    papers = []
    for study, request in requests:
        logger.info("%s: %d parts", study.name, len(study.parts))
        render = functools.partial(_part, request, figures, found.anchors)
        parts = list(pages.read(study, request, render))
        origins = provenance.summary_of([part.page for part in parts])
        papers.append(Paper(study, _command(request), parts, origins))
    first = requests[0][1]
    runs, options = read_runs(first.outputs), result_options(first.options)
    return Report(first.scale, options, papers, runs, found, figures.glyphs())


def _command(request: StudyRequest) -> str:
    """What computes a study anywhere: it names no folder of this machine."""
    options = result_options(request.options)
    return shlex.join(("bnrecon", "study", request.name, f"scale={request.scale}", *options))


def _without_place(page: Page, request: StudyRequest) -> Page:
    """A page whose problem does not say where on this machine its files lie."""
    return dataclasses.replace(page, problem=page.problem.replace(f"{request.outputs}/", ""))


def _part(
    request: StudyRequest, figures: VectorFigures, anchors: dict[str, str], page: Page
) -> Part:
    page = _without_place(page, request)
    anchor = f"{page.heading.study}-{page.heading.name}"
    blocks, readings = _blocks(page, anchor, anchors)
    return Part(
        anchor,
        page,
        _figure(page, anchor, figures),
        blocks,
        readings,
        " ".join(block.text for block in page.blocks if isinstance(block, Origin)),
        provenance.origins_of(page),
        claims_of(page, anchor),
        comparison_of(page, anchor),
        [
            command_of(cell)
            for cell in page.results
            if isinstance(cell, Cell) and cell.result is None
        ],
    )


def _figure(page: Page, anchor: str, figures: VectorFigures) -> Markup | None:
    if page.figure is None:
        return None
    part = page.heading.part
    said = " ".join(text.plain(block.text) for block in page.blocks if type(block) is Text)
    return figures.svg(page.figure, anchor, f"{part.where}: {part.title}", said)


def _blocks(
    page: Page, anchor: str, anchors: dict[str, str]
) -> tuple[list[tuple[str, Any]], list[Markup]]:
    """What stands below the title, and how the tables are read; the rest has its own places."""
    shown: list[tuple[str, Any]] = []
    readings: list[Markup] = []
    for number, block in enumerate(page.blocks):
        if isinstance(block, Table):
            part = page.heading.part
            title = block.title or f"{part.where}: {part.title}"
            table = html_table(block.frame, f"{anchor}-{number}", title, block.formats)
            if block.title:
                shown.append(("title", block.title))
            shown.append(("table", table))
        elif isinstance(block, Reading):
            readings.append(text.inline(block.text, anchors))
        elif isinstance(block, Text) and not isinstance(block, Origin | Beside) and block.text:
            shown.append(("text", text.inline(block.text, anchors)))
    return shown, readings
