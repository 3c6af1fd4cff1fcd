"""A part's page: its table as Markdown, CSV and LaTeX, and its figure, from finished results."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from bnrecon.reporting import figures as drawing
from bnrecon.reproduction.engine import PartPlan, plan
from bnrecon.reproduction.page import Heading, Page, Text
from bnrecon.reproduction.request import StudyRequest, result_options, stem_suffix
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.work import RunWork, TaskWork
from bnrecon.runtime import files
from bnrecon.runtime.errors import first_line

logger = logging.getLogger(__name__)

T = TypeVar("T")
KINDS = ("png", "svg")
WEIGHTS = " Trained weights are not in the package: a row's command trains its target if need be."


class Written(NamedTuple):
    """The output for the requested parts."""

    text: str  # the pages as Markdown
    figures: list[Path]  # files of the drawn figures
    unshown: list[str]  # the parts that cannot be shown; they are logged
    refused: OSError | None  # why some files could not be written

    def warn_if_refused(self) -> None:
        """Warn that files were not written, instead of failing, as the pages matter more."""
        if (error := self.refused) is not None:
            what = f"{error.strerror}: {error.filename}"
            logger.warning("the files of these tables were not updated (%s)", what)


def write(
    study: Study, request: StudyRequest, folder: Path | None = None, redraw: bool = True
) -> Written:
    """Write the requested parts' files: the pages and the drawn figures.

    They go to the request's folder, or to ``folder``. With ``redraw`` every figure is drawn, even
    if its numbers did not change. The pages are returned even if a file cannot be written.

    Raises:
        UserError: an impossible request.
    """
    folder = folder or request.folder
    files.remove_partial_files(folder)
    texts, drawn, unshown = [], [], []
    refused: OSError | None = None
    render = functools.partial(_render, None if redraw else folder)
    for page, contents in read(study, request, render):
        texts.append(page.text)
        unshown += [page.heading.name] if page.problem else []
        try:
            for name, content in contents.items():
                files.write_bytes(folder / name, content)
                drawn += [folder / name] if name.endswith(".png") else []
        except OSError as error:
            refused = refused or error
    return Written("\n\n\n".join(texts), drawn, unshown, refused)


def read(study: Study, request: StudyRequest, render: Callable[[Page], T]) -> Iterator[T]:
    """Yield the pages of the requested parts, converted by ``render``.

    Nothing is computed or written. A part that cannot be read or rendered is a page that says why;
    the others are still shown.

    Raises:
        UserError: an impossible request.
    """
    parts = plan(study, request)
    if set(request.parts) & set(study.solvers):  # a page shows the whole table
        parts = plan(study, dataclasses.replace(request, parts=tuple(part.name for part in parts)))
    for planned in parts:
        heading = _heading(study, request, planned)
        try:
            _warn_of_damage(request, planned)
            shown = render(_page(planned, heading))
        except Exception as error:
            folder, reason = request.folder / "tasks" / heading.stem, first_line(error)
            line = (
                f"{planned.name} cannot be shown ({type(error).__name__}: {reason}); see {folder}"
            )
            logger.error("%s", line, exc_info=logger.isEnabledFor(logging.DEBUG))
            shown = render(Page(heading, problem=line))
        yield shown


def _render(drawn: Path | None, page: Page) -> tuple[Page, dict[str, bytes]]:
    """A page, and its files by name, without pictures that the folder ``drawn`` has."""
    if not page.csv:
        return page, {}
    contents: dict[str, bytes] = {}
    stem = page.heading.stem
    is_drawn = (
        drawn is not None
        and files.has_text(drawn / f"{stem}.csv", page.csv)
        and all((drawn / f"{stem}.{kind}").exists() for kind in KINDS)
    )
    if page.draw is not None and not is_drawn:
        figure = drawing.drawn(page.draw, page.heading.command)
        contents = {kind: drawing.image(figure, kind) for kind in KINDS}
    # Write the numbers last: if they exist, the pictures next to them are theirs.
    texts = {"md": page.text + "\n", "tex": page.latex, "csv": page.csv}
    contents |= {kind: text.encode() for kind, text in texts.items()}
    return page, {f"{stem}.{kind}": made for kind, made in contents.items()}


def _heading(study: Study, request: StudyRequest, planned: PartPlan) -> Heading:
    reaching = planned.part.applicable(request.options)
    options = result_options(reaching)
    command = ("bnrecon", "study", study.name, planned.name, f"scale={request.scale}", *options)
    return Heading(
        study.name,
        study.paper,
        planned.name,
        planned.part,
        request.scale,
        options,
        shlex.join(command),
        f"{planned.name}-{request.scale}{stem_suffix(reaching)}",
    )


def _warn_of_damage(request: StudyRequest, planned: PartPlan) -> None:
    """Warn of damaged files, with the command that computes them again in that folder."""
    again = dataclasses.replace(request, parts=(planned.name,))
    command = shlex.join(("bnrecon", "study", *again.words_without_executor))
    for work in planned.work:
        if (damage := work.damage()) is not None:
            logger.warning("%s; computed again by: %s", damage, command)


def _page(planned: PartPlan, heading: Heading) -> Page:
    page = planned.part.make_page(heading, planned.work)
    shipped = _shipped(planned.work)
    return dataclasses.replace(page, blocks=[*page.blocks, Text(shipped)]) if shipped else page


def _shipped(work: Sequence[RunWork | TaskWork]) -> str:
    """Which results come from the installed package; empty if none."""
    if not (shipped := [item.label for item in work if item.is_shipped()]):
        return ""
    computed = [item.label for item in work if item.is_finished() and not item.is_shipped()]
    which = f"{len(shipped)} of {len(shipped) + len(computed)} finished results"
    if not computed:
        which = f"all {len(shipped)} finished results" if len(shipped) > 1 else "the result"
    elif len(computed) < len(shipped):
        which += f", all but {'; '.join(computed)}"
    else:
        which += f": {'; '.join(shipped)}"
    weights = WEIGHTS if isinstance(work[0], RunWork) else ""
    return f"Shipped with bnrecon, not computed here: {which}.{weights}"
